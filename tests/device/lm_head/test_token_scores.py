"""`token_scores` and `score_tokens` against whole logits and autodiff, also split over devices."""

import dataclasses
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxscore import score_tokens, token_scores
from jaxscore.device import jax_settings
from jaxscore.device.backends import BACKENDS
from jaxscore.device.lm_head import IMPLEMENTATIONS
from jaxscore.device.lm_head import token_scores as module
from jaxscore.device.lm_head.token_scores import TERMS
from tests.conftest import ROOT, with_devices

pytestmark = pytest.mark.numeric

COLUMNS, ROWS = 64, (32, 16)  # small, so that the arrays below have several blocks


@pytest.fixture(params=IMPLEMENTATIONS)
def backend(request, monkeypatch):
    small = dataclasses.replace(
        BACKENDS["cpu"],
        lm_head=request.param,
        lm_head_columns=COLUMNS,
        position_blocks=ROWS,
        gradient_positions=ROWS,
        gradient_columns=COLUMNS,
        interpreted=True,
    )
    monkeypatch.setattr(module, "current_backend", lambda: small)


def plain(hidden, targets, unembed, mask=None, bias=None, scale=1.0, softcap=None, terms=TERMS):
    """The definitions, from whole logits."""
    z = jnp.matmul(hidden, unembed.T, precision="highest")
    z = (z if bias is None else z + bias) * scale
    z = z if softcap is None else softcap * jnp.tanh(z / softcap)
    logp = jax.nn.log_softmax(z, axis=-1)
    values = {
        "logprob": jnp.take_along_axis(logp, targets[..., None], axis=-1)[..., 0],
        "entropy": -(jnp.exp(logp) * logp).sum(axis=-1),
        "self_certainty": -logp.mean(axis=-1) - np.log(unembed.shape[0]),
    }
    return {
        name: values[name] if mask is None else jnp.where(mask, values[name], 0.0) for name in terms
    }


def draw(V, shape, D=24, seed=0):
    """Hidden states, targets (first and last column among them), weight, bias, mask."""
    of = np.random.default_rng(seed)
    targets = of.integers(0, V, shape)
    targets.flat[0], targets.flat[-1] = V - 1, 0
    arrays = of.normal(size=(*shape, D)), of.normal(size=(V, D)) * 0.5, of.normal(size=V)
    hidden, weight, bias = (jnp.asarray(x, jnp.float32) for x in arrays)
    return hidden, jnp.asarray(targets), weight, bias, jnp.asarray(of.random(shape) < 0.4)


def weighted(values, seed=1):
    """A number that depends on each value of each term."""
    of = np.random.default_rng(seed)
    return sum(
        (jnp.asarray(of.normal(size=values[name].shape), jnp.float32) * values[name]).sum()
        for name in sorted(values)
    )


def value_and_gradients(function, hidden, weight, bias):
    """Scores, and gradients of a mix of all of them."""

    def loss(*arrays):
        values = function(*arrays)
        return weighted(values), values

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
    (_, values), gradients = run(hidden, weight, bias)
    return values, gradients


def assert_agree(ours, theirs):
    for name, value in theirs[0].items():
        np.testing.assert_allclose(ours[0][name], value, atol=1e-6, rtol=1e-6, err_msg=name)
    for own, other in zip(ours[1], theirs[1], strict=True):
        assert np.linalg.norm(own - other) <= 1e-6 + 1e-5 * np.linalg.norm(other)


SHAPES = [(1, (3,)), (7, (2, 40)), (COLUMNS, (5,)), (3 * COLUMNS + 1, (33,)), (200, (3, 2, 11))]


@pytest.mark.slow_after(1, of_each="backend")
@pytest.mark.parametrize(("V", "shape"), SHAPES)
@pytest.mark.parametrize(("masked", "softcap"), [(False, None), (True, 3.0)])
def test_scores_and_gradients_are_those_of_whole_logits(backend, V, shape, masked, softcap):
    hidden, targets, weight, bias, mask = draw(V, shape)
    options = {"mask": mask if masked else None, "scale": 0.7, "softcap": softcap}
    both = [
        value_and_gradients(
            lambda h, w, b, function=function: function(h, targets, w, bias=b, **options),
            hidden,
            weight,
            bias,
        )
        for function in (token_scores, plain)
    ]
    assert_agree(*both)


@pytest.mark.slow_after(1)
def test_masked_positions_are_zero_and_pass_no_gradient(backend):
    hidden, targets, weight, bias, _ = draw(100, (6,))
    hidden = hidden.at[2].set(jnp.nan)
    targets = targets.at[2].set(-100)
    for mask in (jnp.arange(6) != 2, jnp.zeros(6, bool)):
        values, gradients = value_and_gradients(
            lambda h, w, b, mask=mask: token_scores(h, targets, w, mask=mask, bias=b),
            hidden,
            weight,
            bias,
        )
        assert all(not np.any(value[~mask]) for value in values.values())
        assert not np.any(gradients[0][~mask])
        assert all(np.isfinite(x).all() for x in gradients)
        assert bool(mask.any()) == bool(np.any(gradients[1]))


@pytest.mark.slow_after(1)
def test_columns_of_probability_zero(backend):
    hidden, targets, weight, bias, _ = draw(100, (6,))
    targets, kept = targets % 30, np.r_[0:30, 40:100]
    bias = bias.at[30:40].set(-jnp.inf)
    values, gradients = value_and_gradients(
        lambda h, w, b: token_scores(h, targets, w, bias=b, terms=("logprob", "entropy")),
        hidden,
        weight,
        bias,
    )
    expected, their = value_and_gradients(
        lambda h, w, b: plain(h, targets, w, bias=b, terms=("logprob", "entropy")),
        hidden,
        weight[kept],
        bias[kept],
    )
    assert_agree((values, [gradients[0]]), (expected, [their[0]]))
    assert not np.any(gradients[1][30:40])


def test_no_position_gives_no_score():
    values = token_scores(jnp.zeros((2, 0, 4)), jnp.zeros((2, 0), int), jnp.zeros((10, 4)))
    assert {name: value.shape for name, value in values.items()} == dict.fromkeys(TERMS, (2, 0))


def test_logits_of_masked_positions_pass_no_gradient():
    logits = jnp.ones((1, 3, 5)).at[0, 1].set(jnp.nan)
    mask = jnp.asarray([[True, True, False]])

    def loss(z):
        values = score_tokens(lambda params, ids: params, z, jnp.zeros((1, 3), int), mask)
        return weighted(values)

    assert np.isfinite(jax.grad(loss)(logits)).all()


def test_wide_integers_and_floats():
    hidden, targets, weight, _, _ = draw(100, (4,))
    with jax.enable_x64(True):
        wide = jnp.asarray(np.asarray(targets, np.int64) + 2**32)
        assert np.isnan(token_scores(hidden, wide, weight)["logprob"]).all()
        with pytest.raises(ValueError, match="unembed has dtype float64, expected float32"):
            token_scores(hidden, targets, weight.astype(jnp.float64))


STRICT = {
    "enable_x64": True,
    "numpy_rank_promotion": "raise",
    "numpy_dtype_promotion": "strict",
    "default_matmul_precision": "bfloat16",
    "debug_infs": True,
    "transfer_guard": "disallow",
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("setting", [*STRICT, "debug_nans", "all"])
def test_settings_of_the_callers_program_change_no_bit_of_scores_and_gradients(setting, backend):
    hidden, targets, weight, bias, mask = draw(100, (4, 20))
    ids = jnp.pad(targets, ((0, 0), (1, 0)))
    scored = jnp.pad(mask, ((0, 0), (1, 0)))

    def loss(hidden, weight, bias):
        values = token_scores(hidden, targets, weight, mask=mask, bias=bias, softcap=30.0)
        rows = score_tokens(lambda *_: logits, None, ids, scored)
        return weighted(values), (values, rows)

    logits = jnp.pad(hidden, ((0, 0), (0, 1), (0, 200)))
    compute = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    want = jax.tree.map(np.asarray, jax.jit(compute)(hidden, weight, bias))
    # The weights of `weighted` are the test's own, made before the program is strict.
    chosen = STRICT if setting == "all" else {setting: STRICT.get(setting, True)}
    with jax_settings.applied(chosen):
        got = jax.jit(lambda *args: compute(*args))(hidden, weight, bias)
    got = jax.tree.map(np.asarray, got)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(got)} == {"float32"}


def test_a_target_outside_the_vocabulary_is_nan():
    hidden, targets, weight, _, _ = draw(100, (4,))
    values = token_scores(hidden, targets.at[1].set(100).at[2].set(-1), weight)
    assert np.isnan(values["logprob"]).tolist() == [False, True, True, False]
    assert np.isfinite(values["entropy"]).all()


@pytest.mark.slow_after(1)
def test_vmap_and_remat(backend):
    hidden, targets, weight, bias, mask = draw(100, (4, 20))

    def one_row(h, t, m, w, b):
        return token_scores(h, t, w, mask=m, bias=b)

    def mapped(h, w, b):
        return jax.vmap(one_row, (0, 0, 0, None, None))(h, targets, mask, w, b)

    @jax.checkpoint
    def again(h, w, b):
        return token_scores(h, targets, w, mask=mask, bias=b)

    expected = value_and_gradients(
        lambda h, w, b: plain(h, targets, w, mask=mask, bias=b), hidden, weight, bias
    )
    for function in (mapped, again):
        assert_agree(value_and_gradients(function, hidden, weight, bias), expected)


def test_bfloat16_rounds_products_alone():
    hidden, targets, weight, bias, _ = draw(300, (20,))
    hidden, weight = hidden.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    run = functools.partial(value_and_gradients, hidden=hidden, weight=weight, bias=bias)
    values, gradients = run(lambda h, w, b: token_scores(h, targets, w, bias=b))
    expected, exact = value_and_gradients(
        lambda h, w, b: plain(h, targets, w, bias=b),
        hidden.astype(jnp.float32),
        weight.astype(jnp.float32),
        bias,
    )
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, atol=2e-6, rtol=2e-6)
    for own, other, dtype in zip(
        gradients, exact, ("bfloat16", "bfloat16", "float32"), strict=True
    ):
        assert own.dtype == dtype
        # A rounding of each derivative to 8 bits, and of the result.
        assert np.linalg.norm(own.astype(jnp.float32) - other) <= 2**-8 * np.linalg.norm(other)


@pytest.mark.parametrize("V", [500, 1000])  # of 500: two blocks of 256, the last moved back
def test_even_blocks_of_the_backward_pass(monkeypatch, V):
    cpu = dataclasses.replace(BACKENDS["cpu"], gradient_columns=384, gradient_positions=(16, 8))
    monkeypatch.setattr(module, "current_backend", lambda: cpu)
    hidden, targets, weight, bias, _ = draw(V, (40,))
    both = [
        value_and_gradients(lambda h, w, b, f=f: f(h, targets, w, bias=b), hidden, weight, bias)
        for f in (token_scores, plain)
    ]
    assert_agree(*both)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-4), ("bfloat16", 0.02)])
def test_second_derivatives_are_those_of_whole_logits(dtype, most):
    """Of the gradient's squared length, with respect to hidden states and weight."""
    hidden, targets, weight, bias, _ = draw(300, (20,))
    hidden, weight = hidden.astype(dtype), weight.astype(dtype)

    def second(scores):
        def length(hidden, weight):
            def total(hidden):
                found = scores(hidden, targets, weight, bias=bias)
                return sum(values.sum() for values in found.values())

            return jnp.square(jax.grad(total)(hidden).astype(jnp.float32)).sum()

        return jax.grad(length, (0, 1))(hidden, weight)

    for ours, theirs in zip(second(token_scores), second(plain), strict=True):
        ours, theirs = (np.asarray(x, np.float32) for x in (ours, theirs))
        assert np.linalg.norm(ours - theirs) < most * np.linalg.norm(theirs)


def test_memory_is_a_tenth_of_autodiffs():
    shapes = [(2048, 16), (50257, 16)]
    hidden, weight = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    targets = jax.ShapeDtypeStruct((2048,), jnp.int32)

    def temporary(function):
        def loss(h, w, t):
            return sum(value.mean() for value in function(h, t, w).values())

        program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden, weight, targets).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporary(token_scores) <= 0.1 * temporary(plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": jnp.zeros((3,), int)}, r"targets \(3,\)"),
        ({"mask": jnp.zeros((3, 2), bool)}, r"mask is \(3, 2\) of bool, expected \(2, 3\)"),
        ({"terms": ("perplexity",)}, "unknown term 'perplexity', expected logprob, entropy"),
        ({"terms": "logprob"}, r"terms is 'logprob', expected a sequence such as \('logprob',\)"),
        ({"unembed": jnp.zeros((10, 4), jnp.int8)}, "unembed has dtype int8, expected float32"),
        ({"unembed": jnp.zeros((10, 4), jnp.uint16)}, "unembed has dtype uint16"),
        ({"unembed": jnp.zeros((0, 4))}, "unembed has 0 rows"),
        ({"hidden": jnp.zeros((2, 3, 4), int)}, "hidden has dtype int32"),
        ({"bias": jnp.zeros(10, int)}, "bias has dtype int32"),
        ({"targets": jnp.zeros((2, 3))}, "targets are float32, expected integers"),
        ({"scale": None}, "scale is None, expected a finite number"),
        ({"softcap": float("inf")}, "softcap is inf, expected a finite number"),
        ({"softcap": 0}, "softcap is 0.0, expected a number above 0"),
        ({"scale": np.ones(3)}, r"scale has shape \(3,\), expected a number"),
    ],
)
def test_arguments_that_do_not_fit(changes, message):
    arguments = {
        "hidden": jnp.zeros((2, 3, 4)),
        "targets": jnp.zeros((2, 3), int),
        "unembed": jnp.zeros((10, 4)),
    }
    jaxtyping.config.update("jaxtyping_disable", True)  # users have no checks of signatures
    try:
        with pytest.raises(ValueError, match=message):
            token_scores(**(arguments | changes))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_traced_options_and_forward_mode_are_refused(name):
    hidden, targets, weight = jnp.ones((3, 4)), jnp.arange(3), jnp.ones((10, 4))

    def entropy(h, value=2.0):
        return token_scores(h, targets, weight, **{name: value})["entropy"]

    np.testing.assert_array_equal(entropy(hidden), entropy(hidden, jnp.float32(2)))
    with pytest.raises(ValueError, match=f"{name} is traced, expected a number"):
        jax.jit(entropy)(hidden, 2.0)
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(entropy, (hidden,), (hidden,))


def toy_model(params, ids):
    """Running means of embeddings: causal hidden states."""
    count = jnp.arange(1, ids.shape[1] + 1)[None, :, None]
    return jnp.cumsum(params[ids], axis=1) / count


def test_score_tokens_from_hidden_states_and_from_logits():
    _, ids, params, _, mask = draw(50, (3, 9))
    run = jax.jit(score_tokens, static_argnames=("apply_fn", "unembed"))
    fused = run(toy_model, params, ids, mask, unembed=lambda params: params)
    whole = run(lambda params, ids: toy_model(params, ids) @ params.T, params, ids, mask)
    expected = plain(toy_model(params, ids)[:, :-1], ids[:, 1:], params, mask[:, 1:])
    for name, value in expected.items():
        for ours in (fused[name], whole[name]):
            np.testing.assert_allclose(ours[:, 1:], value, atol=1e-6, rtol=1e-6, err_msg=name)
            assert not np.any(ours[:, 0])
    every = run(toy_model, params, ids, unembed=lambda params: (params, jnp.zeros(50)))
    np.testing.assert_array_equal(
        np.where(mask, every["logprob"], 0)[:, 1:], fused["logprob"][:, 1:]
    )
    with pytest.raises(ValueError, match="softcap without unembed"):
        score_tokens(lambda params, ids: params[ids], params, ids, mask, softcap=3.0)


def on_four_devices():
    """Run by the test below: tokens split over `data`, the vocabulary over `model`."""
    hidden, targets, weight, bias, mask = draw(4 * 75, (4, 15))
    options = {"scale": 0.7, "softcap": 3.0}
    expected = value_and_gradients(
        lambda h, w, b: plain(h, targets, w, mask=mask, bias=b, **options), hidden, weight, bias
    )
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = P("data"), P("data"), P("data"), P("model"), P("model")

    def of_shard(h, t, m, w, b):
        return token_scores(h, t, w, mask=m, bias=b, axis_name="model", **options)

    for check in (True, False):
        split = jax.shard_map(
            of_shard, mesh=mesh, in_specs=specs, out_specs=P("data"), check_vma=check
        )
        ours = value_and_gradients(
            lambda h, w, b, split=split: split(h, targets, mask, w, b), hidden, weight, bias
        )
        assert_agree(ours, expected)
    of_explicit_axes(expected, (hidden, targets, mask, weight, bias), options)


def of_explicit_axes(expected, arrays, options):
    """Arrays split as they come; each device computes its tokens and its columns."""
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    for rows, targets, columns in [
        ("data", "data", "model"),
        (("data", "model"), None, None),
        (None, None, "model"),
        ("data", None, ("data", "model")),
        (None, "data", None),
    ]:
        specs = P(rows), P(targets), P(), P(columns), P(columns)
        placed = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip(arrays, specs, strict=True)
        ]
        hidden, ids, mask, weight, bias = placed

        def scores(h, w, b, ids=ids, mask=mask):
            return token_scores(h, ids, w, mask=mask, bias=b, **options)

        with jax.set_mesh(mesh):
            ours = value_and_gradients(scores, hidden, weight, bias)
        assert_agree(jax.device_get(ours), expected)
    half = jax.shard_map(
        lambda h, t, w: token_scores(h, t, w, axis_name="model")["entropy"],
        mesh=mesh, in_specs=(P(), P(), P("model")), out_specs=P(), axis_names={"model"},
    )  # fmt: skip
    hidden = jax.device_put(arrays[0], NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="apply shard_map to all axes"):
        jax.jit(half)(hidden, arrays[1], jax.device_put(arrays[3], NamedSharding(mesh, P("model"))))


@pytest.mark.slow
def test_split_tokens_and_vocabulary():
    command = [sys.executable, "-m", "tests.device.lm_head.test_token_scores"]
    done = subprocess.run(command, capture_output=True, text=True, env=with_devices(4), cwd=ROOT)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    on_four_devices()

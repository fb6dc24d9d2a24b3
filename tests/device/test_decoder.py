"""A forest in rows gives each path the hidden states that it has alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.device import decoder
from jaxscore.device.backends import BACKENDS, Build
from jaxscore.device.decoder_config import Experts, Rotary
from jaxscore.device.dots import as_integers
from jaxscore.device.init_params import init_params
from tests.device.configs import flat_fields, gpt2like, llamalike, rules
from tests.device.tries import paths, random_rows

pytestmark = pytest.mark.numeric

LENGTH = 26
TABLES = (Rotary((1.0, 0.1, 0.01), 1.3), Rotary((0.0, 0.0, 0.0)))  # of heads of 8: a part turns
CONFIGS = {
    "llamalike": llamalike(),
    "gpt2like": gpt2like(),
    "windows": llamalike(windows=(0, 3), n_kv_heads=1),
    "experts": llamalike(
        experts=Experts.of(count=3, per_token=2, router_renormalised=True, shared_width=6),
        mlp_width=10,
    ),
    "alibi": gpt2like(
        alibi=rules(4)["coarse"].alibi, learned_positions=False, embedding_norm=True, parallel="own"
    ),
    "sandwich": llamalike(
        norm_place="both",
        qk_norm_kind="head",
        score_softcap=2.0,
        rotary=TABLES,
        rotary_of=(1, 0),
        interleaved=True,
        embedding_scale=3.0,
        branch_scale=0.6,
    ),
    "shared": llamalike(parallel="shared", qk_norm_kind="flat", norm_kind="layer"),
    "narrow": gpt2like(
        norm_place="residual",
        embedding_width=12,
        head_norm=False,
        head_bias=True,
        qk_norm_kind="heads",
    ),
}


@functools.cache
def model(name):
    """Random parameters of visible size, and the compiled function."""
    config = CONFIGS[name]
    draw = np.random.default_rng(1)

    def fill(path, leaf):
        """Matrices, tables and biases around zero, norms' scales around one."""
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(draw.normal(centre, 0.3, leaf.shape), jnp.float32)

    shapes = jax.eval_shape(lambda: init_params(jax.random.key(0), config))
    run = jax.jit(lambda p, *rows: decoder.hidden_states(p, config, *rows))
    return jax.tree_util.tree_map_with_path(fill, shapes), run


def hidden(name, *rows, params=None):
    own, run = model(name)
    out = run(own if params is None else params, *(jnp.asarray(part) for part in rows))
    assert out.dtype == jnp.float32
    return np.asarray(out)


def alone(tokens):
    """Paths, one a row without branches, padded on the right: what any causal model takes."""
    ids = np.zeros((len(tokens), LENGTH), np.int32)
    for row, path in zip(ids, tokens, strict=True):
        row[: len(path)] = path
    position = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), ids.shape)
    return ids, position, np.full_like(ids, LENGTH)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_every_node_has_the_state_of_its_path(name, seed):
    ids, position, end = random_rows(seed, 1, LENGTH)
    below = paths(position[0], end[0])
    assert len(set(map(len, below))) > 3  # tries of some depth
    states = hidden(name, ids, position, end)[0]
    want = hidden(name, *alone([ids[0, path] for path in below]))
    for i, path in enumerate(below):
        np.testing.assert_allclose(states[i], want[i, len(path) - 1], atol=1e-5, rtol=0)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CONFIGS)
def test_where_a_trie_stands_and_what_is_beside_it_do_not_matter(name):
    """The same trie first in a row, last in a row, and behind another in the second row."""
    trie = np.array([7, 3, 3, 9, 1, 4]), np.array([0, 1, 2, 2, 1, 2]), np.array([6, 4, 3, 4, 6, 6])
    draw = np.random.default_rng(0)
    found = []
    for first, row in ((0, 0), (LENGTH - 6, 0), (11, 1)):
        ids, position, end = random_rows(first, 2, LENGTH)
        ids = draw.integers(0, 50, ids.shape).astype(np.int32)
        # What comes before may not reach into the trie, nor may what comes after look back.
        end[row, :first] = np.minimum(end[row, :first], first)
        fresh = np.arange(first + 6, LENGTH)
        position[row, fresh], end[row, fresh] = 0, fresh + 1
        at = slice(first, first + 6)
        ids[row, at], position[row, at], end[row, at] = trie[0], trie[1], trie[2] + first
        found.append(hidden(name, ids, position, end)[row, at])
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5, rtol=0)


def test_the_same_token_deeper_in_the_trie_is_another_state():
    """Else the tests above could hold for a model that sees no position."""
    for name in ("llamalike", "gpt2like"):
        states = hidden(name, *alone([np.array([5, 8, 6, 8]), np.array([5, 6, 8, 8])]))
        assert np.abs(states[0, 1] - states[0, 3]).max() > 0.01
        assert np.abs(states[0, 3] - states[1, 3]).max() > 0.01  # order, not the set


def test_a_window_hides_what_is_further_up_the_path():
    full = {**flat_fields(CONFIGS["windows"]), "windows": (3, 3)}
    config = decoder.DecoderConfig.of(**full)
    params, _ = model("windows")
    run = jax.jit(lambda *rows: decoder.hidden_states(params, config, *rows))
    ids, position, end = alone([np.arange(LENGTH), np.arange(LENGTH)])
    ids[1, 0] = 49
    one, other = np.asarray(run(jnp.asarray(ids), jnp.asarray(position), jnp.asarray(end)))
    differs = np.abs(one - other).max(axis=-1) > 1e-6
    assert differs.tolist() == [i <= 4 for i in range(LENGTH)]  # two layers of reach 2


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_matrices_stay_close_to_float32(name):
    """Rounding activations costs about what rounding the weights costs.

    A product rounds x where storage rounded w, by the same 8 bits, so float32 with and without
    rounded weights measures how much this random network makes of such an error. Attention has
    two more products, of two activations each: twice the cost is allowed.
    """
    params, _ = model(name)
    matrices = ("weight", "token", "position")
    bfloat16 = jax.tree.map_with_path(
        lambda path, leaf: leaf.astype(jnp.bfloat16) if path[-1].key in matrices else leaf, params
    )
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), bfloat16)
    rows = random_rows(4, 2, LENGTH)
    exact = hidden(name, *rows, params=rounded)
    got = hidden(name, *rows, params=as_integers(bfloat16))

    def error(other):
        return float(np.sqrt(np.mean((other - exact) ** 2) / np.mean(exact**2)))

    by_weights = error(hidden(name, *rows, params=params))
    assert by_weights / 4 < error(got) < 2 * by_weights < 0.05


@pytest.mark.slow
def test_an_mlp_in_blocks_of_tokens_is_the_same():
    """52 tokens: in blocks of 13, at once, and in the largest blocks of up to 20."""
    rows = [jnp.asarray(part) for part in random_rows(6, 2, LENGTH)]
    params, _ = model("gpt2like")

    def program(block):
        build = Build(dataclasses.replace(BACKENDS["cpu"], mlp_tokens=block))
        config = CONFIGS["gpt2like"]
        run = jax.jit(lambda *rows: decoder.hidden_states(params, config, *rows, build=build))
        return run.trace(*rows)

    whole, blocks, ragged = program(52), program(13), program(20)
    assert "13,40]" in str(blocks.jaxpr)  # inside the MLP
    assert "13,40]" not in str(whole.jaxpr)
    assert str(ragged.jaxpr) == str(blocks.jaxpr)
    one, other = (program.lower().compile()(*rows) for program in (whole, blocks))
    np.testing.assert_allclose(one, other, atol=1e-5, rtol=0)


def test_stacked_layers_are_applied_in_order():
    """Swapping two layers' parameters must change the states."""
    params, _ = model("llamalike")
    swapped = {**params, "layers": jax.tree.map(lambda leaf: leaf[::-1], params["layers"])}
    rows = random_rows(5, 1, LENGTH)
    gap = np.abs(hidden("llamalike", *rows) - hidden("llamalike", *rows, params=swapped))
    assert gap.max() > 0.1

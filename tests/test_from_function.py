"""`Scorer.from_function`: models of Flax Linen, Flax NNX, Equinox and a plain function."""

import dataclasses
import functools
import re

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxscore import InputError, Request, Scorer, evaluate
from jaxscore.models.model import CheckpointFacts
from jaxscore.plan.requests import TokenSequence
from jaxscore.shell.audits import NO_SHARING
from tests.conftest import CASES, ROOT

TOKENIZER = str(CASES / "models/tiny-gpt2")
V, D, HEADS, POSITIONS = 1280, 16, 2, 64
TEXTS = [
    Request("0", "The cat", " sat down"),
    Request("1", "The cat", " ran away."),
    Request("2", "", "A dog is no cat"),
]


class Linen(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, ids, positions, mask):
        token = flax.linen.Embed(V, D, name="token")(ids)
        x = token + flax.linen.Embed(POSITIONS, D, name="position")(positions)
        attend = flax.linen.MultiHeadDotProductAttention(HEADS, name="attention")
        return flax.linen.LayerNorm(name="norm")(x + attend(x, mask=mask[:, None]))


def linen():
    model = Linen()
    params = model.init(jax.random.key(0), *inputs(np.zeros((1, 4), np.int32)))
    return model.apply, lambda p: p["params"]["token"]["embedding"], params


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.token, self.position = nnx.Embed(V, D, rngs=rngs), nnx.Embed(POSITIONS, D, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, D, decode=False, rngs=rngs)
        self.norm, self.head = nnx.LayerNorm(D, rngs=rngs), nnx.Linear(D, V, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, deterministic=True, rngs=rngs)  # has keys as state

    def __call__(self, ids, positions, mask):
        x = self.token(ids) + self.position(positions)
        return self.norm(x + self.dropout(self.attention(x, mask=mask[:, None])))


def of_nnx():
    graph, state = nnx.split(Nnx(nnx.Rngs(0)))

    def apply(params, *args):
        return nnx.merge(graph, params)(*args)

    def unembed(params):
        head = nnx.merge(graph, params).head
        return head.kernel[...].T, head.bias[...]

    return apply, unembed, state


class Eqx(equinox.Module):
    token: equinox.nn.Embedding
    position: equinox.nn.Embedding
    attention: equinox.nn.MultiheadAttention
    norm: equinox.nn.LayerNorm
    head: equinox.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.token = equinox.nn.Embedding(V, D, key=keys[0])
        self.position = equinox.nn.Embedding(POSITIONS, D, key=keys[1])
        self.attention = equinox.nn.MultiheadAttention(HEADS, D, key=keys[2])
        self.norm = equinox.nn.LayerNorm(D)
        self.head = equinox.nn.Linear(D, V, key=keys[3])

    def __call__(self, ids, positions, mask):
        x = self.token.weight[ids] + self.position.weight[positions]
        return jax.vmap(self.norm)(x + self.attention(x, x, x, mask=mask))


def of_equinox():
    params, static = equinox.partition(Eqx(jax.random.key(0)), equinox.is_array)

    def apply(params, *args):
        return jax.vmap(equinox.combine(params, static))(*args)

    return apply, lambda params: (params.head.weight, params.head.bias), params


def inputs(ids):
    """Positions and causal mask of rows that are one text each."""
    R, L = ids.shape
    positions = jnp.broadcast_to(jnp.arange(L), (R, L))
    return ids, positions, jnp.broadcast_to(jnp.tril(jnp.ones((L, L), bool)), (R, L, L))


MODELS = {"linen": linen, "nnx": of_nnx, "equinox": of_equinox}


def scorer_of(model, *, takes_mask=False, **options):
    """A scorer as the README's recipes make it."""
    apply, unembed, params = model
    hidden_states = apply if takes_mask else lambda p, ids: apply(p, *inputs(ids))
    sizes = {"vocab_size": V, "max_positions": POSITIONS}
    return Scorer.from_function(
        hidden_states, unembed, params, TOKENIZER, takes_mask=takes_mask, **sizes, **options
    )


def scaled(factor, array):
    return array * factor if jnp.issubdtype(array.dtype, jnp.floating) else array  # a random key


def reference(model, params, scorer, request):
    """Log-probabilities and entropies of a continuation, by whole logits of its text alone."""
    apply, unembed, _ = model
    [ids] = scorer.encoder.tokenizer([request.context + request.continuation])["input_ids"]
    head = unembed(params)
    weight, bias = head if isinstance(head, tuple) else (head, 0.0)
    hidden = apply(params, *inputs(np.array([ids], np.int32)))[0]
    logp = jax.nn.log_softmax(jnp.dot(hidden, weight.T, precision="highest") + bias)[:-1]
    own = jnp.take_along_axis(logp, np.array(ids[1:])[:, None], axis=1)[:, 0]
    return np.asarray(own), np.asarray(-(jnp.exp(logp) * logp).sum(axis=1))


@pytest.mark.slow_after(1, of_each="takes_mask")
@pytest.mark.parametrize("takes_mask", [False, True], ids=["causal", "intervals"])
@pytest.mark.parametrize("kind", MODELS)
def test_scores_are_those_of_the_model_itself(kind, takes_mask):
    model = MODELS[kind]()
    scorer = scorer_of(model, takes_mask=takes_mask)
    for factor in (1.0, 1.5):
        params = jax.tree.map(functools.partial(scaled, factor), model[2])
        scorer.update(params)
        for request, scored in zip(TEXTS, scorer.score(TEXTS), strict=True):
            assert scored.error is None
            logprob, entropy = reference(model, params, scorer, request)
            n = int(np.isfinite(scored.logprob).sum())
            np.testing.assert_allclose(scored.logprob[-n:], logprob[-n:], atol=1e-4)
            np.testing.assert_allclose(scored.entropy[-n:], entropy[-n:], atol=1e-4)
    assert len(scorer.engine.programs.compiled) == 1


def test_shared_text_is_computed_once_with_the_mask_alone():
    """The capability is what the counters say, and a sample with a blank needs it."""
    laid_out = {}
    for takes_mask in (False, True):
        scorer = scorer_of(linen(), takes_mask=takes_mask)
        assert scorer.capabilities.shares_prefixes == takes_mask
        scorer.score([("The cat sat down and", f" {k} words") for k in range(4)])
        laid_out[takes_mask] = scorer.statistics.tokens_laid_out
        items = [{"question": "Who?", "paths": [["Is it Oslo?", "Oslo"]]}]
        report = evaluate("paths", scorer, items)
        assert ("answer_blank" in report.to_dict()) == takes_mask
        assert (NO_SHARING in report.remarks) != takes_mask
    assert laid_out[True] < laid_out[False] / 2


def test_systems_take_such_a_model():
    scorer = scorer_of(linen(), name="mine")
    report = evaluate("perplexity", scorer, [{"text": "A dog is no cat."}])
    assert report.settings["model"] == "mine"
    assert report.settings["implementation"] == "function"
    assert report.settings["revision"] is None
    assert report.settings["weights"] == scorer.about["model"]
    assert len(evaluate("sample", scorer, [{"prompt": "The cat"}], n=2).items) == 1
    too_long = scorer.score(["The cat sat down. " * 30])
    assert "64" in too_long[0].error


@pytest.mark.parametrize("takes_mask", [False, True])
def test_generated_tokens_are_the_most_probable_ones(takes_mask):
    apply, unembed, params = linen()
    scorer = scorer_of((apply, unembed, params), takes_mask=takes_mask)
    most_probable = jax.jit(
        lambda row: jnp.argmax(apply(params, *inputs(row)) @ unembed(params).T, 2)
    )
    shared = "The quick brown fox jumps over the lazy dog. " * 2
    prompts = [shared + "A cat", shared + "A cat sat", "Oslo", shared]
    generated = scorer.generate(prompts, max_new_tokens=70)
    for prompt, text in zip(prompts, generated, strict=True):
        assert text.error is None
        ids = scorer.encoder.tokenizer(prompt)["input_ids"]
        expected = []
        while len(expected) < min(70, POSITIONS + 1 - len(ids)):
            row = np.zeros((1, POSITIONS), np.int32)
            row[0, : len(ids) + len(expected)] = ids + expected
            expected.append(int(most_probable(row)[0, len(ids) + len(expected) - 1]))
        assert list(text.token_ids) == expected


def test_steps_have_rows_of_scoring_and_end_at_the_tokenizers_eos():
    apply, unembed, params = linen()
    shapes = set()

    def recorded(params, ids):
        shapes.add(ids.shape)
        return apply(params, *inputs(ids))

    sizes = {"vocab_size": V, "max_positions": POSITIONS, "batch_tokens": 1024}
    scorer = Scorer.from_function(recorded, unembed, params, TOKENIZER, **sizes)
    shapes.clear()  # of the check
    prompts = [f"{name} {k}" for name in ("The cat", "A dog", "Oslo") for k in range(12)]
    texts = [list(text.token_ids) for text in scorer.generate(prompts, max_new_tokens=20)]
    assert {length for _, length in shapes} == {64}
    assert max(rows for rows, _ in shapes) == 8  # of slot tables with 1, 8, 32, ... rows
    end = texts[0][3]
    facts = CheckpointFacts(eos_ids=(end,))
    scorer.engine.model = dataclasses.replace(scorer.model, checkpoint=facts)
    again = scorer.generate(prompts, max_new_tokens=20)
    for text, before in zip(again, texts, strict=True):
        expected = before[: before.index(end)] if end in before else before
        assert list(text.token_ids)[: len(expected)] == expected
        assert len(text.token_ids) <= len(expected) + 1


def test_a_longer_text_than_a_row_of_the_model_is_not_cut():
    """Rows are powers of two, and the model has 48 positions."""
    model = linen()
    apply, unembed, params = model
    seen = []

    def hidden_states(p, ids):
        seen.append(ids.shape[1])
        return apply(p, *inputs(ids))

    scorer = Scorer.from_function(
        hidden_states, unembed, params, TOKENIZER, vocab_size=V, max_positions=48
    )
    request = Request("0", "", "The cat sat down and " * 4)
    [scored] = scorer.score([request])
    logprob, _ = reference(model, params, scorer, request)
    assert len(logprob) > 16
    np.testing.assert_allclose(scored.logprob[-len(logprob) :], logprob, atol=1e-4)
    assert max(seen) <= 48


def test_bfloat16_softcap_and_scale():
    apply, unembed, params = linen()
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    cap = {"scale": 0.5, "softcap": 2.0}
    scorer = scorer_of((apply, unembed, params), **cap)
    assert scorer.model.dtype == "bfloat16"
    [ids] = scorer.encoder.tokenizer(["The cat sat"])["input_ids"]
    hidden = apply(params, *inputs(np.array([ids], np.int32)))[0]
    product = jnp.dot(hidden, unembed(params).T, preferred_element_type=jnp.float32)
    logp = jax.nn.log_softmax(2 * jnp.tanh(0.5 * product / 2))
    expected = [float(logp[k, id]) for k, id in enumerate(ids[1:])]
    [scored] = scorer.score(["The cat sat"])
    np.testing.assert_allclose(scored.logprob[-len(expected) :], expected, atol=2e-2)


def test_what_is_no_such_model_is_refused_by_name():
    apply, unembed, params = linen()
    good = {"vocab_size": V, "max_positions": POSITIONS}

    def plain(p, ids):
        return apply(p, *inputs(ids))

    wrong = [
        ((plain, unembed, params | {"rate": 0.1}), {}, r"params: \['rate'\] is float"),
        ((plain, lambda p: unembed(p).T, params), {}, r"unembed gives \[16, 1280\], expected"),
        ((plain, lambda p: (unembed(p), jnp.zeros(3)), params), {}, r"a bias of \[3\]"),
        ((lambda p, ids: plain(p, ids)[0], unembed, params), {}, r"hidden_states gives \[8, 16\]"),
        ((lambda p, ids: (plain(p, ids),), unembed, params), {}, "hidden_states gives tuple"),
        ((plain, lambda p: [unembed(p)], params), {}, "unembed gives list, expected the weight"),
        ((plain, lambda p: unembed(p).astype(jnp.float16), params), {}, "unembed gives float16"),
        ((plain, unembed, params), {"max_positions": 0}, "expected at least 1"),
    ]
    for (hidden, head, values), options, message in wrong:
        with pytest.raises(InputError, match=message):
            Scorer.from_function(hidden, head, values, TOKENIZER, **good | options)
    scorer, changed = scorer_of((apply, unembed, params)), jax.tree.map(lambda x: x, params)
    changed["params"]["token"]["embedding"] = jnp.zeros((3, D))
    with pytest.raises(InputError, match=r"\['token'\]\['embedding'\] is float32 \[3, 16\]"):
        scorer.update(changed)


@pytest.mark.slow
def test_the_recipes_of_the_page_run():
    """Each with a module that takes ids alone, as the page says."""
    page = (ROOT / "jaxscore/models/README.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Any JAX model.*?\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    recipes = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)

    class LinenOfIds(Linen):
        @flax.linen.compact
        def __call__(self, ids):
            return Linen.__call__(self, *inputs(ids))

    class NnxOfIds(Nnx):
        def __call__(self, ids):
            return super().__call__(*inputs(ids))

    class EqxOfIds(Eqx):
        def __call__(self, ids):
            return super().__call__(*(each[0] for each in inputs(ids[None])))

    models = [LinenOfIds(), NnxOfIds(nnx.Rngs(0)), EqxOfIds(jax.random.key(0))]
    assert len(recipes) == len(models)
    for recipe, model, make in zip(recipes, models, MODELS.values(), strict=True):
        names = {"model": model, "tokenizer": TOKENIZER, "nnx": nnx, "equinox": equinox}
        names |= {"jax": jax, "Scorer": Scorer, "vocab_size": V, "max_positions": POSITIONS}
        expected = scorer_of(make())
        exec(recipe, names := names | {"params": make()[2]})
        for found, own in zip(names["scorer"].score(TEXTS), expected.score(TEXTS), strict=True):
            np.testing.assert_allclose(found.logprob, own.logprob, atol=1e-6)


def test_functions_of_a_program_with_64_bits_are_traced_with_them():
    """A function computes what a call of it computes, whichever settings traces it later."""
    draw = np.random.default_rng(0)
    params = {"token": draw.normal(size=(V, D)), "head": draw.normal(size=(V, D)).astype("float32")}
    dtypes = set()

    def hidden_states(params, ids):
        x = params["token"][ids]
        dtypes.add(x.dtype.name)
        return jnp.sin(1e6 * jnp.cumsum(x, axis=1))  # float32 has no digit of this

    sizes = {"vocab_size": V, "max_positions": POSITIONS}
    with jax.enable_x64(True):
        scorer = Scorer.from_function(
            hidden_states, lambda params: params["head"], params, TOKENIZER, **sizes
        )
        ids = np.array([5, 3, 9, 1, 4], np.int32)
        states = jax.jit(hidden_states)(params, ids[None]).astype(jnp.float32)
        want = np.asarray(jax.nn.log_softmax(states[0] @ params["head"].T))
    sequence = TokenSequence(ids, 0)
    [scores] = scorer.score_sequences([sequence])
    np.testing.assert_allclose(scores.logprob, want[np.arange(4), ids[1:]], atol=1e-5)
    assert dtypes == {"float64"}
    scorer.update({name: 2 * value for name, value in params.items()})
    [others] = scorer.score_sequences([sequence])
    assert np.abs(others.logprob - scores.logprob).max() > 0.1


def test_functions_stay_strict_where_the_program_is_strict():
    weight = np.ones((V, D), np.float32)

    def hidden_states(params, ids):
        return params[ids] + jnp.arange(D, dtype="int32")

    with (
        jax.numpy_dtype_promotion("strict"),
        pytest.raises(Exception, match="no available implicit dtype promotion path"),
    ):
        Scorer.from_function(
            hidden_states, lambda params: params, weight, TOKENIZER, vocab_size=V, max_positions=64
        )

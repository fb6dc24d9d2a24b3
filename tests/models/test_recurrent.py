"""Models with recurrent layers: long tries in many chunks, and what is refused by name."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxscore import Scorer
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.backends import BACKENDS
from jaxscore.engine.generation import Generator, slots
from jaxscore.models.model import paired
from jaxscore.plan import decode_slots
from jaxscore.plan.chunks import PathNeeds
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import GenerationRequest
from tests.device.tries import device_paths
from tests.engine.generation.test_generator import OfIds
from tests.models.case_parts import VOCABULARY
from tests.models.checkpoints import (
    assert_agree,
    distance,
    loaded,
    saved,
    torch_model,
    torch_scores,
)

pytestmark = [pytest.mark.numeric, pytest.mark.lines]

KINDS = [
    "lfm2",
    "lfm3",
    "qwen3_5_text",
    "bamba",
    "falcon_h1",
    "kimi_linear",
    "minimax",
    "olmo_hybrid",
    "jamba",
    "mamba2",
    "nemotron_h",
    "qwen4_exp_text",
    "recurrent_gemma",
    "zamba",
    "zamba2",
]
FORESTS = [*KINDS, "bailing_hybrid", "lara_mini"]
# Of families with one kind of layer one; `test_steps_have…` has all of them.
GENERATED = [k for k in KINDS if k not in {"bamba", "lfm3", "mamba2", "nemotron_h", "olmo_hybrid"}]
LONG = {"max_position_embeddings": 512}
# Under another name, or without a limit
KIMI = {"model_max_length": 512}
LONG_OF = {"bailing_hybrid": KIMI, "kimi_linear": KIMI, "mamba2": {}, "recurrent_gemma": {}} | {
    "qwen4_exp_text": LONG | {"indexer_budget": 512}
}


def shared():
    """A prompt with five answers, nested branches, and short texts."""
    draw = np.random.default_rng(0)

    def text(n):
        return draw.integers(0, VOCABULARY, n)

    prompt, other, rest = text(100), text(37), text(50)
    texts = [np.r_[prompt, text(5)] for _ in range(5)]
    texts += [np.r_[other, text(n)] for n in (3, 90, 17)]
    texts += [np.r_[other, rest, text(n)] for n in (2, 9, 70)]
    texts += [text(n) for n in (2, 3, 11, 66)]
    return [TokenSequence(one.astype(np.int32), 0) for one in texts]


def by_products(monkeypatch, folder):
    """A model whose convolutions in chunks are products."""
    changed = dataclasses.replace(BACKENDS["cpu"], convolves_by_products=True)
    with monkeypatch.context() as patch:
        patch.setitem(BACKENDS, "cpu", changed)
        return loaded(folder)


def with_nan(model, token_id):
    """A model in which one token's embedding is NaN."""
    embedding = np.array(model.params["embed"]["token"])
    embedding[token_id] = np.nan
    token = jnp.asarray(embedding)
    params = model.params | {"embed": model.params["embed"] | {"token": token}}
    return dataclasses.replace(model, params=params)


@pytest.mark.parametrize("kind", ["qwen3_5_text", "jamba"])
def test_nan_reaches_the_same_tokens_if_convolutions_are_products(monkeypatch, tmp_path, kind):
    saved(tmp_path, kind, **LONG_OF.get(kind, LONG))
    draw = np.random.default_rng(3)
    prompt, *rest = (draw.integers(6, VOCABULARY, n) for n in (70, 9, 9, 30))
    rest[0][2] = 5
    rest[1][8] = 5
    texts = [TokenSequence(np.r_[prompt, text].astype(np.int32), 0) for text in rest]
    models = loaded(tmp_path), by_products(monkeypatch, tmp_path)
    want, got = (Scorer(with_nan(m, 5), None).score_sequences(texts) for m in models)
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose(other.logprob, one.logprob, atol=1e-5)  # NaN equals NaN
    assert [int(np.isnan(one.logprob).sum()) for one in got] == [6, 0, 0]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", FORESTS)
def test_tries_in_chunks_of_any_size_agree_with_each_text_alone(monkeypatch, tmp_path, kind):
    """Chunks of 64 with convolutions by products, as on a TPU."""
    model = torch_model(kind, **LONG_OF.get(kind, LONG))
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(0.5 if value.ndim == 2 else 1)  # wider ones amplify torch's own rounding
    model.save_pretrained(tmp_path)
    want = torch_scores(model, shared())
    own = loaded(tmp_path)
    alone = Scorer(own, None, reproducible=True)
    assert_agree(alone.score_sequences(shared()), want)
    forms = [(own, own.functions.paths)]
    if own.functions.paths.size:
        forms = [(own, PathNeeds(8, 3)), (by_products(monkeypatch, tmp_path), PathNeeds(64, 1))]
    for form, needs in forms:
        changed = dataclasses.replace(form, functions=form.functions._replace(paths=needs))
        scorer = Scorer(changed, None, batch_tokens=512)
        got = scorer.score_sequences(shared())
        assert scorer.statistics.tokens_laid_out < 0.6 * sum(len(s.ids) for s in shared())
        assert distance(got, alone.score_sequences(shared())) < 2e-5


def test_bits_of_a_text_alone_do_not_depend_on_others(tmp_path):
    saved(tmp_path, "qwen3_5_text", **LONG)
    scorer = Scorer(loaded(tmp_path), None, reproducible=True)
    one = scorer.score_sequences(shared()[:1])[0]
    again = scorer.score_sequences(shared()[::-1])[-1]
    assert one.logprob.tobytes() == again.logprob.tobytes()


@pytest.mark.slow
def test_a_pair_with_a_model_of_attention_alone(tmp_path):
    saved(tmp_path / "p", "qwen3_5_text")
    saved(tmp_path / "q", "llama")
    p, q = loaded(tmp_path / "p"), loaded(tmp_path / "q")
    sequences = [TokenSequence(s.ids[:40], 0) for s in shared()]
    want = Scorer(p, None, batch_tokens=64).score_sequences(sequences)
    for pair in (paired(p, q), paired(q, p)):
        got = Scorer(pair, None, batch_tokens=64).score_sequences(sequences)
        if pair.model_type == "qwen3_5_text":
            assert distance(got, want) < 2e-5
        assert all(np.isfinite(one.logprob).all() for one in got)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GENERATED)
def test_greedy_is_pytorchs_token_for_token(monkeypatch, tmp_path, kind):
    """Few slots that texts take in turns, looks after 5 steps; with a prefix cache and without."""
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 4))
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", 8)
    monkeypatch.setattr(slots, "STEPS", 5)
    original = saved(tmp_path, kind, **LONG_OF.get(kind, LONG))
    draw = np.random.default_rng(6)
    shared, own = draw.integers(0, VOCABULARY, 70), draw.integers(0, VOCABULARY, 90)
    prompts = [
        *(np.r_[shared, draw.integers(0, VOCABULARY, n)] for n in (1, 2, 7, 66)),
        *(np.r_[shared, own[:20], k] for k in range(3)),  # alike but for the last token
        np.r_[shared, own],
    ]
    ids = [prompt.astype(np.int32) for prompt in (*prompts, own[:1], own[:2])]
    requests = [GenerationRequest(k, str(k), 3 + 4 * (k % 4)) for k in range(len(ids))]
    want = [
        torch_greedy(original, prompt, request.max_new_tokens)
        for prompt, request in zip(ids, requests, strict=True)
    ]
    for with_prefix in (True, False):
        n = len(prompts) if with_prefix else len(ids)
        scorer = Scorer(loaded(tmp_path), OfIds(ids[:n]), batch_tokens=128)
        got = Generator(scorer).generate(requests[:n])
        assert [one.token_ids.tolist() for one in got] == want[:n]
        programs = [program.name[0] for program in scorer.engine.programs.compiled]
        assert ("prefix" in programs) == with_prefix


def torch_greedy(model, ids, n):
    out = torch.from_numpy(ids.astype(np.int64))[None]
    for _ in range(n):
        with torch.no_grad():
            out = torch.cat([out, model(out, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return out[0, len(ids) :].tolist()


@pytest.mark.slow_after(4)  # each step is a program of its own
@pytest.mark.parametrize("kind", KINDS)
def test_steps_have_the_hidden_states_of_scoring(tmp_path, kind):
    """Three rows go on from a prefill, one token at a time, each from states of its own."""
    saved(tmp_path, kind)
    model = loaded(tmp_path)
    functions = model.functions
    draw, n, steps = np.random.default_rng(2), 20, 3
    ids = jnp.asarray(draw.integers(0, VOCABULARY, (3, n + steps)), jnp.int32)
    at = jnp.broadcast_to(jnp.arange(n + steps), ids.shape)

    def paths_of(length):
        return device_paths(np.full((3, length), length), 8 if functions.paths.size else 0, 2)

    extend = jax.jit(functions.cached.extend)
    end = jnp.full_like(ids, n + steps)
    whole = functions.hidden_states(model.params, ids, at, end, paths=paths_of(n + steps))
    last = n * jnp.arange(1, 4) - 1
    rows = ids[:, :n], at[:, :n], end[:, :n] * 0 + n
    _, made = extend(model.params, *rows, (), paths_of(n), last)
    for t in range(n, n + steps):
        cache = KVCache(made.key, made.value, jnp.int32(0), jnp.full(3, t), made.states)
        token = ids[:, t : t + 1], at[:, t : t + 1], jnp.ones((3, 1), jnp.int32)
        hidden, new = extend(model.params, *token, (cache,))
        np.testing.assert_allclose(hidden[:, 0], whole[:, t], atol=3e-5)
        stored = [jnp.concatenate(pair, 3) for pair in zip(made[:2], new[:2], strict=True)]
        made = new._replace(key=stored[0], value=stored[1])


def test_a_text_with_nan_leaves_no_trace_in_its_slot(monkeypatch, tmp_path):
    monkeypatch.setattr(decode_slots, "GROUPS", (1,))
    saved(tmp_path, "qwen3_5_text", **LONG)
    model = with_nan(loaded(tmp_path), 5)
    draw = np.random.default_rng(3)
    ids = [draw.integers(6, VOCABULARY, n).astype(np.int32) for n in (40, 30, 35)]
    ids[0][20] = 5
    scorer = Scorer(model, OfIds(ids), batch_tokens=64)
    got = Generator(scorer).generate([GenerationRequest(k, str(k), 4) for k in range(3)])
    alone = Generator(scorer).generate([GenerationRequest(k, str(k), 4) for k in (1, 2)])
    assert "not finite" in got[0].error
    assert [one.token_ids.tolist() for one in got[1:]] == [one.token_ids.tolist() for one in alone]

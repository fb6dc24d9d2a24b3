"""The most probable tokens of a run, against full logits and however the run is laid out."""

import jax
import numpy as np
import pytest

from jaxscore import Scorer
from jaxscore.device.dots import from_storage
from jaxscore.plan.requests import TokenSequence
from tests.engine.test_dispatch import short_of_memory
from tests.test_scorer import COLUMNS, fresh, random_sequences

pytestmark = pytest.mark.numeric

TOP, LONGEST = 5, 160


def asked() -> list[TokenSequence]:
    """Texts on one prompt, choices after some of them, and texts that share nothing with it."""
    draw = np.random.default_rng(5)
    begin = draw.integers(5, 1200, 40)
    texts = [np.r_[begin, draw.integers(5, 1200, 1 + k)].astype(np.int32) for k in range(24)]
    choices = [TokenSequence(ids, len(ids), np.arange(7, 11, dtype=np.int32)) for ids in texts[:6]]
    return [TokenSequence(ids, 40) for ids in texts] + choices + random_sequences(3)


def full_logprobs(scorer: Scorer, ids: np.ndarray) -> np.ndarray:
    """float64 [n, V], of the token after each id, from the hidden states of the text alone."""
    model, n = scorer.model, len(ids)
    row, end = np.zeros((1, LONGEST), np.int32), np.full((1, LONGEST), LONGEST, np.int32)
    row[0, :n] = ids
    states = jax.jit(model.functions.hidden_states)
    hidden = states(model.params, row, np.arange(LONGEST)[None], end)[0, :n]
    head = model.functions.unembedding(model.params)
    assert (head.bias, head.scale, head.softcap) == (None, 1.0, None)
    z = np.asarray(hidden, np.float64) @ np.asarray(from_storage(head.weight), np.float64).T
    z -= z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a.top_id, b.top_id)
        for name in ("logprob", "top_logprob"):
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def plain(scorers):
    """What a run gives that does nothing out of the way."""
    return fresh(scorers("tiny-llama3")).score_sequences(asked(), top=TOP)


@pytest.mark.slow
def test_they_are_those_of_full_logits(scorers, plain):
    for one, scores in zip(asked(), plain, strict=True):
        assert (scores.top_id.dtype, scores.top_logprob.dtype) == (np.int32, np.float32)
        assert scores.top_id.shape == scores.top_logprob.shape == (one.n_scored, TOP)
        if not one.n_scored:
            continue
        every = full_logprobs(scorers("tiny-llama3"), one.input_ids)
        at = np.full(one.n_scored, -1) if len(one.choices) else np.arange(-one.n_scored, 0)
        want = np.argsort(-every[at], axis=1, kind="stable")[:, :TOP]
        np.testing.assert_array_equal(scores.top_id, want)
        exact = np.take_along_axis(every[at], want, axis=1)
        np.testing.assert_allclose(scores.top_logprob, exact, atol=1e-5, rtol=0)


def test_without_them_there_is_room_for_none(scorers, plain):
    got = fresh(scorers("tiny-llama3")).score_sequences(asked())
    for one, other, more in zip(asked(), got, plain, strict=True):
        assert other.top_id.shape == other.top_logprob.shape == (one.n_scored, 0)
        for name in (*COLUMNS, "greedy"):
            np.testing.assert_allclose(getattr(other, name), getattr(more, name), atol=1e-6, rtol=0)


@pytest.mark.parametrize("late", [False, True])
def test_in_halves(scorers, plain, late):
    scorer = fresh(scorers("tiny-llama3"), batch_tokens=1024)
    refused, *patches = short_of_memory(scorer, 256, late=late)
    with patches[0], patches[1]:
        assert_same(scorer.score_sequences(asked(), top=TOP), plain)
    assert refused


@pytest.mark.slow
def test_behind_a_prefix(scorers, monkeypatch):
    draw = np.random.default_rng(4)
    prompt = draw.integers(5, 1200, 300)
    own = [draw.integers(5, 1200, int(draw.integers(3, 30))) for _ in range(60)]
    sequences = [TokenSequence(np.r_[prompt, ids].astype(np.int32), 300) for ids in own]
    loaded = scorers("tiny-llama3")
    want = fresh(loaded, batch_tokens=1024).score_sequences(sequences, top=TOP)
    monkeypatch.setattr("jaxscore.engine.planner.LEAST_SAVED_CPU", 0)
    monkeypatch.setattr("jaxscore.engine.planner.LEAST_SHARE", 0)
    scorer = fresh(loaded, batch_tokens=1024)
    assert_same(scorer.score_sequences(sequences, top=TOP), want)
    assert any(program.name[0] == "prefix" for program in scorer.engine.programs.compiled)


@pytest.mark.slow
def test_reproducible(scorers, plain):
    """One text in a row; its bits are those that it has alone."""
    loaded = scorers("tiny-llama3")
    scorer = Scorer(loaded.model, loaded.encoder, reproducible=True)
    got = scorer.score_sequences(asked(), top=TOP)
    assert_same(got, plain)
    for k in (0, 23, 25):
        [alone] = scorer.score_sequences([asked()[k]], top=TOP)
        assert alone.top_logprob.tobytes() == got[k].top_logprob.tobytes()
        assert alone.top_id.tobytes() == got[k].top_id.tobytes()


@pytest.mark.slow
def test_each_number_has_programs_of_its_own(scorers):
    scorer = fresh(scorers("tiny-llama3"))
    for _ in range(2):
        for top in (0, 1, TOP):
            for one in scorer.score_sequences(asked()[:3], top=top):
                assert one.top_id.shape[1] == top
    kinds = [program.name[0] for program in scorer.engine.programs.compiled]
    assert kinds == ["score", "score with top 1", f"score with top {TOP}"]


def test_what_is_refused(scorers):
    scorer = fresh(scorers("tiny-llama3"))
    size = scorer.model.vocab_size
    for top in (-1, size + 1):
        with pytest.raises(ValueError, match=f"top is {top}, expected 0 to {size}"):
            scorer.score_sequences(asked(), top=top)
    with pytest.raises(TypeError):
        scorer.score_sequences(asked(), top=1.0)
    with pytest.raises(ValueError, match="measures hold 'ranks', expected some of deviation, rank"):
        scorer.score_sequences(asked(), measures=["rank", "ranks"])

"""One request that cannot be scored fails alone, with a message that says what to do."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore import Request
from jaxscore.plan.requests import TokenSequence
from jaxscore.types.requests import LabelRequest
from jaxscore.types.results import ScoredRequest
from tests.conftest import MODELS
from tests.test_scorer import COLUMNS, fresh

GOOD = Request("good", "The cat", " sat down")


def assert_kept(scorer, others):
    """Requests beside those that fail get what they get alone."""
    [want] = scorer.score([GOOD])
    *_, got = scorer.score([*others, GOOD])
    assert got.error is None
    for name in COLUMNS:
        np.testing.assert_allclose(getattr(got, name), getattr(want, name), atol=1e-5, rtol=0)


def assert_failed(scored, *words):
    assert scored.error is not None
    for word in words:
        assert word in scored.error
    assert (scored.n_tokens, scored.tokens, scored.sum_logprob) == (0, [], None)
    assert len(scored.logprob) == len(scored.entropy) == len(scored.greedy) == 0


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_request_longer_than_the_positions_fails_alone(scorers, name):
    scorer = fresh(scorers(name), max_positions=32)
    long = Request("long", "and then" + " and then" * 40, " sat")
    [scored] = scorer.score([long])
    n = len(scorer.encoder.encode([long])[0][0].ids)
    assert_failed(scored, f"{n} tokens", "2 of them continuation", "takes 32", "--truncate left")
    assert_kept(scorer, [long])


@pytest.mark.slow
def test_the_longest_request_that_fits(scorers):
    # The last token is a target and takes no position.
    random = np.random.default_rng(0)
    ids = random.integers(5, 1200, 1026).astype(np.int32)
    scorer = fresh(scorers("tiny-gpt2"), batch_tokens=1024)
    [scores] = scorer.score_sequences([TokenSequence(ids[:1025], 1000)])
    assert np.isfinite(scores.logprob).all()
    assert len(scores.logprob) == 25
    with pytest.raises(ValueError, match="sequence 0: 1026 tokens"):
        scorer.score_sequences([TokenSequence(ids, 1000)])


def test_a_text_that_is_too_long_for_certain_says_what_to_do(scorers):
    scorer = fresh(scorers("tiny-gpt2"), max_positions=32)
    long = "and then " * 1_000
    [context, alone] = scorer.score([Request(0, long, " sat"), Request(1, "", long)])
    assert_failed(context, "9004 characters", "32 positions", "shorten it, or drop its oldest")
    assert_failed(alone, "9000 characters", "shorten it")
    assert "--truncate" not in alone.error
    [kept] = scorer.score([Request(0, long, " sat")], truncate="left")
    [(whole,)] = scorer.encoder.encode([Request(0, long, " sat")])
    assert (kept.error, kept.truncated) == (None, len(whole.ids) - 33)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("boundary", ["joint", "separate"])
def test_truncate_left_scores_what_is_left_after_the_bos(scorers, name, boundary):
    scorer = fresh(scorers(name), max_positions=32)
    long = Request("long", "and then" + " and then" * 40, " sat down")
    [scored] = scorer.score([long], truncate="left", boundary=boundary)
    assert scored.error is None

    [(whole,)] = scorer.encoder.encode([long], boundary)
    over = len(whole.ids) - 33
    assert scored.truncated == over > 0
    keep = len(scorer.encoder.prefix)
    assert keep == (name == "tiny-llama3")
    ids = np.concatenate([whole.ids[:keep], whole.ids[keep + over :]])
    [want] = scorer.score_sequences([TokenSequence(ids, whole.start - over)])
    for column in COLUMNS:
        np.testing.assert_allclose(
            getattr(scored, column), getattr(want, column), atol=1e-5, rtol=0
        )
    assert_kept(scorer, [long])


def test_truncation_changes_nothing_that_fits(scorers):
    scorer = fresh(scorers("tiny-llama3"))
    [plain], [cut] = scorer.score([GOOD]), scorer.score([GOOD], truncate="left")
    assert cut.truncated == 0
    np.testing.assert_allclose(plain.logprob, cut.logprob, atol=1e-5, rtol=0)


@pytest.mark.parametrize("truncate", [None, "left"])
def test_a_continuation_that_is_itself_too_long_fails(scorers, truncate):
    scorer = fresh(scorers("tiny-llama3"), max_positions=32)
    long = Request("long", "The cat", " and then" * 40)
    [scored] = scorer.score([long], truncate=truncate)
    assert_failed(scored, "the model takes 32", "shorten it")
    assert "--truncate" not in scored.error
    assert_kept(scorer, [long])


def test_an_empty_continuation_has_empty_arrays_and_no_sums(scorers):
    for boundary in ("joint", "exact", "separate", "skip_context", "reencoded"):
        [scored] = scorers("tiny-llama3").score([Request("", "The cat", "")], boundary=boundary)
        assert scored.error is None
        assert scored.tokens == scored.token_ids.tolist() == scored.greedy.tolist() == []
        assert [len(getattr(scored, name)) for name in COLUMNS] == [0, 0, 0]
        assert (scored.n_tokens, scored.n_scored) == (0, 0)
        assert scored.sum_logprob is scored.mean_logprob is scored.perplexity is None
        assert scored.mean_entropy is scored.mean_self_certainty is None


@pytest.mark.parametrize("name", MODELS)
def test_a_first_token_without_bos_has_no_probability(scorers, name):
    [scored] = scorers(name).score([Request(0, "", "The cat")])
    bos = name == "tiny-llama3"
    assert scored.tokens[0] == "The"
    assert scored.scored.tolist() == [bos, True, True]
    for column in COLUMNS:
        assert np.isnan(getattr(scored, column)).tolist() == [not bos, False, False]
    assert bos or not scored.greedy[0]
    known = scored.logprob[scored.scored].astype(np.float64)
    assert scored.n_scored == len(known) == scored.n_tokens - (not bos)
    assert scored.sum_logprob == pytest.approx(known.sum(), rel=1e-12)
    assert scored.mean_logprob == pytest.approx(known.sum() / len(known), rel=1e-12)
    assert scored.perplexity == pytest.approx(math.exp(-known.sum() / len(known)), rel=1e-12)


def test_a_lone_first_token_has_no_sums(scorers):
    [scored] = scorers("tiny-gpt2").score([Request(0, "", "The")])
    assert (scored.n_tokens, scored.n_scored, scored.error) == (1, 0, None)
    assert scored.sum_logprob is scored.perplexity is scored.mean_entropy is None


def test_a_token_beyond_the_vocabulary_fails_its_request(scorers):
    base = scorers("tiny-qwen2")
    ids = base.encoder.encode([GOOD, Request("bad", "The", " zebra")])
    most = int(max(ids[0][0].ids.max(), 0))
    assert int(ids[1][0].ids.max()) > most
    scorer = fresh(base, vocab_size=most + 1)
    bad = Request("bad", "The", " zebra")
    [scored] = scorer.score([bad])
    assert_failed(scored, "beyond the model's vocabulary", str(most + 1), "do not belong together")
    assert_kept(scorer, [bad])
    last, first = (TokenSequence(np.array([5, k], np.int32), 1) for k in (most, most + 1))
    assert len(scorer.score_sequences([last])) == 1
    with pytest.raises(ValueError, match=rf"sequence 1: token id {most + 1} is beyond"):
        scorer.score_sequences([last, first])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_weights_fail_the_request_and_write_no_nan(scorers, value):
    base = scorers("tiny-llama3")
    broken = jax.tree.map(lambda x: jnp.full_like(x, value), base.model.params)
    [empty, scored] = fresh(base, params=broken).score([Request("", "The cat", ""), GOOD])
    assert_failed(scored, "not finite", "check the weights")
    assert empty.error is None


def test_an_unknown_boundary_is_refused(scorers):
    with pytest.raises(ValueError, match="boundary is 'middle', expected one of 'joint', 'exact'"):
        scorers("tiny-llama3").score([GOOD], boundary="middle")


def test_perplexity_overflow_is_infinite():
    improbable = np.array([-1000.0], np.float32)
    scored = ScoredRequest(
        "a", np.array([1], np.int32), ["a"], improbable, -improbable, -improbable, np.zeros(1, bool)
    )
    assert scored.perplexity == math.inf
    assert scored.mean_logprob == -1000.0


def test_reencoded_fails_as_a_whole(scorers):
    # Its last token alone is a position too many.
    base = scorers("tiny-gpt2")
    request = Request(0, "The cat", " sat down")
    sequences = base.encoder.encode([request], "reencoded")[0]
    longest = max(len(one.ids) for one in sequences) - 1
    fits, short = (fresh(base, max_positions=n) for n in (longest, longest - 1))
    [scored] = fits.score([request], boundary="reencoded")
    assert scored.n_scored == len(sequences) > 1
    [scored] = short.score([request], boundary="reencoded")
    assert_failed(scored, f"takes {longest - 1}")


def test_a_broken_token_reaches_only_those_that_see_it(scorers):
    """0 * NaN is NaN: without care one broken embedding would fail its whole row."""
    scorer = scorers("tiny-llama3")
    bad = scorer.encoder.encode([Request(0, "", "zebra")])[0][0].ids[1]
    params = scorer.model.params
    token = params["embed"]["token"].at[bad].set(jnp.nan)
    broken = fresh(scorer, params={**params, "embed": {"token": token}})
    failing, kept = broken.score([Request(0, "zebra", " sat"), GOOD])
    assert failing.error is not None
    [want] = scorer.score([GOOD])
    assert kept.error is None
    np.testing.assert_allclose(kept.logprob, want.logprob, atol=1e-5, rtol=0)


def test_half_a_surrogate_pair_fails_alone(scorers):
    scorer = fresh(scorers("tiny-gpt2"))
    [scored] = scorer.score([Request("odd", "a", "\ud800")])
    assert_failed(scored, "surrogate")
    assert_kept(scorer, [Request("odd", "a", "\ud800")])


def test_truncation_without_a_bos_keeps_the_whole_continuation(scorers):
    scorer = fresh(scorers("tiny-gpt2"), max_positions=4)
    five = Request(0, "The cat sat on", " a a a a a")
    [scored] = scorer.score([five], truncate="left")
    assert_failed(scored, "5 of them continuation")
    [scored] = scorer.score([Request(0, "The cat sat on", " a a a a")], truncate="left")
    assert (scored.n_tokens, scored.n_scored) == (4, 4)


def test_options_that_mean_nothing_are_refused(scorers):
    scorer = scorers("tiny-gpt2")
    with pytest.raises(ValueError, match="truncate is 'rigth'"):
        scorer.score([GOOD], truncate="rigth")
    with pytest.raises(ValueError, match="window is 0"):
        scorer.stream([GOOD], window=0)


@pytest.mark.parametrize(
    ("ids", "start", "words"),
    [
        ([5, -1], 1, "token id -1 is negative"),
        ([5, 6.0], 1, "expected a flat list of integers"),
        ([5, 6], -1, "starts at -1"),
        ([5, 6], 3, "starts at 3"),
    ],
)
def test_ids_and_starts_that_mean_another_token_are_refused(scorers, ids, start, words):
    """A negative id would be looked up from the end of the table."""
    good = TokenSequence(np.array([5, 6], np.int32), 1)
    with pytest.raises(ValueError, match=f"sequence 1: .*{words}"):
        scorers("tiny-gpt2").score_sequences([good, TokenSequence(np.array(ids), start)])


@pytest.mark.parametrize("name", MODELS)
def test_truncate_left_without_special_tokens_keeps_no_first_token(scorers, name):
    scorer = fresh(scorers(name), max_positions=32)
    long = Request("long", "one two three" + " and then" * 40, " sat down")
    [scored] = scorer.score([long], truncate="left", special_tokens=False)
    [(whole,)] = scorer.encoder.encode([long], special_tokens=False)
    over = len(whole.ids) - 33
    assert scored.truncated == over > 0
    [want] = scorer.score_sequences([TokenSequence(whole.ids[over:], whole.start - over)])
    for column in COLUMNS:
        np.testing.assert_allclose(
            getattr(scored, column), getattr(want, column), atol=1e-5, rtol=0
        )


def test_a_probability_of_0_makes_self_certainty_infinite_and_is_named(scorers):
    base = scorers("tiny-llama3")
    token, functions = scorer_token(base), base.model.functions

    def unembedding(params):
        head = functions.unembedding(params)
        bias = jnp.zeros(base.model.vocab_size).at[token].set(-jnp.inf)
        return head._replace(bias=bias)

    scorer = fresh(base, functions=functions._replace(unembedding=unembedding))
    [scored] = scorer.score([GOOD])
    assert_failed(scored, "self-certainty is infinite", "minus infinity")
    [raw] = scorer.score_sequences([one for (one,) in scorer.encoder.encode([GOOD])])
    assert np.isfinite(raw.logprob).all()
    assert np.isfinite(raw.entropy).all()
    # Labels are probabilities alone.
    [labels] = scorer.label([LabelRequest("a", "The cat", (5, 6))])
    assert labels.error is None


def scorer_token(scorer):
    """A token that the requests here do not have."""
    used = {int(id) for (one,) in scorer.encoder.encode([GOOD]) for id in one.ids}
    return next(id for id in range(7, 100) if id not in used)

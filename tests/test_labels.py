"""The next-token distribution over labels, against the same tokens scored as continuations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore import Request, Scorer
from jaxscore.errors import InputError
from jaxscore.types.requests import LabelRequest
from tests.conftest import MODELS

pytestmark = pytest.mark.numeric

PROMPT = "Is the cat on the mat? Answer Yes or No:"
LABELS = ("Yes", "No", "A")


@pytest.mark.parametrize("name", MODELS)
def test_labels_have_the_probability_of_their_tokens_as_continuations(scorers, name):
    scorer = scorers(name)
    ids = scorer.encoder.first_ids(LABELS)
    [scored] = scorer.label([LabelRequest("q", PROMPT, ids)])
    first = [scorer.encoder.tokenizer.decode([id]) for id in ids]
    want = [
        one.logprob[0]
        for one in scorer.score(
            [Request(k, PROMPT, t) for k, t in enumerate(first)], boundary="separate"
        )
    ]
    np.testing.assert_allclose(scored.logprob, want, atol=1e-5)
    p = np.exp(np.array(want, np.float64))
    np.testing.assert_allclose(scored.probability, p / p.sum(), atol=1e-5)
    assert scored.probability.sum() == pytest.approx(1.0, abs=1e-12)
    assert scored.outside == pytest.approx(1 - p.sum(), abs=1e-5)
    assert 0 < scored.outside < 1


def test_requests_keep_their_order_and_share_their_prompt(scorers):
    base = scorers("tiny-llama3")
    scorer = Scorer(base.model, base.encoder)
    ids = scorer.encoder.first_ids(LABELS)
    asked = [LabelRequest(k, PROMPT + " " * (k % 2), ids[:: -1 if k > 1 else 1]) for k in range(4)]
    got = scorer.label(asked)
    assert [one.id for one in got] == [0, 1, 2, 3]
    for forward, backward in ((got[0], got[2]), (got[1], got[3])):
        np.testing.assert_array_equal(forward.logprob, backward.logprob[::-1])
    assert scorer.statistics.tokens_unique < 2 * len(scorer.encoder.prompt_ids([PROMPT])[0])
    assert scorer.label([]) == []


def test_no_labels_and_labels_twice_are_named(scorers):
    scorer = scorers("tiny-gpt2")
    ids = scorer.encoder.first_ids(LABELS)
    none, twice, good = scorer.label(
        [LabelRequest(k, PROMPT, own) for k, own in enumerate([(), (*ids, ids[0]), ids])]
    )
    assert "label ids are []" in none.error
    assert f"{ids[0]}], expected at least one, each once" in twice.error
    assert good.error is None


@pytest.mark.parametrize(
    ("id", "words"),
    [(-1, "token id -1 is negative"), (10**6, "beyond"), (2.0, "expected integers"),
     (True, "expected integers"), ("5", "expected integers"), (2**70, "integers")],
)  # fmt: skip
def test_a_label_id_that_is_no_token_fails_its_request_alone(scorers, id, words):
    """-1 would be the last token of the vocabulary."""
    scorer = scorers("tiny-gpt2")
    bad, good = scorer.label([LabelRequest(0, PROMPT, (5, id)), LabelRequest(1, PROMPT, (5, 6))])
    assert words in (bad.error or "")
    assert len(bad.logprob) == 0
    assert good.error is None


def test_many_labels_are_one_text(scorers):
    """Not a copy of the prompt for each, and the same numbers as label by label."""
    base = scorers("tiny-llama3")
    scorer = Scorer(base.model, base.encoder)
    ids = tuple(range(20, 40))
    [got] = scorer.label([LabelRequest(0, PROMPT, ids)])
    n = len(scorer.encoder.prompt_ids([PROMPT])[0])
    assert (scorer.statistics.sequences, scorer.statistics.tokens_given) == (1, n + len(ids))
    each = scorer.label([LabelRequest(k, PROMPT, (k,)) for k in ids])
    np.testing.assert_allclose(got.logprob, [one.logprob[0] for one in each], atol=1e-5, rtol=0)


def test_prompts_that_cannot_be_scored_are_named_and_the_others_kept(scorers):
    scorer = scorers("tiny-gpt2")
    ids = scorer.encoder.first_ids(LABELS)
    prompts = [PROMPT, "", "\ud800", "word " * 2000]
    good, *bad = scorer.label([LabelRequest(k, p, ids) for k, p in enumerate(prompts)])
    assert good.error is None
    for one, part in zip(bad, ("no tokens", "surrogate", "positions"), strict=True):
        assert part in (one.error or "")
        assert (len(one.logprob), len(one.probability)) == (0, 0)
    [cut] = scorer.label([LabelRequest(3, "word " * 2000, ids)], truncate="left")
    assert cut.error is None
    [n] = map(len, scorer.encoder.prompt_ids(["word " * 2000]))
    assert (cut.truncated, good.truncated) == (n - scorer.model.max_positions, 0)
    nan = jax.tree.map(lambda x: jnp.full_like(x, np.nan), scorer.model.params)
    broken = Scorer(dataclasses.replace(scorer.model, params=nan), scorer.encoder)
    [failed] = broken.label([LabelRequest(0, PROMPT, ids)])
    assert "not finite" in (failed.error or "")


def test_labels_that_cannot_be_told_apart_are_refused(scorers):
    encoder = scorers("tiny-gpt2").encoder
    with pytest.raises(InputError, match="'Correct' and 'Correctly' both begin with token 'C"):
        encoder.first_ids(["Wrong", "Correct", "Correctly"])
    with pytest.raises(InputError, match="label '': no tokens"):
        encoder.first_ids(["Yes", ""])


@pytest.mark.parametrize("name", MODELS)
def test_prompt_ids_have_one_bos(scorers, name):
    encoder = scorers(name).encoder
    plain, again = encoder.prompt_ids(
        ["The cat", "".join(encoder.tokens(np.array(encoder.prefix))) + "The cat"]
    )
    assert plain.tolist() == again.tolist()
    assert plain.tolist()[: len(encoder.prefix)] == encoder.prefix


@pytest.mark.parametrize("name", MODELS)
def test_without_special_tokens_a_text_begins_with_itself(scorers, name):
    encoder = scorers(name).encoder
    request = Request(0, "The cat", " sat")
    # `last_query` counts the special tokens of a query alone, and so starts elsewhere.
    for boundary in ("joint", "exact", "separate", "skip_context", "reencoded"):
        sequences = encoder.encode([request], boundary, special_tokens=False)[0]
        marked = encoder.encode([request], boundary)[0]
        for bare, full in zip(sequences, marked, strict=True):
            assert [*encoder.prefix, *bare.ids.tolist()] == full.ids.tolist()
            assert bare.start == full.start - len(encoder.prefix)


@pytest.mark.parametrize("name", MODELS)
def test_after_reads_each_position_one_token_later(scorers, name):
    """What `after` reads at token i is what `separate` reads at token i + 1."""
    scorer = scorers(name)
    request = Request(0, "Question: how many days?\n", "The answer is 41.")
    [before] = scorer.score([request], boundary="separate", special_tokens=False)
    [after] = scorer.score([request], boundary="after", special_tokens=False)
    assert before.n_scored == after.n_scored == len(after.entropy)
    np.testing.assert_allclose(after.self_certainty[:-1], before.self_certainty[1:], atol=1e-5)
    np.testing.assert_allclose(after.entropy[:-1], before.entropy[1:], atol=1e-5)
    assert after.token_ids[:-1].tolist() == before.token_ids[1:].tolist()
    [nothing] = scorer.score([Request(0, "The cat", "")], boundary="after")
    assert nothing.n_tokens == 0

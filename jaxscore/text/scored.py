"""Scores of token sequences as the results of the requests that asked for them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxscore.plan.token_requests import SequenceScores
from jaxscore.results import Choice, LabelScores, ScoredRequest, failed
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.preparing import Prepared

NOT_FINITE = (
    "the model gave a log-probability or entropy that is not finite; "
    "check the weights, or score in float32"
)
CERTAINTY_INFINITE = (
    "its self-certainty is infinite: the model gives some token a logit of minus infinity, and so "
    "a probability of 0"
)


def scored_request(
    id: str | int, prepared: Prepared, scores: Sequence[SequenceScores], encoder: TextEncoder
) -> ScoredRequest:
    """The result of one request; it has `error` set where its numbers are not finite."""
    if prepared.error:
        return failed(id, prepared.error)
    for one in scores:
        if not (np.isfinite(one.logprob).all() and np.isfinite(one.entropy).all()):
            return failed(id, NOT_FINITE)
    if not all(np.isfinite(one.self_certainty).all() for one in scores):
        return failed(id, CERTAINTY_INFINITE)
    ids = [sequence.ids[sequence.start :] for sequence in prepared.sequences]

    def joined(column: int, fill: Any) -> np.ndarray:
        """All sequences' values, with `fill` for tokens that have nothing before them."""
        parts = [
            one[column]
            if len(own) == len(one[column])
            else np.pad(one[column], (len(own) - len(one[column]), 0), constant_values=fill)
            for own, one in zip(ids, scores, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, bool if column == 3 else "f4")

    token_ids = ids[0] if len(ids) == 1 else np.concatenate([np.zeros(0, np.int32), *ids])
    return ScoredRequest(
        id=id,
        token_ids=token_ids,
        tokens=encoder.tokens(token_ids),
        logprob=joined(0, np.nan),
        entropy=joined(1, np.nan),
        self_certainty=joined(2, np.nan),
        greedy=joined(3, False),
        truncated=prepared.truncated,
    )


def label_scores(id: str | int, prepared: Prepared, scores: SequenceScores | None) -> LabelScores:
    """The result of one label request; `scores` is None where it was not scored."""
    nothing = np.zeros(0)
    if scores is None:
        return LabelScores(id, nothing, nothing, 0.0, prepared.error)
    logprob = scores.logprob.astype(np.float64)
    if not np.isfinite(logprob).all():
        return LabelScores(id, nothing, nothing, 0.0, NOT_FINITE)
    total = np.exp(logprob).sum()
    weights = np.exp(logprob - logprob.max())
    outside = max(0.0, 1.0 - float(total))
    cut = prepared.truncated
    return LabelScores(id, logprob, weights / weights.sum(), outside, truncated=cut)


def choice(prompt: str, options: Sequence[str], scored: Sequence[ScoredRequest]) -> Choice:
    """Which of a few texts comes after a prompt, from the score of each."""
    nothing = np.zeros(0)
    for option, one in zip(options, scored, strict=True):
        if one.error is not None or not 0 < one.n_scored == one.n_tokens:
            why = one.error or (
                f"{one.n_scored} of its {one.n_tokens} tokens have a probability; a prompt, or a "
                "tokenizer with a BOS, gives the first token one"
            )
            return Choice(prompt, tuple(options), nothing, nothing, f"option {option!r}: {why}")
    logprob = np.array([one.sum_logprob for one in scored], np.float64)
    weights = np.exp(logprob - logprob.max())
    return Choice(prompt, tuple(options), logprob, weights / weights.sum())

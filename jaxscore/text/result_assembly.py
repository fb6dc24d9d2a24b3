"""Assembles the results of requests from the scores of their token sequences."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxscore.plan.requests import NO_TOP_ID, NO_TOP_LOGPROB, SequenceScores
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenize_requests import TokenizedRequest, Window
from jaxscore.types.results import Choice, LabelScores, ScoredRequest, TopTokens, failed

TOGETHER = 256  # requests assembled at a time
NOT_FINITE = (
    "the model gave a log-probability or entropy that is not finite; "
    "check the weights, or score in float32"
)
CERTAINTY_INFINITE = (
    "its self-certainty is infinite: the model gives some token a logit of minus infinity, and so "
    "a probability of 0"
)
DIVERGENCE_INFINITE = (
    "its divergence is infinite: one model gives some token a probability of 0, and the other does "
    "not"
)


def assemble_scores(
    window: Window, scores: Sequence[SequenceScores], encoder: TextEncoder
) -> Iterator[ScoredRequest]:
    """Assemble the results of a window's requests; non-finite scores become an error.

    Args:
        scores: scores of all sequences of the window, in order.
    """
    left = iter(scores)
    for first in range(0, len(window), TOGETHER):
        some = window[first : first + TOGETHER]
        found = [[*itertools.islice(left, len(item.sequences))] for _, item in some]
        ids = [_scored_ids(item) for _, item in some]
        names = encoder.tokens(np.concatenate(ids))
        finite = _error([scores for sequences in found for scores in sequences]) is None
        at = 0
        for (request, item), own, token_ids in zip(some, found, ids, strict=True):
            tokens = names[at : at + len(token_ids)]
            at += len(token_ids)
            if (why := item.error or (None if finite else _error(own))) is not None:
                yield failed(request.id, why)
                continue
            terms = own[0] if len(own) == 1 and len(own[0].logprob) == len(tokens) else None
            if terms is None:
                terms = _whole(item, own)
            yield ScoredRequest(
                request.id,
                token_ids,
                tokens,
                terms.logprob,
                terms.entropy,
                terms.self_certainty,
                terms.greedy,
                item.truncated,
                measures=dict(terms.measures),
                top=_top(terms, encoder),
            )


def _whole(item: TokenizedRequest, own: Sequence[SequenceScores]) -> SequenceScores:
    """Join the scores of a request's sequences.

    Tokens with nothing before them have NaN, or False and -1 in arrays without NaN.
    """

    def joined(name: str, fill: Any) -> np.ndarray:
        return _joined(item, [getattr(scores, name) for scores in own], fill)

    return SequenceScores(
        joined("logprob", np.nan),
        joined("entropy", np.nan),
        joined("self_certainty", np.nan),
        joined("greedy", False),
        joined("top_id", -1) if own else NO_TOP_ID,
        joined("top_logprob", np.nan) if own else NO_TOP_LOGPROB,
        {
            name: _joined(item, [scores.measures[name] for scores in own], np.nan)
            for name in (own[0].measures if own else ())
        },
    )


def _top(terms: SequenceScores, encoder: TextEncoder) -> TopTokens | None:
    """The most probable tokens at each position, or None if they were not requested."""
    id, logprob = terms.top_id, terms.top_logprob
    if not id.shape[1]:
        return None
    known, place = np.unique(id, return_inverse=True)
    names = [
        "" if token_id < 0 else name
        for token_id, name in zip(known, encoder.tokens(known.clip(0)), strict=True)
    ]
    return TopTokens(id, logprob, [[names[k] for k in row] for row in place.reshape(id.shape)])


def _error(scores: Sequence[SequenceScores]) -> str | None:
    """What is not finite in the sequences' scores, or None."""
    if not scores:
        return None
    terms = [part.logprob for part in scores] + [part.entropy for part in scores]
    measures = [values for part in scores for values in part.measures.values()]
    if not np.isfinite(np.concatenate(terms)).all() or any(
        np.isnan(values).any() for values in measures
    ):
        return NOT_FINITE
    if "kl" in scores[0].measures:  # the scores of a model pair have no self-certainty
        infinite = any(np.isinf(values).any() for values in measures)
        return DIVERGENCE_INFINITE if infinite else None
    if not np.isfinite(np.concatenate([part.self_certainty for part in scores])).all():
        return CERTAINTY_INFINITE
    return None


def _scored_ids(item: TokenizedRequest) -> np.ndarray:
    """Token ids of the continuation, int32."""
    if len(item.sequences) == 1:
        [sequence] = item.sequences
        return sequence.ids[sequence.start :]
    return np.concatenate([np.zeros(0, np.int32), *(s.ids[s.start :] for s in item.sequences)])


def _joined(item: TokenizedRequest, values: Sequence[np.ndarray], fill: Any) -> np.ndarray:
    """Join the sequences' values, with `fill` for tokens with nothing before them.

    Args:
        values: values of each sequence, [n_scored] or [n_scored, k].
    """
    parts = []
    for sequence, part in zip(item.sequences, values, strict=True):
        missing = len(sequence.ids) - sequence.start - len(part)
        if missing:
            lacking = np.full((missing, *part.shape[1:]), fill, part.dtype)
            part = np.concatenate([lacking, part])
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, bool if fill is False else "f4")


def assemble_label_scores(
    id: str | int, prepared: TokenizedRequest, scores: SequenceScores | None
) -> LabelScores:
    """Assemble the result of a label request; `scores` is None if it was not scored."""
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


def assemble_choice(prompt: str, options: Sequence[str], scored: Sequence[ScoredRequest]) -> Choice:
    """Assemble the choice among texts after a prompt from their scores."""
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

"""Assembles the results of requests from the scores of their token sequences."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxscore.plan.requests import SequenceScores
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenize_requests import TokenizedRequest, Window
from jaxscore.types.results import Choice, LabelScores, ScoredRequest, TopTokens, failed

TOGETHER = 256  # requests assembled at a time
FILLS = {  # values of tokens with nothing before them
    "logprob": np.nan,
    "entropy": np.nan,
    "self_certainty": np.nan,
    "greedy": False,
    "top_id": -1,
    "top_logprob": np.nan,
}
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
    remaining = iter(scores)
    for first in range(0, len(window), TOGETHER):
        part = window[first : first + TOGETHER]
        found = [[*itertools.islice(remaining, len(item.sequences))] for _, item in part]
        ids = [_scored_ids(item) for _, item in part]
        names = iter(encoder.tokens(np.concatenate(ids)))
        all_finite = _error([*itertools.chain(*found)]) is None
        for (request, item), own, token_ids in zip(part, found, ids, strict=True):
            tokens = [*itertools.islice(names, len(token_ids))]
            error = item.error or (None if all_finite else _error(own))
            if error is not None:
                yield failed(request.id, error)
                continue
            terms = own[0] if len(own) == 1 else None
            if terms is None or len(terms.logprob) < len(tokens):
                terms = _join_sequences(item, own)
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


def _join_sequences(item: TokenizedRequest, own: Sequence[SequenceScores]) -> SequenceScores:
    """Join the scores of a request's sequences.

    Tokens with nothing before them have NaN, or False and -1 in arrays without NaN.
    """
    if not own:
        empty = np.zeros(0, np.float32)
        return SequenceScores(empty, empty, empty, np.zeros(0, bool))
    fields = {
        name: _join_values(item, [getattr(scores, name) for scores in own], fill)
        for name, fill in FILLS.items()
    }
    measures = {
        name: _join_values(item, [scores.measures[name] for scores in own], np.nan)
        for name in own[0].measures
    }
    return SequenceScores(**fields, measures=measures)


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


def _join_values(item: TokenizedRequest, values: Sequence[np.ndarray], fill: Any) -> np.ndarray:
    """Join the values of sequences, [n_scored] or [n_scored, k].

    Tokens with nothing before them have `fill`.
    """
    parts = []
    for sequence, part in zip(item.sequences, values, strict=True):
        n_missing = len(sequence.ids) - sequence.start - len(part)
        parts += [np.full((n_missing, *part.shape[1:]), fill, part.dtype), part]
    return np.concatenate(parts)


def assemble_label_scores(
    id: str | int, prepared: TokenizedRequest, scores: SequenceScores | None
) -> LabelScores:
    """Assemble the result of a label request; `scores` is None if it was not scored."""
    empty = np.zeros(0)
    error = prepared.error if scores is None else None
    if scores is not None and not np.isfinite(scores.logprob).all():
        error = NOT_FINITE
    if scores is None or error is not None:
        return LabelScores(id, empty, empty, 0.0, error)
    logprob = scores.logprob.astype(np.float64)
    weights = np.exp(logprob - logprob.max())
    outside = max(0.0, 1.0 - float(np.exp(logprob).sum()))
    return LabelScores(id, logprob, weights / weights.sum(), outside, truncated=prepared.truncated)


def assemble_choice(prompt: str, options: Sequence[str], scored: Sequence[ScoredRequest]) -> Choice:
    """Assemble the choice among texts after a prompt from their scores."""
    empty = np.zeros(0)
    for option, result in zip(options, scored, strict=True):
        if result.error is not None or not 0 < result.n_scored == result.n_tokens:
            why = result.error or (
                f"{result.n_scored} of its {result.n_tokens} tokens have a probability; a prompt, "
                "or a tokenizer with a BOS, gives the first token one"
            )
            return Choice(prompt, tuple(options), empty, empty, f"option {option!r}: {why}")
    logprob = np.array([result.sum_logprob for result in scored], np.float64)
    weights = np.exp(logprob - logprob.max())
    return Choice(prompt, tuple(options), logprob, weights / weights.sum())

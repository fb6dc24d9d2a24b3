"""Assembly of the results of requests from the scores of their token sequences."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxscore.plan.requests import SequenceScores, WindowedText
from jaxscore.text.encoder import TextEncoder, TokenNames
from jaxscore.text.tokenize_requests import TokenizedRequest, Window
from jaxscore.types.results import Choice, LabelScores, ScoredRequest, TopTokens, failed

TOGETHER = 256  # number of requests assembled at a time
FILLS = {  # values of tokens without a preceding token
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
    window: Window, scores: Iterable[SequenceScores], encoder: TextEncoder
) -> Iterator[ScoredRequest]:
    """Assemble the results of a window's requests; non-finite scores become errors.

    Args:
        scores: the scores of all sequences of the window, in order.
    """
    remaining = iter(scores)
    for first in range(0, len(window), TOGETHER):
        batch = window[first : first + TOGETHER]
        batch_scores = [[*itertools.islice(remaining, len(item.sequences))] for _, item in batch]
        ids = [_scored_ids(item) for _, item in batch]
        texts = [s if isinstance(s := item.sequences, WindowedText) else None for _, item in batch]
        named = [each for each, text in zip(ids, texts, strict=True) if text is None]
        names = iter(encoder.tokens(np.concatenate([np.zeros(0, np.int32), *named])))
        all_finite = _error([*itertools.chain(*batch_scores)]) is None
        for (request, item), request_scores, token_ids, text in zip(
            batch, batch_scores, ids, texts, strict=True
        ):
            tokens: Sequence[str] = TokenNames(token_ids, encoder)
            if text is None:
                tokens = [*itertools.islice(names, len(token_ids))]
            error = item.error or (None if all_finite else _error(request_scores))
            if error is not None:
                yield failed(request.id, error)
                continue
            terms = request_scores[0] if len(request_scores) == 1 else None
            if terms is None or len(terms.logprob) < len(tokens):
                terms = _join_sequences(item, request_scores)
            end: dict[str, float] = {}
            if item.has_end:
                end = {name: float(values[-1]) for name, values in terms.measures.items()}
                terms, tokens, token_ids = _without_last(terms), tokens[:-1], token_ids[:-1]
            request_scores.clear()  # a text may have millions of tokens
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
                n_windows=1 if text is None else text.n_windows,
                end=end,
            )


def _join_sequences(item: TokenizedRequest, scores: Sequence[SequenceScores]) -> SequenceScores:
    """Join the scores of a request's sequences.

    Tokens without a preceding token get the values in `FILLS`, and NaN in measures.
    """
    if not scores:
        n = len(_scored_ids(item))
        nothing = np.full(n, np.nan, np.float32)
        return SequenceScores(nothing, nothing, nothing, np.zeros(n, bool))
    fields = {
        name: _join_values(item, [getattr(s, name) for s in scores], fill)
        for name, fill in FILLS.items()
    }
    measures = {
        name: _join_values(item, [s.measures[name] for s in scores], np.nan)
        for name in scores[0].measures
    }
    return SequenceScores(**fields, measures=measures)


def _without_last(scores: SequenceScores) -> SequenceScores:
    """Return the scores of all tokens but the last."""
    measures = {name: values[:-1] for name, values in scores.measures.items()}
    return SequenceScores._make([*(values[:-1] for values in scores[:-1]), measures])


def _top(terms: SequenceScores, encoder: TextEncoder) -> TopTokens | None:
    """Return the most probable tokens at each position, or None if they were not requested."""
    id, logprob = terms.top_id, terms.top_logprob
    if not id.shape[1]:
        return None
    unique_ids, index = np.unique(id, return_inverse=True)
    names = [
        "" if token_id < 0 else name
        for token_id, name in zip(unique_ids, encoder.tokens(unique_ids.clip(0)), strict=True)
    ]
    return TopTokens(id, logprob, [[names[k] for k in row] for row in index.reshape(id.shape)])


def _error(scores: Sequence[SequenceScores]) -> str | None:
    """Return the error of scores that are not finite, or None."""
    groups = (scores[k : k + TOGETHER] for k in range(0, len(scores), TOGETHER))
    return next(filter(None, map(_error_of, groups)), None)


def _error_of(scores: Sequence[SequenceScores]) -> str | None:
    terms = [s.logprob for s in scores] + [s.entropy for s in scores]
    measures = [values for s in scores for values in s.measures.values()]
    if not np.isfinite(np.concatenate(terms)).all() or any(
        np.isnan(values).any() for values in measures
    ):
        return NOT_FINITE
    if "kl" in scores[0].measures:  # the scores of a model pair have no self-certainty
        infinite = any(np.isinf(values).any() for values in measures)
        return DIVERGENCE_INFINITE if infinite else None
    if not np.isfinite(np.concatenate([s.self_certainty for s in scores])).all():
        return CERTAINTY_INFINITE
    return None


def _scored_ids(item: TokenizedRequest) -> np.ndarray:
    """Return the token ids of the continuation, int32."""
    sequences = [item.sequences] if isinstance(item.sequences, WindowedText) else item.sequences
    parts = [each.continuation for each in sequences]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])


def _join_values(item: TokenizedRequest, values: Sequence[np.ndarray], fill: Any) -> np.ndarray:
    """Join the values of sequences, each [n_scored] or [n_scored, k].

    Tokens without a preceding token, and those that no window scores, get `fill`.
    """
    if isinstance(item.sequences, WindowedText):
        return item.sequences.join(values, fill)
    arrays = []
    for sequence, array in zip(item.sequences, values, strict=True):
        n_missing = len(sequence.continuation) - len(array)
        arrays += [np.full((n_missing, *array.shape[1:]), fill, array.dtype), array]
    return np.concatenate(arrays)


def assemble_label_scores(
    id: str | int, prepared: TokenizedRequest, scores: SequenceScores | None
) -> LabelScores:
    """Assemble the result of a label request; `scores` is None if the request was not scored."""
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
    """Assemble the choice among texts after a prompt from the scores of the texts."""
    empty = np.zeros(0)
    for option, result in zip(options, scored, strict=True):
        if result.error is not None or not 0 < result.n_scored == result.n_tokens:
            why = result.error or (
                f"{result.n_scored} of its {result.n_tokens} tokens have a probability; the first "
                "token has one only after a prompt or a BOS"
            )
            return Choice(prompt, tuple(options), empty, empty, f"option {option!r}: {why}")
    logprob = np.array([result.sum_logprob for result in scored], np.float64)
    weights = np.exp(logprob - logprob.max())
    return Choice(prompt, tuple(options), logprob, weights / weights.sum())

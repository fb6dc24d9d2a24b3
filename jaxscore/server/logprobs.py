"""Numbers of tokens as clients read them: `logprobs` of completions and of chats."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.plan.requests import SequenceScores
from jaxscore.server.errors import not_finite
from jaxscore.text.token_bytes import TokenBytes

ENTRY = 40  # bytes of a token's string and number


class Numbers(NamedTuple):
    """Of n tokens of a text, one after the other.

    Attributes:
        ids: int [n].
        logprob: float32 [n], nats.
        top_id, top_logprob: int and float32 [n, k], the most probable first.
    """

    ids: np.ndarray
    logprob: np.ndarray
    top_id: np.ndarray
    top_logprob: np.ndarray


def numbers(ids: Sequence[int] | np.ndarray, scores: SequenceScores, k: int, which: str) -> Numbers:
    """The last tokens of a text with their scores, and k of the most probable ones.

    Args:
        ids: of the text; the scores are those of its last tokens.
        which: text that the scores are of, for people.

    Raises:
        ApiError: 500, they are not all finite.
    """
    n = len(scores.logprob)
    top_logprob = scores.top_logprob[:, :k] if k else np.zeros((n, 0), np.float32)
    top_id = scores.top_id[:, :k] if k else np.zeros((n, 0), np.int32)
    if not (np.isfinite(scores.logprob).all() and np.isfinite(top_logprob).all()):
        raise not_finite(which)
    return Numbers(np.asarray(ids)[len(ids) - n :], scores.logprob, top_id, top_logprob)


def most_probable(scores: SequenceScores, k: int, which: str) -> Numbers:
    """The most probable token after a text, as if it had been asked for.

    Args:
        scores: of `jobs.after`, with at least one most probable token.

    Raises:
        ApiError: 500, the numbers are not finite.
    """
    first = scores._replace(logprob=scores.top_logprob[:, 0])
    return numbers(scores.top_id[:, 0], first, k, which)


def joined(one: Numbers, other: Numbers) -> Numbers:
    """The tokens of both."""
    return Numbers(*map(np.concatenate, zip(one, other, strict=True)))


def size(n_tokens: int, n_top: int) -> int:
    """Bytes of the JSON of so many tokens, about."""
    return ENTRY * n_tokens * (1 + n_top)


def of_completion(
    token_bytes: TokenBytes,
    first_id: int | None,
    found: Numbers,
    starts: Sequence[int],
    *,
    as_ids: bool,
) -> dict[str, list[Any]]:
    """The object `logprobs` of a completion.

    Args:
        first_id: a token that stands before the others and has no numbers; None where there is
            none.
        found: of the others.
        starts: characters before each token, `first_id` included.
        as_ids: write token_id:7 in place of each token's text, so that no two are alike.
    """

    def name(id: int) -> str:
        return f"token_id:{id}" if as_ids else token_bytes.text(id)

    ids = found.ids.tolist()
    tops: list[Any] = []
    rows = zip(ids, list(found.logprob), found.top_id.tolist(), found.top_logprob, strict=True)
    for id, own, some, values in rows:
        # The token's entry is the number of `token_logprobs` itself: clients compare the two.
        row: dict[str, Any] = {}
        for other, value in zip(some, list(values), strict=True):
            row.setdefault(name(other), own if other == id else value)
        row.setdefault(name(id), own)
        tops.append(row)
    none = [] if first_id is None else [None]
    return {
        "tokens": [name(id) for id in ([] if first_id is None else [first_id]) + ids],
        "token_logprobs": [*none, *found.logprob],
        "top_logprobs": [*none, *tops],
        "text_offset": list(starts),
    }


def of_chat(token_bytes: TokenBytes, found: Numbers) -> list[dict[str, Any]]:
    """The list `logprobs.content` of a chat: ids that read alike have an entry each."""

    def entry(id: int, logprob: Any) -> dict[str, Any]:
        raw = token_bytes.of(id)
        return {"token": token_bytes.text(id), "logprob": logprob, "bytes": list(raw)}

    out = []
    for id, own, some, values in zip(
        found.ids.tolist(),
        list(found.logprob),
        found.top_id.tolist(),
        found.top_logprob,
        strict=True,
    ):
        top = [
            entry(other, own if other == id else value)
            for other, value in zip(some, list(values), strict=True)
        ]
        out.append({**entry(id, own), "top_logprobs": top})
    return out

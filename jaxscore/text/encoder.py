"""Encodes a context and a continuation, and finds where the continuation starts.

A token may straddle the two, so a policy decides where it starts:

    context "ANSWER: "   continuation "Oslo"      tokens  ANSWER | : | ␠Oslo
    joint         encode once; from the first token that ends after the context's last non-blank
    exact         the same after the context's last character, blanks included
    separate      encode each and join the ids: ANSWER | : | ␠ | Oslo
    skip_context  encode once; skip as many tokens as the context alone has
    last_query    encode once; keep as many tokens as the continuation alone has, its special
                  tokens and, on a GPT-2 tokenizer, a leading blank included
    reencoded     separate, but after each token decode it, append it and encode the whole again
    after         separate, but each token's terms are read after it instead of before it: the
                  next token is scored, and after the last one id 0, whose log-probability is
                  meaningless

The last four repeat published scripts (ChronoLogic, ProbSem, Path Evaluation, Self-Certainty). They
can count a token too few or too many, or score other ids; `audit_boundaries` counts how often.
"""

import functools
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from jaxscore.errors import InputError, check_choice
from jaxscore.plan.requests import TokenSequence
from jaxscore.text.bounded_tokenizer import (
    BoundedTokenizer,
    Ids,
    Piece,
    TextError,
    decode_ids,
    encode_each,
)
from jaxscore.text.tokenizer import copy_backend, special_prefix
from jaxscore.types.requests import GenerationRequest, LabelRequest, Request

Boundary = Literal["joint", "exact", "separate", "skip_context", "last_query", "reencoded", "after"]
BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)
# These policies score the same tokens if the context is empty.
EQUAL_WITHOUT_CONTEXT: set[Boundary] = {"joint", "exact", "separate"}

Encoded = tuple[TokenSequence, ...]  # one request: one sequence, or one per token if reencoded


class TextEncoder:
    """Encodes batches of text as `TokenSequence`s by any boundary policy.

    Attributes:
        remarks: warnings about the tokenizer's files.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.remarks: tuple[str, ...] = vars(tokenizer).get("remarks", ())
        self.bounded = BoundedTokenizer(copy_backend(tokenizer))
        # Only the special tokens before a text: an EOS after it would separate context and
        # continuation.
        self.prefix = special_prefix(tokenizer)
        self._names = np.zeros(0, object)  # by id, as far as they are known
        self._known = np.zeros(0, bool)
        self._lock = threading.Lock()

    def encode(
        self,
        requests: Sequence[Request],
        boundary: Boundary = "joint",
        *,
        special_tokens: bool = True,
        most: int | None = None,
    ) -> list[Encoded]:
        """Encode requests, or take the ids that they have.

        Args:
            boundary: one of `BOUNDARIES`; of ids only "after" differs from the others.
            special_tokens: whether to add the tokenizer's BOS to a text without one.
            most: positions of the model if longer texts fail; None is no limit.

        Returns:
            One sequence for each request; with "reencoded" one for each token of the
            continuation, which scores that token alone.

        Raises:
            ValueError: the policy does not exist.
            TextError: the tokenizer cannot read a text, or the text certainly has more than
                `most` + 1 tokens; `bounded_tokenizer.encode_each` finds which.
        """
        check_choice("boundary", boundary, BOUNDARIES)
        prefix = self.prefix if special_tokens else []
        encoded = iter(
            self._encode([r for r in requests if r.token_ids is None], boundary, prefix, most)
        )
        return [
            next(encoded)
            if request.token_ids is None
            else (_sequence(*request.token_ids, boundary),)
            for request in requests
        ]

    def _encode(
        self, requests: Sequence[Request], boundary: Boundary, prefix: list[int], most: int | None
    ) -> list[Encoded]:
        """Encode texts; see `encode`."""
        if boundary == "reencoded":
            return self._reencoded(requests, prefix, most)
        contexts = [request.context for request in requests]
        continuations = [request.continuation for request in requests]
        texts = [a + b for a, b in zip(contexts, continuations, strict=True)]
        if boundary in ("joint", "exact"):
            limits = [len(c if boundary == "exact" else c.rstrip()) for c in contexts]
            ids, starts = self._split_at(texts, limits, prefix, most)
        elif boundary in ("separate", "after"):
            heads, tails = self._ids(contexts, most), self._ids(continuations, most)
            ids = [_with_prefix(prefix, _join(a, b)) for a, b in zip(heads, tails, strict=True)]
            if boundary == "after":
                ids = [_join(a, [0] * bool(len(b))) for a, b in zip(ids, tails, strict=True)]
            starts = [len(a) - len(b) for a, b in zip(ids, tails, strict=True)]
        elif boundary == "skip_context":
            ids = self._ids(texts, most, prefix)
            starts = list(map(len, self._ids(contexts, most, prefix)))
        else:  # "last_query"
            spaced = self._spaced
            ids = [_with_prefix(prefix, found) for found in spaced.ids(texts, most=most)]
            alone = [_with_prefix(prefix, found) for found in spaced.ids(continuations, most=most)]
            starts = [max(0, len(a) - len(b)) for a, b in zip(ids, alone, strict=True)]
        arrays = [np.array(own, np.int32) for own in ids]
        return [
            (TokenSequence(own, min(start, len(own)) if text else len(own)),)
            for own, start, text in zip(arrays, starts, continuations, strict=True)
        ]

    def _split_at(
        self, texts: list[str], limits: list[int], prefix: list[int], most: int | None
    ) -> tuple[list[Ids], list[int]]:
        """Ids of each text, and the index of the first one that ends after its limit.

        Texts with limit 0 are encoded without offsets, which is faster.
        """
        pairs = list(zip(texts, limits, strict=True))
        in_pieces = self.bounded.pieces_of_each([text for text, limit in pairs if limit], most=most)
        whole = iter(self._ids([text for text, limit in pairs if not limit], most))
        ids, starts = [], []
        for limit in limits:
            own, first = _join_pieces(next(in_pieces), limit) if limit else (next(whole), 0)
            ids.append(_with_prefix(prefix, own))
            starts.append(len(ids[-1]) - len(own) + first)
        return ids, starts

    def _reencoded(
        self, requests: Sequence[Request], prefix: list[int], most: int | None
    ) -> list[Encoded]:
        targets = self._ids([request.continuation for request in requests])
        prompts = [request.context for request in requests]
        out: list[list[TokenSequence]] = [[] for _ in requests]
        for step in range(max(map(len, targets), default=0)):
            active = [k for k, ids in enumerate(targets) if step < len(ids)]
            heads = self._ids([prompts[k] for k in active], most)
            for k, head in zip(active, heads, strict=True):
                target = int(targets[k][step])
                ids = _with_prefix(prefix, _join(head, [target]))
                out[k].append(TokenSequence(np.array(ids, np.int32), len(ids) - 1))
                prompts[k] += decode_ids(self.tokenizer, [target])
                if most is not None and len(ids) - 1 > most:  # the whole request fails
                    targets[k] = targets[k][: step + 1]
        return [tuple(sequences) for sequences in out]

    def prompt_ids(
        self, prompts: Sequence[str], *, special_tokens: bool = True, most: int | None = None
    ) -> list[np.ndarray]:
        """Encode prompts as int32 ids; arguments and errors as of `encode`."""
        prefix = self.prefix if special_tokens else []
        return [np.array(ids, np.int32) for ids in self._ids(prompts, most, prefix)]

    def request_ids(
        self, requests: Sequence[GenerationRequest | LabelRequest], *, most: int | None = None
    ) -> list[np.ndarray]:
        """Encode the text prompts of requests as int32 ids; `most` and errors as of `encode`."""
        all_ids = self._ids([str(request.prompt) for request in requests], most)
        return [
            np.array(_with_prefix(self.prefix if request.special_tokens else [], ids), np.int32)
            for request, ids in zip(requests, all_ids, strict=True)
        ]

    def prompts(
        self, prompts: Sequence[str], *, special_tokens: bool = True, most: int | None = None
    ) -> list[tuple[np.ndarray, list[int]]]:
        """Encode prompts as int32 ids, with the number of characters before each token.

        Characters between two tokens, such as a blank without offsets, belong to the second one.
        An added BOS has no characters. Arguments and errors as of `encode`.
        """
        prefix = self.prefix if special_tokens else []
        out = []
        for pieces in self.bounded.pieces_of_each(prompts, most=most):
            own: list[Any] = []
            starts: list[int] = []
            end = 0
            for piece in pieces:
                own.append(piece.ids)
                for first, last in piece.offsets:
                    start = min(piece.start + first, end)
                    starts.append(max(start, starts[-1] if starts else 0))
                    end = max(end, piece.start + last)
            ids = _with_prefix(prefix, _concatenate(own))
            out.append((np.array(ids, np.int32), [0] * (len(ids) - len(starts)) + starts))
        return out

    def first_ids(self, labels: Sequence[str]) -> tuple[int, ...]:
        """Id of each label's first token, encoded alone.

        Raises:
            InputError: a label has no tokens, or two labels have the same first token.
        """
        first: dict[int, str] = {}
        for label in labels:
            [ids] = self._ids([label])
            if not ids:
                raise InputError(f"label {label!r} has no tokens")
            id = ids[0]
            if id in first:
                [token] = self.tokens(np.array([id]))
                raise InputError(
                    f"labels {first[id]!r} and {label!r} both begin with token {token!r}, so the "
                    "next-token distribution cannot distinguish them; score whole labels instead"
                )
            first[id] = label
        return tuple(first)

    def tokens(self, ids: np.ndarray) -> list[str]:
        """Names of non-negative token ids in the vocabulary. Thread-safe."""
        ids = ids.astype(np.intp)
        with self._lock:
            more = int(ids.max(initial=-1)) + 1 - len(self._names)
            if more > 0:
                self._names = np.concatenate([self._names, np.full(more, None, object)])
                self._known = np.concatenate([self._known, np.zeros(more, bool)])
            new = ids[~self._known[ids]]
            for id in np.unique(new).tolist():
                self._names[id] = self.tokenizer.convert_ids_to_tokens(id)
            self._known[new] = True
            names: list[str] = self._names[ids].tolist()
        return names

    def _ids(
        self, texts: Sequence[str], most: int | None = None, prefix: Sequence[int] = ()
    ) -> list[Ids]:
        """Encode without offsets, which takes a quarter less time."""
        return [_with_prefix(prefix, ids) for ids in self.bounded.ids(texts, most=most)]

    @functools.cached_property
    def _spaced(self) -> BoundedTokenizer:
        """The tokenizer with `add_prefix_space=True`, which affects only a plain ByteLevel."""
        backend = self.bounded.backend
        spaced = Tokenizer.from_str(backend.to_str())
        spaced.encode_special_tokens = backend.encode_special_tokens  # not in its file
        if isinstance(spaced.pre_tokenizer, ByteLevel):
            spaced.pre_tokenizer.add_prefix_space = True
        return BoundedTokenizer(spaced)


def _sequence(
    context: Sequence[int], continuation: Sequence[int], boundary: Boundary
) -> TokenSequence:
    """Make the sequence of a request's own ids."""
    after = [0] * (boundary == "after" and bool(continuation))
    # Not int32: an id beyond it would become another one, instead of an error.
    ids = np.array([*context, *continuation, *after], np.int64)
    return TokenSequence(ids, len(context) + len(after))


def _with_prefix(prefix: Sequence[int], ids: Ids) -> Ids:
    """Add the prefix, unless the text has its own BOS, as chat templates write it."""
    if [*ids[: len(prefix)]] == [*prefix]:
        return ids
    return _join([*prefix], ids)


def _join(a: Ids, b: Ids) -> Ids:
    if isinstance(a, list) and isinstance(b, list):
        return a + b
    return np.concatenate([np.array(a, np.int32), np.array(b, np.int32)])


def _join_pieces(pieces: Iterator[Piece], limit: int) -> tuple[Ids, int]:
    """Ids of a text in pieces, and the index of the first one that ends after `limit`."""
    ids: list[Any] = []
    first = n_tokens = 0
    for piece in pieces:
        # Pieces end where the tokenizer splits, so no token straddles two pieces.
        if piece.start <= limit:
            first = n_tokens + _first_after(piece.offsets, limit - piece.start, piece.text)
        ids.append(piece.ids)
        n_tokens += len(piece.ids)
    return _concatenate(ids), first


def _concatenate(ids: list[Any]) -> Ids:
    return ids[0] if len(ids) == 1 else np.concatenate([np.zeros(0, np.int32), *ids])


def _first_after(offsets: list[tuple[int, int]], limit: int, text: str) -> int:
    """Index of the first token that ends after character `limit`.

    A composing normalizer gives "é" the offsets of its "e" alone. So if a mark after `limit` has no
    token of its own, the tokens of its letter count too.
    """
    first = next((k for k, (_, end) in enumerate(offsets) if end > limit), len(offsets))
    in_no_token = first == len(offsets) or offsets[first][0] > limit
    if first and in_no_token and _composes(text, limit):
        end = offsets[first - 1][1]
        while first and offsets[first - 1][1] == end:  # all tokens with bytes of the letter
            first -= 1
    return first


def _composes(text: str, at: int) -> bool:
    """Whether NFC composes the character at this index with those before it."""
    before = text[max(0, at - 8) : at]  # more marks than any letter has
    together = unicodedata.normalize("NFC", before + text[at : at + 1])
    return at < len(text) and len(together) == len(unicodedata.normalize("NFC", before))


def audit_boundaries(
    encoder: TextEncoder,
    requests: Iterable[Request],
    chosen: Boundary,
    others: Sequence[Boundary],
    most: int | None = None,
) -> dict[Boundary, int]:
    """Count the requests whose scores another boundary policy would change.

    Args:
        most: positions of the model if longer texts fail, which are not compared; otherwise None.

    Returns:
        For each policy of `others`, the number of requests whose scored tokens, or the tokens
        before them, differ from those of `chosen`.
    """
    if {chosen, *others} <= EQUAL_WITHOUT_CONTEXT:
        requests = [request for request in requests if request.context]
    else:
        requests = list(requests)

    base = _encoded(encoder, requests, chosen, most)
    return {
        other: sum(
            _differ(a, b)
            for a, b in zip(base, _encoded(encoder, requests, other, most), strict=True)
        )
        for other in others
    }


def compare_boundaries(
    encoder: TextEncoder,
    pairs: Sequence[tuple[Request, Request]],
    chosen: Boundary,
    other: Boundary,
    most: int | None = None,
) -> list[bool]:
    """Whether the two requests of each pair score different tokens, or after different contexts.

    Args:
        pairs: requests to encode by `chosen` (first) and by `other` (second).
        most: as of `audit_boundaries`.
    """
    first = _encoded(encoder, [request for request, _ in pairs], chosen, most)
    second = _encoded(encoder, [request for _, request in pairs], other, most)
    return [_differ(a, b) for a, b in zip(first, second, strict=True)]


def _encoded(
    encoder: TextEncoder, requests: Sequence[Request], policy: Boundary, most: int | None
) -> list[Encoded | TextError]:
    return encode_each(functools.partial(encoder.encode, boundary=policy, most=most), requests)


def _differ(first: Encoded | TextError, second: Encoded | TextError) -> bool:
    """Whether two encodings score different tokens, or after different contexts."""
    if isinstance(first, TextError) or isinstance(second, TextError):
        return False  # neither is scored
    if len(first) == len(second) == 1:
        (a,), (b,) = first, second
        return a.first_scored != b.first_scored or not np.array_equal(a.ids, b.ids)
    pairs = zip(_scored_paths(first), _scored_paths(second), strict=False)
    same = sum(s.n_scored for s in first) == sum(s.n_scored for s in second)
    return not same or any(not np.array_equal(a, b) for a, b in pairs)


def _scored_paths(encoded: Encoded) -> Iterator[np.ndarray]:
    """Ids up to and including each scored token."""
    for sequence in encoded:
        for stop in range(sequence.first_scored, len(sequence.ids)):
            yield sequence.ids[: stop + 1]

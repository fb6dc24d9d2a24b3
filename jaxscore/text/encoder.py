"""Encoding of a context and a continuation, and the index at which the continuation starts.

A token may straddle the two, so a boundary policy decides where the continuation starts:

    context "ANSWER: "   continuation "Oslo"      tokens  ANSWER | : | ␠Oslo
    joint         encode once; start at the first token that ends after the context, ignoring
                  trailing whitespace of the context
    exact         like joint, but including the context's trailing whitespace
    separate      encode each and join the ids: ANSWER | : | ␠ | Oslo
    skip_context  encode once; skip as many tokens as the context has when encoded alone
    last_query    encode once; keep as many tokens as the continuation has when encoded alone, with
                  its special tokens and, for GPT-2 tokenizers, a leading space
    reencoded     like separate, but decode and append each token and encode the whole text again
    after         like separate, but read the terms of each token after it instead of before it:
                  the next token is scored, and id 0 after the last token, whose log-probability is
                  meaningless

The last four reproduce published scripts (ChronoLogic, ProbSem, Path Evaluation, Self-Certainty).
They may miss a token, count one too many, or score other ids; `audit_boundaries` counts how often.
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
from jaxscore.io.json_output import LazySequence
from jaxscore.plan.requests import TokenSequence
from jaxscore.text.bounded_tokenizer import (
    BoundedTokenizer,
    Ids,
    Piece,
    TextError,
    decode_ids,
    encode_each,
)
from jaxscore.text.decoder import TokenBytes
from jaxscore.text.tokenizer import copy_backend, special_prefix
from jaxscore.types.requests import GenerationRequest, LabelRequest, Request

Boundary = Literal["joint", "exact", "separate", "skip_context", "last_query", "reencoded", "after"]
BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)
# Policies that score the same tokens if the context is empty
EQUAL_WITHOUT_CONTEXT: set[Boundary] = {"joint", "exact", "separate"}

NAMED = 1 << 16  # number of tokens of a long text that are named at a time
# The sequences of a request: one, or one per token of the continuation for "reencoded"
Encoded = tuple[TokenSequence, ...]


class TokenNames(LazySequence[str]):
    """The names of a long text's tokens, looked up when they are read."""

    def __init__(self, ids: np.ndarray, encoder: "TextEncoder") -> None:
        """Args:
        ids: int32 [n], not negative.
        """
        self._ids, self._encoder = ids, encoder

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        for k in range(0, len(self), NAMED):
            yield from self._encoder.tokens(self._ids[k : k + NAMED])

    def __reduce__(self) -> tuple[type[list[str]], tuple[list[str]]]:
        return list, ([*self],)

    def element(self, index: int) -> str:
        """See `LazySequence.element`."""
        [name] = self._encoder.tokens(self._ids[index : index + 1])
        return name


class TextEncoder:
    """An encoder of batches of text to `TokenSequence`s by any boundary policy.

    Attributes:
        prefix: the ids before each text that does not start with them: the tokenizer's BOS.
        warnings: warnings about the tokenizer's files.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.warnings: tuple[str, ...] = vars(tokenizer).get("warnings", ())
        self.bounded = BoundedTokenizer(copy_backend(tokenizer))
        # Special tokens after a text are not added: an EOS would separate the context from the
        # continuation.
        self.prefix = special_prefix(tokenizer)
        self._names = np.zeros(0, object)  # token names by id, filled on demand
        self._has_name = np.zeros(0, bool)
        self._lock = threading.Lock()

    def encode(
        self,
        requests: Sequence[Request],
        boundary: Boundary = "joint",
        *,
        special_tokens: bool = True,
        max_positions: int | None = None,
    ) -> list[Encoded]:
        """Encode requests; requests with `token_ids` keep their ids.

        Args:
            boundary: one of `BOUNDARIES`; for requests with ids only "after" makes a difference.
            special_tokens: if True, add the tokenizer's BOS to texts without one.
            max_positions: the model's number of positions if longer texts should fail; None means
                no limit.

        Returns:
            One sequence for each request; for "reencoded", one sequence for each token of the
            continuation, which scores only that token.

        Raises:
            ValueError: the policy does not exist.
            TextError: the tokenizer cannot read a text, or the text certainly has more than
                `max_positions` + 1 tokens; use `bounded_tokenizer.encode_each` to find the text.
        """
        check_choice("boundary", boundary, BOUNDARIES)
        prefix = self.prefix if special_tokens else []
        encoded = iter(
            self._encode(
                [r for r in requests if r.token_ids is None], boundary, prefix, max_positions
            )
        )
        return [
            next(encoded) if request.token_ids is None else (_sequence(request, boundary),)
            for request in requests
        ]

    def _encode(
        self,
        requests: Sequence[Request],
        boundary: Boundary,
        prefix: list[int],
        max_positions: int | None,
    ) -> list[Encoded]:
        """Encode texts; see `encode`."""
        if boundary == "reencoded":
            return self._reencoded(requests, prefix, max_positions)
        contexts = [request.context for request in requests]
        continuations = [request.continuation for request in requests]
        texts = [a + b for a, b in zip(contexts, continuations, strict=True)]
        if boundary in ("joint", "exact"):
            limits = [len(c if boundary == "exact" else c.rstrip()) for c in contexts]
            ids, starts = self._split_at(texts, limits, prefix, max_positions)
        elif boundary in ("separate", "after"):
            heads, tails = (
                self._ids(contexts, max_positions),
                self._ids(continuations, max_positions),
            )
            ids = [_with_prefix(prefix, _join(a, b)) for a, b in zip(heads, tails, strict=True)]
            if boundary == "after":
                ids = [_join(a, [0] * bool(len(b))) for a, b in zip(ids, tails, strict=True)]
            starts = [len(a) - len(b) for a, b in zip(ids, tails, strict=True)]
        elif boundary == "skip_context":
            ids = self._ids(texts, max_positions, prefix)
            starts = list(map(len, self._ids(contexts, max_positions, prefix)))
        else:  # "last_query"
            spaced = self._spaced
            ids, tails = (
                [
                    _with_prefix(prefix, ids)
                    for ids in spaced.ids(batch, max_positions=max_positions)
                ]
                for batch in (texts, continuations)
            )
            starts = [max(0, len(a) - len(b)) for a, b in zip(ids, tails, strict=True)]
        arrays = [np.asarray(text_ids, np.int32) for text_ids in ids]
        return [
            (TokenSequence(array, min(start, len(array)) if text else len(array)),)
            for array, start, text in zip(arrays, starts, continuations, strict=True)
        ]

    def _split_at(
        self, texts: list[str], limits: list[int], prefix: list[int], max_positions: int | None
    ) -> tuple[list[Ids], list[int]]:
        """Return the ids of each text, and the index of the first token that ends after its limit.

        Texts with limit 0 are encoded without offsets, which is faster.
        """
        pairs = list(zip(texts, limits, strict=True))
        in_pieces = self.bounded.pieces_of_each(
            [text for text, limit in pairs if limit], max_positions=max_positions
        )
        unlimited = iter(self._ids([text for text, limit in pairs if not limit], max_positions))
        ids, starts = [], []
        for limit in limits:
            if limit:
                text_ids, first = _join_pieces(next(in_pieces), limit)
            else:
                text_ids, first = next(unlimited), 0
            ids.append(_with_prefix(prefix, text_ids))
            starts.append(len(ids[-1]) - len(text_ids) + first)
        return ids, starts

    def _reencoded(
        self, requests: Sequence[Request], prefix: list[int], max_positions: int | None
    ) -> list[Encoded]:
        targets = self._ids([request.continuation for request in requests])
        prompts = [request.context for request in requests]
        out: list[list[TokenSequence]] = [[] for _ in requests]
        for step in range(max(map(len, targets), default=0)):
            active = [k for k, ids in enumerate(targets) if step < len(ids)]
            heads = self._ids([prompts[k] for k in active], max_positions)
            for k, head in zip(active, heads, strict=True):
                target = int(targets[k][step])
                ids = _with_prefix(prefix, _join(head, [target]))
                out[k].append(TokenSequence(np.array(ids, np.int32), len(ids) - 1))
                prompts[k] += decode_ids(self.tokenizer, [target])
                if (
                    max_positions is not None and len(ids) - 1 > max_positions
                ):  # too long: the request fails
                    targets[k] = targets[k][: step + 1]
        return [tuple(sequences) for sequences in out]

    def prompt_ids(
        self,
        prompts: Sequence[str],
        *,
        special_tokens: bool = True,
        max_positions: int | None = None,
    ) -> list[np.ndarray]:
        """Encode prompts as int32 ids; see `encode` for arguments and errors."""
        prefix = self.prefix if special_tokens else []
        return [np.array(ids, np.int32) for ids in self._ids(prompts, max_positions, prefix)]

    def request_ids(
        self,
        requests: Sequence[GenerationRequest | LabelRequest],
        *,
        max_positions: int | None = None,
    ) -> list[np.ndarray]:
        """Encode the text prompts of requests as int32 ids; see `encode`."""
        all_ids = self._ids([str(request.prompt) for request in requests], max_positions)
        return [
            np.array(_with_prefix(self.prefix if request.special_tokens else [], ids), np.int32)
            for request, ids in zip(requests, all_ids, strict=True)
        ]

    def prompts(
        self,
        prompts: Sequence[str],
        *,
        special_tokens: bool = True,
        max_positions: int | None = None,
    ) -> list[tuple[np.ndarray, list[int]]]:
        """Encode prompts as int32 ids, with the number of characters before each token.

        Characters between two tokens, such as a space without offsets, belong to the second token.
        An added BOS has zero characters. See `encode` for arguments and errors.
        """
        prefix = self.prefix if special_tokens else []
        out = []
        for pieces in self.bounded.pieces_of_each(prompts, max_positions=max_positions):
            piece_ids: list[Any] = []
            starts: list[int] = []
            end = 0
            for piece in pieces:
                piece_ids.append(piece.ids)
                for first, last in piece.offsets:
                    start = min(piece.start + first, end)
                    starts.append(max(start, starts[-1] if starts else 0))
                    end = max(end, piece.start + last)
            ids = _with_prefix(prefix, _concatenate(piece_ids))
            out.append((np.array(ids, np.int32), [0] * (len(ids) - len(starts)) + starts))
        return out

    def first_characters(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text without additional special tokens, as int32 ids, and locate its tokens.

        Returns:
            The ids, and for each token the index of its first non-space character, or of its first
            character if it has only spaces; int64.

        Raises:
            TextError: the tokenizer cannot read the text.
        """
        ids: list[Any] = []
        firsts: list[int] = []
        for piece in next(iter(self.bounded.pieces_of_each([text]))):
            ids.append(piece.ids)
            for first, last in piece.offsets:
                start, end = piece.start + first, piece.start + last
                n_spaces = end - start - len(text[start:end].lstrip())
                firsts.append(start + (n_spaces if n_spaces < end - start else 0))
        return np.asarray(_concatenate(ids), np.int32), np.array(firsts, np.int64)

    def first_ids(self, labels: Sequence[str]) -> tuple[int, ...]:
        """Return the id of each label's first token, with each label encoded alone.

        Raises:
            InputError: a label is empty when encoded, or two labels have the same first token.
        """
        first: dict[int, str] = {}
        for label in labels:
            [ids] = self._ids([label])
            if not ids:
                raise InputError(f"label {label!r}: no tokens, expected at least one")
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
        """Return the vocabulary's names of non-negative token ids. Thread-safe."""
        ids = ids.astype(np.intp)
        with self._lock:
            n_new = int(ids.max(initial=-1)) + 1 - len(self._names)
            if n_new > 0:
                self._names = np.concatenate([self._names, np.full(n_new, None, object)])
                self._has_name = np.concatenate([self._has_name, np.zeros(n_new, bool)])
            new = ids[~self._has_name[ids]]
            for id in np.unique(new).tolist():
                self._names[id] = self.tokenizer.convert_ids_to_tokens(id)
            self._has_name[new] = True
            names: list[str] = self._names[ids].tolist()
        return names

    def _ids(
        self, texts: Sequence[str], max_positions: int | None = None, prefix: Sequence[int] = ()
    ) -> list[Ids]:
        """Encode without offsets, which reduces the time by a quarter."""
        return [
            _with_prefix(prefix, ids)
            for ids in self.bounded.ids(texts, max_positions=max_positions)
        ]

    @functools.cached_property
    def whitespace_starts(self) -> dict[int, str]:
        """Text of each token that begins with whitespace, by ascending id; no special tokens."""
        token_bytes = TokenBytes(self.tokenizer)
        texts = ((id, token_bytes.text(id)) for id in range(len(self.tokenizer)))
        return {
            id: text for id, text in texts if text[:1].isspace() and not token_bytes.is_special(id)
        }

    @functools.cached_property
    def _spaced(self) -> BoundedTokenizer:
        """The tokenizer with `add_prefix_space=True`, which affects only plain ByteLevel."""
        backend = self.bounded.backend
        spaced = Tokenizer.from_str(backend.to_str())
        spaced.encode_special_tokens = backend.encode_special_tokens  # not serialised
        if isinstance(spaced.pre_tokenizer, ByteLevel):
            spaced.pre_tokenizer.add_prefix_space = True
        return BoundedTokenizer(spaced)


def _sequence(request: Request, boundary: Boundary) -> TokenSequence:
    """Build the sequence of a request with token ids."""
    assert request.token_ids is not None
    context, continuation = request.token_ids
    after = [0] * (boundary == "after" and bool(continuation))
    # Not int32: larger ids would wrap around to valid ids instead of raising an error later.
    ids = np.array([*context, *continuation, *after], np.int64)
    if request.positions is not None and len(request.positions):
        positions = np.array(request.positions, np.int64) + len(after)
        return TokenSequence(ids, int(positions[0]), positions=positions)
    return TokenSequence(ids, len(context) + len(after))


def _with_prefix(prefix: Sequence[int], ids: Ids) -> Ids:
    """Add the prefix unless the text already starts with it, as rendered chat templates do."""
    if [*ids[: len(prefix)]] == [*prefix]:
        return ids
    return _join([*prefix], ids)


def _join(a: Ids, b: Ids) -> Ids:
    if isinstance(a, list) and isinstance(b, list):
        return a + b
    return np.concatenate([np.array(a, np.int32), np.array(b, np.int32)])


def _join_pieces(pieces: Iterator[Piece], limit: int) -> tuple[Ids, int]:
    """Return the ids of a text, and the index of the first token that ends after `limit`."""
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
    """Return the index of the first token that ends after character `limit`.

    A composing normalizer gives a decomposed "é" the offsets of its "e" only. If a combining mark
    after `limit` is in no token, the result is thus the first token of its letter.
    """
    first = next((k for k, (_, end) in enumerate(offsets) if end > limit), len(offsets))
    in_no_token = first == len(offsets) or offsets[first][0] > limit
    if first and in_no_token and _composes(text, limit):
        end = offsets[first - 1][1]
        while (
            first and offsets[first - 1][1] == end
        ):  # skip back over all byte tokens of the letter
            first -= 1
    return first


def _composes(text: str, index: int) -> bool:
    """Return True if NFC composes the character at this index with those before it."""
    before = text[max(0, index - 8) : index]  # more combining marks than any letter has
    composed = unicodedata.normalize("NFC", before + text[index : index + 1])
    return index < len(text) and len(composed) == len(unicodedata.normalize("NFC", before))


def audit_boundaries(
    encoder: TextEncoder,
    requests: Iterable[Request],
    chosen: Boundary,
    others: Sequence[Boundary],
    max_positions: int | None = None,
) -> dict[Boundary, int]:
    """Count the requests whose scores another boundary policy would change.

    Args:
        max_positions: the model's number of positions if longer texts fail and are not compared;
            otherwise None.

    Returns:
        For each policy of `others`, the number of requests whose scored tokens or preceding tokens
        differ from those of `chosen`.
    """
    if {chosen, *others} <= EQUAL_WITHOUT_CONTEXT:
        requests = [request for request in requests if request.context]
    else:
        requests = list(requests)

    base = _encoded(encoder, requests, chosen, max_positions)
    return {
        other: sum(
            _differ(a, b)
            for a, b in zip(base, _encoded(encoder, requests, other, max_positions), strict=True)
        )
        for other in others
    }


def _encoded(
    encoder: TextEncoder, requests: Sequence[Request], policy: Boundary, max_positions: int | None
) -> list[Encoded | TextError]:
    return encode_each(
        functools.partial(encoder.encode, boundary=policy, max_positions=max_positions), requests
    )


def _differ(first: Encoded | TextError, second: Encoded | TextError) -> bool:
    """Return True if two encodings score different tokens or have different contexts."""
    if isinstance(first, TextError) or isinstance(second, TextError):
        return False  # a text that fails is not scored
    if len(first) == len(second) == 1:
        (a,), (b,) = first, second
        return a.first_scored != b.first_scored or not np.array_equal(a.ids, b.ids)
    pairs = zip(_scored_paths(first), _scored_paths(second), strict=False)
    same = sum(s.n_scored for s in first) == sum(s.n_scored for s in second)
    return not same or any(not np.array_equal(a, b) for a, b in pairs)


def _scored_paths(encoded: Encoded) -> Iterator[np.ndarray]:
    """Yield the ids up to and including each scored token."""
    for sequence in encoded:
        for stop in range(sequence.first_scored, len(sequence.ids)):
            yield sequence.ids[: stop + 1]

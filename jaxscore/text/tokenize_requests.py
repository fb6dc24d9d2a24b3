"""Requests as token sequences that a model can score, or why it cannot."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jaxscore.errors import check_choice
from jaxscore.io.printable import is_valid_unicode
from jaxscore.plan.requests import TokenSequence
from jaxscore.text.bounded_tokenizer import TextError, TooLongError, encode_each
from jaxscore.text.encoder import BOUNDARIES, Boundary, Encoded, TextEncoder
from jaxscore.types.requests import LabelRequest, Request, Unusable

# Texts are encoded so many at a time: the tokenizer's own results take 50 bytes for each token.
CHUNK, CHUNK_CHARACTERS = 256, 1 << 20
NOTHING = Request(0, "", "")  # encoded in place of what cannot be

Truncate = Literal["left"]
Complaints = Callable[[Sequence[TokenSequence]], Mapping[int, str]]


class TokenizedRequest(NamedTuple):
    """A request's sequences, how many context tokens they lack, or why there are none."""

    sequences: Encoded
    truncated: int
    error: str | None


INVALID_UNICODE = TokenizedRequest(
    (), 0, "its text has half a surrogate pair, which is no character"
)


class RequestTokenizer:
    """Encodes requests for one model."""

    def __init__(self, encoder: TextEncoder, max_positions: int, complaints: Complaints) -> None:
        """Args:
        max_positions: longest path that the model takes.
        complaints: for sequences, place -> why the model cannot score that one.
        """
        self._encoder, self._most, self._complaints = encoder, max_positions, complaints

    def texts(
        self,
        requests: Sequence[Request | Unusable],
        boundary: Boundary,
        truncate: str | None,
        special_tokens: bool,
    ) -> list[TokenizedRequest]:
        """One entry for each request; arguments as of `Scorer.score`."""
        usable = [
            request
            if isinstance(request, Request)
            and is_valid_unicode(request.context + request.continuation)
            else NOTHING
            for request in requests
        ]
        most = self._most if truncate is None else None

        def encode(some: Sequence[Request]) -> list[Encoded]:
            return self._encoder.encode(some, boundary, special_tokens=special_tokens, most=most)

        encoded = encode_each(encode, usable)
        return self._checked(
            [
                TokenizedRequest((), 0, request.error)
                if isinstance(request, Unusable)
                else INVALID_UNICODE
                if one is not request
                else TokenizedRequest((), 0, _reason(sequences, one.context))
                if isinstance(sequences, TextError)
                else self._truncated(sequences, truncate)
                for request, one, sequences in zip(requests, usable, encoded, strict=True)
            ]
        )

    def labels(
        self, requests: Sequence[LabelRequest], truncate: str | None
    ) -> list[TokenizedRequest]:
        """One entry for each request: its prompt, and the labels as choices after it."""
        texts = [_prompt(request) for request in requests]
        encode = functools.partial(
            self._encoder.prompt_ids, most=self._most if truncate is None else None
        )
        prepared = []
        for request, text, ids in zip(requests, texts, encode_each(encode, texts), strict=True):
            if complaint := _label_complaint(request):
                item = TokenizedRequest((), 0, complaint)
            elif text != request.prompt:
                item = INVALID_UNICODE
            elif isinstance(ids, TextError):
                item = TokenizedRequest((), 0, _reason(ids, text))
            elif not len(ids):
                item = TokenizedRequest(
                    (), 0, "its prompt has no tokens, so nothing comes after it"
                )
            else:
                asked = TokenSequence(ids, len(ids), np.array(request.label_ids))
                item = self._truncated((asked,), truncate)
            prepared.append(item)
        return self._checked(prepared)

    def sequences(
        self, given: Sequence[TokenSequence | Unusable], truncate: str | None
    ) -> list[TokenizedRequest]:
        """One entry for each request whose token ids are given; `truncate` as of `Scorer.score`."""
        return self._checked(
            [
                TokenizedRequest((), 0, one.error)
                if isinstance(one, Unusable)
                else self._truncated((one,), truncate)
                for one in given
            ]
        )

    def _truncated(self, encoded: Encoded, truncate: str | None) -> TokenizedRequest:
        """The sequences without the oldest tokens of those that are too long, if asked for."""
        if truncate is None:
            return TokenizedRequest(encoded, 0, None)
        sequences, cut = [], 0
        for sequence in encoded:
            over = len(sequence.input_ids) - self._most
            prefix = self._encoder.prefix
            keep = len(prefix) if sequence.ids[: len(prefix)].tolist() == prefix else 0
            # Without a BOS one context token must stay, or the continuation's first has none.
            if 0 < over <= sequence.start - max(keep, 1):
                ids = np.concatenate([sequence.ids[:keep], sequence.ids[keep + over :]])
                sequence = TokenSequence(ids, sequence.start - over, sequence.choices)
                cut = max(cut, over)
            sequences.append(sequence)
        return TokenizedRequest(tuple(sequences), cut, None)

    def _checked(self, prepared: list[TokenizedRequest]) -> list[TokenizedRequest]:
        """The same, and for those that the model cannot score the reason instead."""
        found = self._complaints([one for item in prepared for one in item.sequences])
        if not found:
            return prepared
        out, first = [], 0
        for item in prepared:
            places = range(first, first + len(item.sequences))
            first = places.stop
            complaint = next((found[k] for k in places if k in found), None)
            out.append(item if complaint is None else TokenizedRequest((), 0, complaint))
        return out


Window = list[tuple[Request | Unusable, TokenizedRequest]]


class Chunk(NamedTuple):
    """Requests that are encoded together, and whether a window ends with them."""

    requests: list[Request | Unusable]
    last: bool


def split_chunks(requests: Iterable[Request | Unusable], sizes: Iterable[int]) -> Iterator[Chunk]:
    """Requests in order, a few at a time.

    Args:
        sizes: requests of each window, one after the other; in all at least as many as `requests`.
    """
    source = iter(requests)
    for size in sizes:
        n_left = size
        while n_left:
            some = _chunk(source, min(CHUNK, n_left))
            if not some:
                return
            n_left -= len(some)
            yield Chunk(some, not n_left)


@dataclasses.dataclass(frozen=True)
class WindowTokenizer:
    """How requests become windows of token sequences that are planned together.

    Attributes:
        boundary, truncate, special_tokens: as of `Scorer.score`.
        window: requests that wait to be encoded, at most.
        window_tokens: a window ends earlier where its texts have so many tokens, and the next one
            has the rest of its requests; None is no limit.

    Raises:
        ValueError: an option that does not exist.
    """

    preparer: RequestTokenizer
    boundary: Boundary
    truncate: Truncate | None
    special_tokens: bool
    window: int
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        check_choice("boundary", self.boundary, BOUNDARIES)
        check_choice("truncate", self.truncate, (None, *get_args(Truncate)))
        if self.window < 1:
            raise ValueError(f"window is {self.window}, expected at least 1")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise ValueError(f"window_tokens is {self.window_tokens}, expected at least 1")

    @property
    def chunks_ahead(self) -> int:
        """Chunks that wait to be encoded, at most."""
        return -(-self.window // CHUNK)

    def windows(self, given: Iterable[Chunk]) -> Iterator[Window]:
        """Windows in order, as their last chunk comes."""
        out: Window = []
        n_tokens = 0
        for requests, last in given:
            prepared = self.preparer.texts(
                requests, self.boundary, self.truncate, self.special_tokens
            )
            out += zip(requests, prepared, strict=True)
            n_tokens += sum(one.n_input_tokens for item in prepared for one in item.sequences)
            if last or (self.window_tokens is not None and n_tokens >= self.window_tokens):
                yield out
                out, n_tokens = [], 0
        if out:
            yield out


def _chunk(source: Iterator[Request | Unusable], most: int) -> list[Request | Unusable]:
    """Requests that are encoded together."""
    out: list[Request | Unusable] = []
    n_characters = 0
    for request in itertools.islice(source, most):
        out.append(request)
        if isinstance(request, Request):
            n_characters += len(request.context) + len(request.continuation)
        if n_characters >= CHUNK_CHARACTERS:
            break
    return out


def _reason(problem: TextError, context: str) -> str:
    """Why a request cannot be encoded, and what else there is to do."""
    hint = ", or drop its oldest tokens with --truncate left"
    return str(problem) + hint * (isinstance(problem, TooLongError) and bool(context))


def _prompt(request: Any) -> str:
    """The text to encode, empty in place of what is none."""
    prompt = getattr(request, "prompt", None)
    return prompt if isinstance(prompt, str) and is_valid_unicode(prompt) else ""


def _label_complaint(request: Any) -> str | None:
    """What is wrong with a label request, whatever the model."""
    if not isinstance(request, LabelRequest):
        return f"it is of type {type(request).__name__}, expected a LabelRequest"
    if not isinstance(request.prompt, str):
        return f"its prompt is of type {type(request.prompt).__name__}, expected a string"
    ids = request.label_ids
    if isinstance(ids, str) or not isinstance(ids, Sequence | np.ndarray):
        return f"its label ids are of type {type(ids).__name__}, expected a tuple of integers"
    if not all(isinstance(id, int | np.integer) and not isinstance(id, bool) for id in ids):
        return f"its label ids are {list(ids)}, expected integers"
    if len(set(ids)) < max(1, len(ids)):
        return f"its label ids are {list(ids)}, expected at least one, each once"
    return None

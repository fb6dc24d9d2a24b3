"""Tokenizes requests, or finds the reason why a model cannot score one."""

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

# Most requests and characters encoded at a time: the tokenizer's results take 50 bytes per token.
CHUNK, CHUNK_CHARACTERS = 256, 1 << 20
EMPTY = Request(0, "", "")  # encoded instead of an unusable request

Truncate = Literal["left"]
FindErrors = Callable[[Sequence[TokenSequence]], Mapping[int, str]]


class TokenizedRequest(NamedTuple):
    """Token sequences of a request.

    Attributes:
        sequences: one, or several for the policy "reencoded"; none if `error` is set.
        truncated: most context tokens that were dropped from a sequence.
        error: why the request cannot be scored, or None.
    """

    sequences: Encoded
    truncated: int
    error: str | None


INVALID_UNICODE = TokenizedRequest(
    (), 0, "its text has half a surrogate pair, which is no character"
)


class RequestTokenizer:
    """Tokenizes requests for one model."""

    def __init__(self, encoder: TextEncoder, max_positions: int, find_errors: FindErrors) -> None:
        """Args:
        max_positions: most tokens of a text.
        find_errors: maps sequences to {index: why the model cannot score that one}.
        """
        self._encoder, self._max_positions = encoder, max_positions
        self._find_errors = find_errors

    def texts(
        self,
        requests: Sequence[Request | Unusable],
        boundary: Boundary,
        truncate: str | None,
        special_tokens: bool,
    ) -> list[TokenizedRequest]:
        """Tokenize scoring requests; arguments as of `Scorer.score`."""
        usable = [
            request
            if isinstance(request, Request)
            and is_valid_unicode(request.context + request.continuation)
            else EMPTY
            for request in requests
        ]
        most = self._max_positions if truncate is None else None

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
        """Tokenize label requests: the prompt, and the labels as choices after it."""
        texts = [_prompt(request) for request in requests]
        encode = functools.partial(
            self._encoder.prompt_ids, most=self._max_positions if truncate is None else None
        )
        prepared = []
        for request, text, ids in zip(requests, texts, encode_each(encode, texts), strict=True):
            if error := _label_error(request):
                item = TokenizedRequest((), 0, error)
            elif text != request.prompt:
                item = INVALID_UNICODE
            elif isinstance(ids, TextError):
                item = TokenizedRequest((), 0, _reason(ids, text))
            elif not len(ids):
                item = TokenizedRequest(
                    (), 0, "its prompt has no tokens, so nothing comes after it"
                )
            else:
                sequence = TokenSequence(ids, len(ids), np.array(request.label_ids))
                item = self._truncated((sequence,), truncate)
            prepared.append(item)
        return self._checked(prepared)

    def sequences(
        self, sequences: Sequence[TokenSequence | Unusable], truncate: str | None
    ) -> list[TokenizedRequest]:
        """Check and truncate sequences of token ids; `truncate` as of `Scorer.score`."""
        return self._checked(
            [
                TokenizedRequest((), 0, sequence.error)
                if isinstance(sequence, Unusable)
                else self._truncated((sequence,), truncate)
                for sequence in sequences
            ]
        )

    def _truncated(self, encoded: Encoded, truncate: str | None) -> TokenizedRequest:
        """Drop the oldest tokens of sequences that are too long, if `truncate` is set."""
        if truncate is None:
            return TokenizedRequest(encoded, 0, None)
        sequences, cut = [], 0
        for sequence in encoded:
            over = len(sequence.input_ids) - self._max_positions
            prefix = self._encoder.prefix
            keep = len(prefix) if sequence.ids[: len(prefix)].tolist() == prefix else 0
            # Without a BOS keep one context token: the continuation's first token needs one.
            if 0 < over <= sequence.start - max(keep, 1):
                ids = np.concatenate([sequence.ids[:keep], sequence.ids[keep + over :]])
                sequence = TokenSequence(ids, sequence.start - over, sequence.choices)
                cut = max(cut, over)
            sequences.append(sequence)
        return TokenizedRequest(tuple(sequences), cut, None)

    def _checked(self, prepared: list[TokenizedRequest]) -> list[TokenizedRequest]:
        """Replace requests that the model cannot score by their error."""
        found = self._find_errors([sequence for item in prepared for sequence in item.sequences])
        if not found:
            return prepared
        out, first = [], 0
        for item in prepared:
            indices = range(first, first + len(item.sequences))
            first = indices.stop
            error = next((found[k] for k in indices if k in found), None)
            out.append(item if error is None else TokenizedRequest((), 0, error))
        return out


Window = list[tuple[Request | Unusable, TokenizedRequest]]


class Chunk(NamedTuple):
    """Requests that are encoded together; `last` if a window ends with them."""

    requests: list[Request | Unusable]
    last: bool


def split_chunks(requests: Iterable[Request | Unusable], sizes: Iterable[int]) -> Iterator[Chunk]:
    """Split requests into chunks, in order.

    Args:
        sizes: number of requests of each window; their sum is at least that of `requests`.
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
    """Groups requests in windows of token sequences that are planned together.

    Attributes:
        boundary, truncate, special_tokens: as of `Scorer.score`.
        window: most requests that wait to be encoded.
        window_tokens: tokens at which a window ends earlier, its other requests being the next
            one; None is no limit.

    Raises:
        ValueError: an option is invalid.
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
        """Most chunks that wait to be encoded."""
        return -(-self.window // CHUNK)

    def windows(self, chunks: Iterable[Chunk]) -> Iterator[Window]:
        """Tokenize chunks; yields each window after its last chunk."""
        out: Window = []
        n_tokens = 0
        for requests, last in chunks:
            prepared = self.preparer.texts(
                requests, self.boundary, self.truncate, self.special_tokens
            )
            out += zip(requests, prepared, strict=True)
            n_tokens += sum(
                sequence.n_input_tokens for item in prepared for sequence in item.sequences
            )
            if last or (self.window_tokens is not None and n_tokens >= self.window_tokens):
                yield out
                out, n_tokens = [], 0
        if out:
            yield out


def _chunk(source: Iterator[Request | Unusable], most: int) -> list[Request | Unusable]:
    """The requests of one chunk."""
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
    """Why a request cannot be encoded, and what to do."""
    hint = ", or drop its oldest tokens with --truncate left"
    return str(problem) + hint * (isinstance(problem, TooLongError) and bool(context))


def _prompt(request: Any) -> str:
    """The prompt to encode, empty if it is no valid text."""
    prompt = getattr(request, "prompt", None)
    return prompt if isinstance(prompt, str) and is_valid_unicode(prompt) else ""


def _label_error(request: Any) -> str | None:
    """What is wrong with a label request for every model, or None."""
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

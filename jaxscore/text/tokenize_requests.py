"""Tokenization of requests in windows, with an error for each request that cannot be scored.

    requests → (sorted by shared prefix) → chunks, encoded together → windows, planned together

A device computes one window while the next one is encoded and planned. Sorting makes requests with
a shared prefix neighbours; windows end between neighbours that share little.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np

from jaxscore.errors import check_choice, is_valid_unicode
from jaxscore.plan.requests import TextWindows, TokenSequence, WindowedText
from jaxscore.text.bounded_tokenizer import TextError, TooLongError, encode_each
from jaxscore.text.encoder import BOUNDARIES, Boundary, Encoded, TextEncoder
from jaxscore.types.requests import LabelRequest, Request, Unusable

Item = TypeVar("Item")

# Maximum number of requests and characters encoded at a time: the tokenizer's results take 50 bytes
# per token.
CHUNK, CHUNK_CHARACTERS = 256, 1 << 20
# Maximum number of windows of long texts, and of their tokens, that are planned together. They
# share no prefix, so that small groups cost nothing and bound the memory of a text of any length.
GROUP, GROUP_TOKENS = 4096, 1 << 19
# Characters of sorted windows, about four per token. The first windows are small so that the device
# starts early; later ones are large, since the last rows of each are padded. They grow slowly,
# since a window is encoded and planned while the previous one is computed. A window ends soon after
# half of the remaining text, since nothing overlaps with planning the last one.
FIRST, LARGEST, GROWTH = 1 << 19, 1 << 22, 1.5
MOST_SHARED = 32  # maximum length of a prefix that two windows share and compute twice
SEARCHED = 256  # number of neighbours compared at a time to find the shortest shared prefix
INVALID_UNICODE = "its text contains a lone surrogate (invalid Unicode)"

Truncate = Literal["left"]
FindErrors = Callable[[Sequence[TokenSequence]], Mapping[int, str]]


class TokenizedRequest(NamedTuple):
    """The token sequences of a request.

    Attributes:
        sequences: one sequence, several for "reencoded", or a `WindowedText`; empty if `error` is
            set.
        has_end: True if the last token is a copy of the text's last one, for the measures after it.
        truncated: the maximum number of context tokens dropped from a sequence.
        error: the reason why the request cannot be scored, or None.
    """

    sequences: Sequence[TokenSequence] = ()
    truncated: int = 0
    error: str | None = None
    has_end: bool = False


class RequestTokenizer:
    """A tokenizer of requests for one model."""

    def __init__(self, encoder: TextEncoder, max_positions: int, find_errors: FindErrors) -> None:
        """Args:
        max_positions: the maximum number of input tokens of a text.
        find_errors: a function from sequences to {index: error} for those that the model cannot
            score.
        """
        self._encoder, self._max_positions = encoder, max_positions
        self._find_errors = find_errors

    def texts(
        self,
        requests: Sequence[Request | Unusable],
        boundary: Boundary,
        truncate: str | None,
        special_tokens: bool,
        text_windows: TextWindows | None = None,
        ends: bool = False,
    ) -> list[TokenizedRequest]:
        """Tokenize scoring requests; see `Scorer.score` for arguments."""
        is_bounded = truncate is None and text_windows is None
        encode = functools.partial(
            self._encoder.encode,
            boundary=boundary,
            special_tokens=special_tokens,
            max_positions=self._max_positions if is_bounded else None,
        )
        usable = {
            k: request
            for k, request in enumerate(requests)
            if isinstance(request, Request) and is_valid_unicode(_text(request))
        }
        encoded = dict(zip(usable, encode_each(encode, list(usable.values())), strict=True))
        tokenized = []
        for k, request in enumerate(requests):
            if isinstance(request, Unusable):
                item = TokenizedRequest(error=request.error)
            elif k not in encoded:
                item = TokenizedRequest(error=INVALID_UNICODE)
            elif isinstance(sequences := encoded[k], TextError):
                item = TokenizedRequest(error=_explain(sequences, request.context))
            else:
                has_end = ends and self._has_position_after(sequences, is_bounded, text_windows)
                if has_end:
                    *before, last = sequences
                    ids = np.concatenate([last.ids, last.ids[-1:]])
                    sequences = *before, TokenSequence(ids, last.start)
                if text_windows is not None and len(sequences) == 1:
                    [text] = sequences
                    windows = WindowedText(text.ids, text.start, text_windows, text.positions)
                    item = TokenizedRequest(windows, has_end=has_end)
                else:
                    trimmed = tuple(sequence.trimmed() for sequence in sequences)
                    item = self._truncate(trimmed, truncate)._replace(has_end=has_end)
            tokenized.append(item)
        return self._check(tokenized)

    def _has_position_after(
        self, sequences: Encoded, is_bounded: bool, text_windows: TextWindows | None
    ) -> bool:
        """Return True if the model can read the last token of a text, which it only scores."""
        if text_windows is not None and text_windows.half:  # it could complete a window
            return False
        if sequences and sequences[-1].positions is not None:  # its end is not that of a text
            return False
        n_read = len(sequences[-1].ids) if sequences else 0
        return n_read > 0 and (not is_bounded or n_read <= self._max_positions)

    def labels(
        self, requests: Sequence[LabelRequest], truncate: str | None
    ) -> list[TokenizedRequest]:
        """Tokenize label requests: the prompt, with the labels as choices after it."""
        max_positions = self._max_positions if truncate is None else None
        encode = functools.partial(self._encoder.request_ids, max_positions=max_positions)
        usable = [request for request in requests if _label_error(request) is None]
        encoded = iter(encode_each(encode, usable))
        tokenized = []
        for request in requests:
            if error := _label_error(request):
                item = TokenizedRequest(error=error)
            elif isinstance(ids := next(encoded), TextError):
                item = TokenizedRequest(error=_explain(ids, request.prompt))
            elif not len(ids):
                item = TokenizedRequest(
                    error="its prompt contains no tokens, expected at least one"
                )
            else:
                sequence = TokenSequence(ids, len(ids), np.array(request.label_ids))
                item = self._truncate((sequence,), truncate)
            tokenized.append(item)
        return self._check(tokenized)

    def sequences(
        self, sequences: Sequence[TokenSequence], truncate: str | None
    ) -> list[TokenizedRequest]:
        """Check and truncate sequences of token ids; see `Scorer.score` for `truncate`."""
        return self._check([self._truncate((sequence,), truncate) for sequence in sequences])

    def _truncate(self, encoded: Encoded, truncate: str | None) -> TokenizedRequest:
        """Drop the oldest tokens of sequences that are too long, if `truncate` is set."""
        if truncate is None:
            return TokenizedRequest(encoded)
        sequences, n_dropped = [], 0
        prefix = self._encoder.prefix
        for sequence in encoded:
            over = len(sequence.input_ids) - self._max_positions
            keep = len(prefix) if sequence.ids[: len(prefix)].tolist() == prefix else 0
            # Without a BOS, keep one context token to predict the first token of the continuation.
            if 0 < over <= sequence.start - max(keep, 1):
                ids = np.concatenate([sequence.ids[:keep], sequence.ids[keep + over :]])
                positions = None if sequence.positions is None else sequence.positions - over
                start = sequence.start - over
                sequence = TokenSequence(ids, start, sequence.choices, positions)
                n_dropped = max(n_dropped, over)
            sequences.append(sequence)
        return TokenizedRequest(tuple(sequences), n_dropped)

    def _check(self, tokenized: list[TokenizedRequest]) -> list[TokenizedRequest]:
        """Replace requests that the model cannot score with their errors."""
        errors, n_checked = dict[int, str](), 0
        sequences = (sequence for item in tokenized for sequence in item.sequences)
        for group in bounded_groups(sequences, _n_tokens, CHUNK, CHUNK_CHARACTERS):
            errors |= {n_checked + k: error for k, error in self._find_errors(group).items()}
            n_checked += len(group)
        if not errors:
            return tokenized
        checked, first = [], 0
        for item in tokenized:
            indices = range(first, first := first + len(item.sequences))
            error = next((errors[k] for k in indices if k in errors), None)
            checked.append(item if error is None else TokenizedRequest(error=error))
        return checked


def _label_error(request: Any) -> str | None:
    """Return the error of a label request that is invalid for every model, or None."""
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
    return None if is_valid_unicode(request.prompt) else INVALID_UNICODE


def _explain(problem: TextError, context: str) -> str:
    """Return the error of a request that cannot be encoded, with advice."""
    hint = ", or drop its oldest tokens with --truncate left"
    return str(problem) + hint * (isinstance(problem, TooLongError) and bool(context))


Window = list[tuple[Request | Unusable, TokenizedRequest]]


class Chunk(NamedTuple):
    """Requests that are encoded together; `last` is True for the last chunk of a window."""

    requests: list[Request | Unusable]
    last: bool


def bounded_groups(
    items: Iterable[Item], size: Callable[[Item], int], max_items: int, max_size: int
) -> Iterator[list[Item]]:
    """Group neighbours in lists of `max_items` items, or fewer if their sizes reach `max_size`."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += size(item)
        if len(group) == max_items or total >= max_size:
            yield group
            group, total = [], 0
    if group:
        yield group


def split_chunks(requests: Iterable[Request | Unusable], sizes: Iterable[int]) -> Iterator[Chunk]:
    """Split requests into chunks, in order.

    Args:
        sizes: the number of requests of each window; their sum is at least `len(requests)`.
    """
    source = iter(requests)
    for n_left in sizes:
        window = itertools.islice(source, n_left)
        for chunk in bounded_groups(window, lambda r: len(_text(r)), CHUNK, CHUNK_CHARACTERS):
            n_left -= len(chunk)
            yield Chunk(chunk, not n_left)
        if n_left:
            return


def _n_tokens(sequence: TokenSequence) -> int:
    return sequence.n_input_tokens


def _text(request: Request | Unusable) -> str:
    return "" if isinstance(request, Unusable) else request.context + request.continuation


@dataclasses.dataclass(frozen=True)
class WindowTokenizer:
    """A tokenizer that groups requests in windows of token sequences that are planned together.

    Attributes:
        boundary, truncate, special_tokens, text_windows, ends: see `Scorer.score`.
        window: the maximum number of requests that wait to be encoded.
        window_tokens: the number of tokens at which a window ends early; None means no limit.

    Raises:
        ValueError: an option is invalid.
    """

    tokenizer: RequestTokenizer
    boundary: Boundary
    truncate: Truncate | None
    special_tokens: bool
    window: int
    window_tokens: int | None = None
    text_windows: TextWindows | None = None
    ends: bool = False

    def __post_init__(self) -> None:
        check_choice("boundary", self.boundary, BOUNDARIES)
        check_choice("truncate", self.truncate, (None, *get_args(Truncate)))
        for name in ("window", "window_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, expected at least 1")

    @property
    def chunks_ahead(self) -> int:
        """The maximum number of chunks that wait to be encoded; one if each text may be long."""
        return -(-self.window // CHUNK) if self.text_windows is None else 1

    def groups(self, window: Window) -> Iterator[list[TokenSequence]]:
        """Yield the sequences of a window, in the groups that are planned together."""
        sequences = (sequence for _, item in window for sequence in item.sequences)
        if self.text_windows is None:
            yield list(sequences)
            return
        group: list[TokenSequence] = []
        for group in bounded_groups(sequences, _n_tokens, GROUP, GROUP_TOKENS):
            yield group
        if not group:  # results are read after each group
            yield group

    def windows(self, chunks: Iterable[Chunk]) -> Iterator[Window]:
        """Tokenize chunks; yield each window after its last chunk."""
        window: Window = []
        n_tokens = 0
        for requests, last in chunks:
            tokenized = self.tokenizer.texts(
                requests,
                self.boundary,
                self.truncate,
                self.special_tokens,
                self.text_windows,
                self.ends,
            )
            window += zip(requests, tokenized, strict=True)
            n_tokens += sum(
                _n_tokens(sequence) for item in tokenized for sequence in item.sequences
            )
            if last or (self.window_tokens is not None and n_tokens >= self.window_tokens):
                yield window
                window, n_tokens = [], 0
        if window:
            yield window


def order_by_prefix(requests: Sequence[Request | Unusable]) -> tuple[list[int], list[int]]:
    """Order requests by their text, and split them into windows.

    If the text is shorter than two windows, keep the order and use one window.

    Returns:
        Indices of the requests in their new order, and the number of requests of each window. Texts
        in different windows are different and share at most `MOST_SHARED` leading characters.
    """
    texts = list(map(_text, requests))
    lengths = list(map(len, texts))
    if sum(lengths) < 2 * FIRST:
        return list(range(len(requests))), [len(requests)] if requests else []
    order = sorted(range(len(requests)), key=texts.__getitem__)
    before = [0, *itertools.accumulate(lengths[k] for k in order)]  # characters before each text
    sizes: list[int] = []
    start = index = 0
    max_size = float(FIRST)
    while index < len(order):
        remaining = before[-1] - before[start]
        size = min(max_size, LARGEST, max(FIRST, remaining / 2))
        index = max(index, bisect.bisect_left(before, before[start] + size))
        cut = _find_cut([texts[k] for k in order[index - 1 : index + SEARCHED]])
        if cut is None:
            index += SEARCHED
            continue
        sizes.append(index + cut - start)
        start = index = index + cut
        max_size *= GROWTH
    if start < len(order):
        sizes.append(len(order) - start)
        if len(sizes) > 1 and before[-1] - before[start] < FIRST:  # too small for a window
            sizes[-2:] = [sum(sizes[-2:])]
    return order, sizes


def _find_cut(texts: Sequence[str]) -> int | None:
    """Return the index of the text that shares the shortest prefix with the next one.

    Returns None if all neighbours share more than `MOST_SHARED` characters or are equal.
    """
    heads = [text[: MOST_SHARED + 1] for text in texts]
    best, shortest = None, MOST_SHARED + 1
    for k in range(len(texts) - 1):
        shared = shared_prefix(heads[k], heads[k + 1])
        if shared < shortest and texts[k] != texts[k + 1]:
            best, shortest = k, shared
    return best


def shared_prefix(first: str, second: str) -> int:
    """Return the length of the prefix that two texts share, in characters."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(first), len(second)))

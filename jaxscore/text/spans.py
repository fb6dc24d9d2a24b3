"""Spans of characters: of each token in its text, and of the regions into which users divide it."""

import bisect
import dataclasses
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError
from jaxscore.text.decoder import TokenBytes

Span = tuple[int, int]  # first character, and the one after the last
MARK = "|"  # between the regions of a text in one cell
CONTINUATION = 0b11000000, 0b10000000  # mask and value of bytes within a character in UTF-8


@dataclasses.dataclass(frozen=True)
class TokenSpans:
    """The characters of consecutive tokens.

    Attributes:
        text: the text: the user's, unless it is rewritten.
        start, end: int32 [n], characters of the text. Tokens that share a character all have it.
        is_rewritten: the tokenizer has changed characters that decompose to others, so that `text`
            is that of its tokens.
    """

    text: str
    start: np.ndarray
    end: np.ndarray
    is_rewritten: bool
    _shift: int
    _first: np.ndarray | None
    _last: np.ndarray | None

    def span(self, start: int, end: int) -> Span:
        """Return the characters of the text for a span of the tokens' own text."""
        if self._first is None:
            return max(start + self._shift, 0), min(max(end + self._shift, 0), len(self.text))
        starts, ends = _in_text(
            np.array([start]), np.array([end]), self._shift, self._first, self._last
        )
        return int(starts[0]), min(int(ends[0]), len(self.text))


def token_spans(ids: np.ndarray, token_bytes: TokenBytes, text: str | None) -> TokenSpans:
    """Return the characters of tokens in the text that they end with, or that ends with them.

    Without a text they are those of the tokens' own.

    A tokenizer may compose accents, fold widths or lower case; characters are then paired by what
    they decompose to.
    """
    raw = [token_bytes.raw(id) for id in ids.tolist()]
    joined = b"".join(raw)
    decoded = joined.decode("utf-8", "replace")
    first, last, is_rewritten = None, None, False
    text = decoded if text is None else text
    if not (text.endswith(decoded) or decoded.endswith(text)):
        if (pairs := _paired(decoded, text)) is None:
            text, is_rewritten = decoded, True
        else:
            first, last = pairs
    sizes = np.fromiter(map(len, raw), np.int64, len(raw))
    offsets = np.cumsum(sizes) - sizes
    mask, value = CONTINUATION
    begins = (np.frombuffer(joined, np.uint8) & mask) != value
    has_bytes = sizes > 0
    counts, is_within = np.zeros(len(raw), np.int32), np.zeros(len(raw), bool)
    if len(begins):
        counts[has_bytes] = np.add.reduceat(begins, offsets[has_bytes], dtype=np.int32)
        is_within[has_bytes] = ~begins[offsets[has_bytes]]
    end = np.cumsum(counts, dtype=np.int32)
    shift = len(text) - len(decoded)
    start, end = _in_text(end - counts - is_within, end, shift, first, last)
    return TokenSpans(
        text,
        start.astype(np.int32),
        np.minimum(end, len(text)).astype(np.int32),
        is_rewritten,
        shift,
        first,
        last,
    )


def _in_text(
    start: np.ndarray,
    end: np.ndarray,
    shift: int,
    first: np.ndarray | None,
    last: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Convert spans of the tokens' text; see `_paired` for the arrays, of rewritten characters."""
    if first is None or last is None:
        return np.maximum(start + shift, 0), np.maximum(end + shift, 0)
    starts = first[np.minimum(start, len(first) - 1)]
    return starts, np.where(end > start, last[np.maximum(end - 1, 0)], starts)


def _paired(decoded: str, text: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the first character and the end of what each decoded character is in the text.

    None if they do not decompose to the same.
    """
    units, owners = _decomposed(decoded)
    text_units, text_owners = _decomposed(text)
    shift = len(text_units) - len(units)
    if not (text_units.endswith(units) or units.endswith(text_units)) or not text:
        return None
    places = np.maximum(np.arange(len(units)) + shift, 0)
    mapped = np.array(text_owners)[places]
    begins = np.searchsorted(owners, np.arange(len(decoded)))
    ends = np.searchsorted(owners, np.arange(len(decoded)), side="right")
    is_before = ends + shift <= 0  # a prefix space that the text does not have
    last = np.where(is_before, 0, mapped[ends - 1] + 1)
    return mapped[begins], last


def _decomposed(text: str) -> tuple[str, list[int]]:
    """Return the decomposed characters without case, and the character that each comes from."""
    parts = [unicodedata.normalize("NFKD", character).casefold() for character in text]
    return "".join(parts), [index for index, chars in enumerate(parts) for _ in chars]


def regions_of(value: Any, text: str) -> list[Span]:
    """Return the spans of the regions that a user gives.

    Args:
        value: a list of texts that together are `text`, one text with `MARK` between them, or a
            list of [start, end) pairs in order, which may leave characters out.

    Raises:
        InputError: anything else.
    """
    parts = value.split(MARK) if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts:
        raise InputError(
            f"{str(value)[:40]!r}, expected a list of texts or of [start, end) pairs, or the texts "
            f"with {MARK} between them"
        )
    if all(isinstance(region, str) for region in parts):
        return _concatenated(parts, text)
    spans: list[Span] = []
    for number, region in enumerate(parts):
        is_pair = isinstance(region, list | tuple) and len(region) == 2
        if not is_pair or any(type(value) is not int for value in region):
            raise InputError(
                f"region {number} is {region!r}, expected a pair of whole numbers [start, end), or "
                "a text if all are texts"
            )
        start, end = region
        if not 0 <= start <= end <= len(text):
            raise InputError(
                f"region {number} is {list(region)}, expected 0 <= start <= end <= {len(text)}, "
                "the number of characters"
            )
        if spans and start < spans[-1][1]:
            raise InputError(
                f"region {number}, {list(region)}, begins before region {number - 1}, "
                f"{list(spans[-1])}, ends; give them in order, without overlaps"
            )
        spans.append((start, end))
    return spans


def _concatenated(parts: Sequence[str], text: str) -> list[Span]:
    ends = [*itertools.accumulate(map(len, parts))]
    for number, (region, end) in enumerate(zip(parts, ends, strict=True)):
        expected = text[end - len(region) : end]
        if region != expected:
            raise InputError(
                f"region {number} is {region!r}, and the text has {expected!r} there; the regions "
                "joined as they are, spaces included, must be the text"
            )
    if ends[-1] != len(text):
        raise InputError(
            f"the regions end before {text[ends[-1] :][:40]!r}; joined as they are, spaces "
            "included, they must be the text"
        )
    return [(end - len(region), end) for region, end in zip(parts, ends, strict=True)]


class RegionTokens(NamedTuple):
    """The tokens of a region.

    Attributes:
        tokens: indices of the tokens whose first non-space character, or whose first character if
            they are spaces alone, is in the region.
        crossing: those of them with a non-space character after its end.
    """

    tokens: list[int]
    crossing: list[int]


def split_regions(spans: TokenSpans, regions: Sequence[Span]) -> Iterator[RegionTokens]:
    """Yield the tokens of each region, in order."""
    out = [RegionTokens([], []) for _ in regions]
    starts = [start for start, _ in regions]
    for index, (start, end) in enumerate(
        zip(spans.start.tolist(), spans.end.tolist(), strict=True)
    ):
        text = spans.text[start:end]
        first = start + len(text) - len(text.lstrip()) if text.strip() else start
        number = bisect.bisect_right(starts, first) - 1
        if number < 0 or first >= regions[number][1]:
            continue  # between two regions
        out[number].tokens.append(index)
        if start + len(text.rstrip()) > regions[number][1]:
            out[number].crossing.append(index)
    yield from out

"""Alignment of a server's token strings with the text.

The strings may differ from the text:

    <s> | The | ␠cat          a BOS that is not in the text, and shifts vLLM's `text_offset`
    The | (nothing) | cat     SentencePiece: a token decoded alone loses its leading space
    ␠� | � | �                bytes of one character, split between tokens
    Ġthe | Ċ                  names in the vocabulary; only `text_offset` helps

An alignment is accepted only if the strings together cover the whole text.
"""

import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

MAX_SPECIAL = 2  # special tokens before a text
BROKEN = "\N{REPLACEMENT CHARACTER}"
PARTS = re.compile(f"({BROKEN}+)")


class Aligned(NamedTuple):
    """Tokens aligned with a text.

    Attributes:
        n_special: the number of special tokens before the text.
        ends: for each token, the smallest and largest possible end in characters. They differ only
            if tokens split the bytes of several characters, or the tokenizer composes characters.
    """

    n_special: int
    ends: list[tuple[int, int]]


def align(text: str, tokens: Sequence[str], offsets: Sequence[int] | None = None) -> Aligned | None:
    """Align tokens with a text.

    Args:
        text: a text that is not empty.
        tokens: the tokens of the whole text, including special tokens before it.
        offsets: the server's start of each token, used if the strings do not match.

    Returns:
        The alignment, or None if the tokens are not those of the text.
    """
    aligned = _by_strings(text, tokens)
    if aligned is None and not unicodedata.is_normalized("NFC", text):
        aligned = _by_composed_strings(text, tokens)
    if aligned is None and offsets is not None and len(offsets) == len(tokens):
        aligned = _by_offsets(text, tokens, offsets)
    return aligned


def _by_strings(text: str, tokens: Sequence[str]) -> Aligned | None:
    for n_special in range(min(MAX_SPECIAL, len(tokens)) + 1):
        matcher = _Matcher(text)
        if all(map(matcher.take, tokens[n_special:])) and matcher.finish():
            return Aligned(n_special, [(0, 0)] * n_special + matcher.ends)
    return None


def _by_composed_strings(text: str, tokens: Sequence[str]) -> Aligned | None:
    """Align with the text after NFC normalization, which composes letters with their accents."""
    pieces = _split_composable(text)
    composed = [unicodedata.normalize("NFC", piece) for piece in pieces]
    aligned = _by_strings("".join(composed), tokens)
    if aligned is None:
        return None
    # The smallest and largest end in `text` for each number of composed characters
    bounds, end = [(0, 0)], 0
    for piece, short in zip(pieces, composed, strict=True):
        bounds += [(end + 1, end + len(piece))] * (len(short) - 1)
        end += len(piece)
        bounds.append((end, end))
    return Aligned(aligned.n_special, [(bounds[a][0], bounds[b][1]) for a, b in aligned.ends])


def _split_composable(text: str) -> list[str]:
    """Split a text into pieces that compose independently: letters with their marks."""
    pieces: list[str] = []
    for c in text:
        last = pieces[-1] if pieces else ""
        separate = unicodedata.normalize("NFC", last) + unicodedata.normalize("NFC", c)
        if not unicodedata.combining(c) and unicodedata.normalize("NFC", last + c) == separate:
            pieces.append(c)
        else:
            pieces[-1:] = [last + c]
    return pieces


def _by_offsets(text: str, tokens: Sequence[str], offsets: Sequence[int]) -> Aligned | None:
    """Align by offsets if tokens have the same letters as the text at their offsets."""
    for n_special in range(min(MAX_SPECIAL, len(tokens)) + 1):
        # Tokens of the bytes of one character all start and end with the character.
        groups = [list(group) for _, group in itertools.groupby(offsets[n_special:])]
        starts = [group[0] for group in groups]
        stops = [*starts[1:], len(text)]
        if not starts or starts[0] != 0 or any(a >= b for a, b in zip(starts, stops, strict=True)):
            continue
        ends, k = [(0, 0)] * n_special, n_special
        for start, stop, group in zip(starts, stops, groups, strict=True):
            if _letters(text[start:stop]) != _letters("".join(tokens[k : k + len(group)])):
                break
            ends += [(stop, stop)] * len(group)
            k += len(group)
        else:
            return Aligned(n_special, ends)
    return None


class _Matcher:
    """A position in a text that advances token by token.

    Attributes:
        ends: see `Aligned`.
    """

    def __init__(self, text: str) -> None:
        self.ends: list[tuple[int, int]] = []
        self._text, self._position = text, 0
        self._n_pending = 0  # number of preceding tokens with an unknown end
        self._n_empty = 0  # number of the last pending tokens that are empty
        self._run: int | None = None  # start of the current run of broken characters

    def take(self, token: str) -> bool:
        """Advance past a token; return False if the text does not match it."""
        first = True
        for piece in PARTS.split(token):
            if not piece:
                continue
            literal = piece[0] != BROKEN
            if literal and not self._take_literal(piece, first):
                return False
            if not literal and self._run is None:
                lost = self._count_spaces(self._n_pending)
                self._end_empty_tokens(lost)
                self._position += lost
                self._run = self._position
            first = False
        self.ends.append((self._position, self._position))
        if first or self._run is not None:
            self._n_pending += 1
            self._n_empty = self._n_empty + 1 if first else 0
        return True

    def finish(self) -> bool:
        """Return True if the text ends with the tokens."""
        if self._run is not None and not self._close_run(len(self._text), at_token_end=True):
            return False
        lost = len(self._text) - self._position
        if lost > self._n_pending or self._text[self._position :] != " " * lost:
            return False
        self._end_empty_tokens(lost)
        return True

    def _count_spaces(self, limit: int) -> int:
        """Count the spaces at the current position, up to `limit`."""
        rest = self._text[self._position : self._position + limit]
        return len(rest) - len(rest.lstrip(" "))

    def _take_literal(self, piece: str, first: bool) -> bool:
        if self._run is not None:
            stop = self._text.find(piece, self._run + 1)
            if not self._close_run(stop, at_token_end=first):
                return False
        max_lost = self._count_spaces(self._n_pending + 1) if first else 0
        for lost in range(max_lost + 1):
            if self._text.startswith(piece, self._position + lost):
                self._end_empty_tokens(lost)
                self._position += lost + len(piece)
                return True
        return False

    def _end_empty_tokens(self, lost: int) -> None:
        """Set the ends of empty tokens: each lost a space, or is a byte of the next character."""
        for k in range(self._n_pending):
            end = self._position + min(k + 1, lost)
            if not lost and not self._text[self._position : self._position + 1].isascii():
                end = self._position + 1
            self.ends[k - self._n_pending] = (end, end)
        self._n_pending = self._n_empty = 0

    def _close_run(self, stop: int, at_token_end: bool) -> bool:
        """End the run of broken characters before `stop` and before lost spaces.

        Args:
            at_token_end: if True, the run ends with the preceding token.
        """
        assert self._run is not None
        run = self._text[self._run : max(stop, 0)].rstrip(" ")
        if not run or any(c.isascii() for c in run):
            return False
        end = self._run + len(run)
        after = self._n_empty if end < stop else 0  # number of tokens that had those spaces
        for k in range(after + 1, self._n_pending + 1):
            self.ends[-k] = (end if at_token_end and k == after + 1 else self._run + 1, end)
        self._position, self._run, self._n_pending, self._n_empty = end, None, after, after
        return True


def _letters(text: str) -> str:
    return "".join(c for c in text if c.isascii() and c.isalnum())

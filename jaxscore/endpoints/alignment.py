"""Aligns the token strings of a server with the text.

The strings are not always those of the text:

    <s> | The | ␠cat          a BOS that is not in the text, and shifts vLLM's `text_offset`
    The | (nothing) | cat     sentencepiece: a token decoded alone loses its leading blank
    ␠� | � | �                bytes of one character, none of them a character alone
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
        n_special: number of tokens before the text.
        ends: per token the smallest and largest number of characters before its end. They differ
            only if tokens split the bytes of several characters, or the tokenizer composes
            characters.
    """

    n_special: int
    ends: list[tuple[int, int]]


def align(text: str, tokens: Sequence[str], offsets: Sequence[int] | None = None) -> Aligned | None:
    """Align tokens with a text.

    Args:
        text: not empty.
        tokens: of the whole text, including special ones before it.
        offsets: start of each token by the server, used if the strings do not fit.

    Returns:
        None if they are not the text's tokens.
    """
    found = _by_strings(text, tokens)
    if found is None and not unicodedata.is_normalized("NFC", text):
        found = _by_composed_strings(text, tokens)
    if found is None and offsets is not None and len(offsets) == len(tokens):
        found = _by_offsets(text, tokens, offsets)
    return found


def _by_strings(text: str, tokens: Sequence[str]) -> Aligned | None:
    for n_special in range(min(MAX_SPECIAL, len(tokens)) + 1):
        walk = _Walk(text)
        if all(map(walk.take, tokens[n_special:])) and walk.finish():
            return Aligned(n_special, [(0, 0)] * n_special + walk.ends)
    return None


def _by_composed_strings(text: str, tokens: Sequence[str]) -> Aligned | None:
    """Align with the text after NFC normalization: e and an accent become one character."""
    pieces = _composed(text)
    composed = [unicodedata.normalize("NFC", piece) for piece in pieces]
    found = _by_strings("".join(composed), tokens)
    if found is None:
        return None
    # smallest and largest end in `text` for each number of composed characters
    bounds, at = [(0, 0)], 0
    for piece, short in zip(pieces, composed, strict=True):
        bounds += [(at + 1, at + len(piece))] * (len(short) - 1)
        at += len(piece)
        bounds.append((at, at))
    return Aligned(found.n_special, [(bounds[a][0], bounds[b][1]) for a, b in found.ends])


def _composed(text: str) -> list[str]:
    """Split a text into pieces that compose independently: letters with their marks."""
    pieces: list[str] = []
    for c in text:
        last = pieces[-1] if pieces else ""
        apart = unicodedata.normalize("NFC", last) + unicodedata.normalize("NFC", c)
        if not unicodedata.combining(c) and unicodedata.normalize("NFC", last + c) == apart:
            pieces.append(c)
        else:
            pieces[-1:] = [last + c]
    return pieces


def _by_offsets(text: str, tokens: Sequence[str], offsets: Sequence[int]) -> Aligned | None:
    """Align by offsets, if tokens have the letters of the text at their offsets."""
    for n_special in range(min(MAX_SPECIAL, len(tokens)) + 1):
        # Bytes of one character start at the same offset, and end with the character.
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


class _Walk:
    """Walks along a text, one token after another."""

    def __init__(self, text: str) -> None:
        self.ends: list[tuple[int, int]] = []
        self._text, self._at = text, 0
        self._waiting = 0  # preceding tokens whose end is not known yet
        self._empty = 0  # the last ones of these, which have no text
        self._run: int | None = None  # start of the current run of broken characters

    def take(self, token: str) -> bool:
        """Move past a token, and return whether the text has it here."""
        first = True
        for part in PARTS.split(token):
            if not part:
                continue
            literal = part[0] != BROKEN
            if literal and not self._take_literal(part, first):
                return False
            if not literal and self._run is None:
                lost = self._blanks(self._waiting)
                self._empty_tokens_end(lost)
                self._at += lost
                self._run = self._at
            first = False
        self.ends.append((self._at, self._at))
        if first or self._run is not None:
            self._waiting += 1
            self._empty = self._empty + 1 if first else 0
        return True

    def finish(self) -> bool:
        """Whether the text ends with the tokens."""
        if self._run is not None and not self._close_run(len(self._text), whole=True):
            return False
        lost = len(self._text) - self._at
        if lost > self._waiting or self._text[self._at :] != " " * lost:
            return False
        self._empty_tokens_end(lost)
        return True

    def _blanks(self, most: int) -> int:
        """Number of blanks here, up to `most`."""
        rest = self._text[self._at : self._at + most]
        return len(rest) - len(rest.lstrip(" "))

    def _take_literal(self, part: str, first: bool) -> bool:
        if self._run is not None:
            stop = self._text.find(part, self._run + 1)
            if not self._close_run(stop, whole=first):
                return False
        most = self._blanks(self._waiting + 1) if first else 0
        for lost in range(most + 1):
            if self._text.startswith(part, self._at + lost):
                self._empty_tokens_end(lost)
                self._at += lost + len(part)
                return True
        return False

    def _empty_tokens_end(self, lost: int) -> None:
        """End tokens without text: each lost a blank, or is a byte of the next character."""
        for k in range(self._waiting):
            end = self._at + min(k + 1, lost)
            if not lost and not self._text[self._at : self._at + 1].isascii():
                end = self._at + 1
            self.ends[k - self._waiting] = (end, end)
        self._waiting = self._empty = 0

    def _close_run(self, stop: int, whole: bool) -> bool:
        """End the run of broken characters before `stop` and lost blanks.

        Args:
            whole: whether the run ends with the preceding token.
        """
        assert self._run is not None
        run = self._text[self._run : max(stop, 0)].rstrip(" ")
        if not run or any(c.isascii() for c in run):
            return False
        end = self._run + len(run)
        after = self._empty if end < stop else 0  # tokens that had those blanks
        for k in range(after + 1, self._waiting + 1):
            self.ends[-k] = (end if whole and k == after + 1 else self._run + 1, end)
        self._at, self._run, self._waiting, self._empty = end, None, after, after
        return True


def _letters(text: str) -> str:
    return "".join(c for c in text if c.isascii() and c.isalnum())

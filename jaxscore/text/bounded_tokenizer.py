"""Encodes and decodes with bounded memory, and makes errors of a tokenizer's panics.

A text of up to `PIECE` characters is encoded as it is. A longer one is encoded in pieces where the
tokenizer always splits (`tokenizer_limits.cuts`), and as a whole, up to `MOST_WHOLE`
characters, where that is not certain. The ids are those of the whole text either way.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tokenizers import Tokenizer

from jaxscore.errors import InputError
from jaxscore.text import tokenizer_limits

# Encoding takes 100 to 500 bytes for each character until the ids are taken from the result.
PIECE, TOGETHER = 1 << 18, 4  # characters of a piece, and pieces that are encoded together
MOST_WHOLE = 1 << 21  # characters of a text, or of a part without a place to split it
PROBES = ("a", "0", "e", ".", " ")  # a tokenizer may lack tokens for some

Item = TypeVar("Item")
Encoded = TypeVar("Encoded")
Ids = list[int] | np.ndarray  # an int32 array of a text that was encoded in pieces


class TextError(InputError):
    """A text that the tokenizer cannot read; the others of its batch can be read without it."""


class TooLongError(TextError):
    """A text that has more tokens than the model's positions can hold."""


class Piece(NamedTuple):
    """A part of a text.

    Attributes:
        start: the characters of the text before it.
        ids: int32; a list if the piece is the whole text.
        offsets: the first and the last character + 1 of each token, in the piece.
    """

    start: int
    text: str
    ids: Ids
    offsets: list[tuple[int, int]]


@contextlib.contextmanager
def panics_as_errors(
    failure: str = "the tokenizer cannot read the text",
    advice: str = "",
    error: type[InputError] = TextError,
) -> Iterator[None]:
    """Raise what a tokenizer raises as an `error`; a panic of its Rust code is no `Exception`.

    Raises:
        InputError: an `error` of `failure`, the reason and `advice`.
    """
    try:
        yield
    except (InputError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as problem:
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise error(f"{failure} ({reason[0]}){advice}") from None


def decode_ids(tokenizer: Any, ids: Any, **how: Any) -> str:
    """What a checkpoint's tokenizer makes of some ids; `how` as of its own `decode_ids`.

    Raises:
        TextError: it panics.
    """
    with panics_as_errors("the tokenizer cannot decode its ids"):
        text: str = tokenizer.decode(ids, **how)
    return text


def encode_each(
    encode: Callable[[Sequence[Item]], Iterable[Encoded]], items: Sequence[Item]
) -> list[Encoded | TextError]:
    """What `encode` gives for each item; where it fails, halves find the items that fail."""
    try:
        return [*encode(items)]
    except TextError as problem:
        if len(items) == 1:
            return [problem]
    half = len(items) // 2
    return encode_each(encode, items[:half]) + encode_each(encode, items[half:])


class BoundedTokenizer:
    """Wraps a backend that neither pads nor truncates; threads may share it."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend

    def ids(
        self, texts: Sequence[str], *, most: int | None = None, special_tokens: bool = False
    ) -> list[Ids]:
        """The ids of each text.

        Args:
            most: tokens that a text may have; None is no limit.
            special_tokens: whether the tokenizer's special tokens stand around each text.

        Raises:
            TextError: a text that certainly has more than `most` tokens, that is too long to be
                encoded, or on which the tokenizer panics.
        """
        self._check(texts, most)
        short = [text for text in texts if len(text) <= PIECE]
        with panics_as_errors():
            found = iter(self.backend.encode_batch_fast(short, add_special_tokens=special_tokens))
        out: list[Ids] = []
        for text in texts:
            if len(text) <= PIECE:
                out.append(next(found).ids)
                continue
            parts = [piece.ids for piece in self.pieces(text, most=most, offsets=False)]
            before, after = self._around if special_tokens else ([], [])
            out.append(np.concatenate([before, *parts, after], dtype=np.int32, casting="unsafe"))
        return out

    def pieces_of_each(
        self, texts: Sequence[str], *, most: int | None = None
    ) -> Iterator[Iterator[Piece]]:
        """The pieces of each text with offsets; arguments and errors as of `ids`.

        The pieces of a text must be taken before the next text.
        """
        self._check(texts, most)
        short = [text for text in texts if len(text) <= PIECE]
        with panics_as_errors():
            found = iter(self.backend.encode_batch(short, add_special_tokens=False))
        for text in texts:
            if len(text) <= PIECE:
                one = next(found)
                yield iter([Piece(0, text, one.ids, one.offsets)])
            else:
                yield self.pieces(text, most=most)

    def pieces(
        self, text: str, *, most: int | None = None, offsets: bool = True
    ) -> Iterator[Piece]:
        """A long text in pieces, at most `TOGETHER` of them in memory; see `ids`."""
        starts = self._starts(text)
        skips = self._cuts is not None and self._cuts.leaves_blank_out
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        n_tokens = 0
        for k in range(0, len(starts) - 1, TOGETHER):
            bounds = starts[k : k + TOGETHER + 1]
            some = [text[a + (skips and a > 0) : b] for a, b in itertools.pairwise(bounds)]
            with panics_as_errors():
                found = encode(some, add_special_tokens=False)
            for (start, end), one in zip(itertools.pairwise(bounds), found, strict=True):
                ids, own = np.array(one.ids, np.int32), one.offsets if offsets else []
                n_tokens += len(ids)
                if offsets and skips and start:
                    own = _with_blank(own, one.tokens[0])
                yield Piece(start, text[start:end], ids, own)
            if most is not None and n_tokens > most + 1:
                raise TooLongError(_too_long(f"at least {n_tokens} tokens", most))

    def most_characters(self, n_tokens: int) -> int | None:
        """Characters that a text of so many tokens has at most; None where that is not known."""
        limit = self._limit
        return None if limit is None or limit.counted else n_tokens * limit.characters

    def _check(self, texts: Sequence[str], most: int | None) -> None:
        if most is None:
            return
        for text in texts:
            if len(text) > most + 1 and self._limit and self._limit.exceeds(text, most + 1):
                raise TooLongError(_too_long(f"{len(text)} characters", most))

    def _starts(self, text: str) -> list[int]:
        """Where the pieces of a text start, and its length."""
        starts = [0]
        while len(text) - starts[-1] > PIECE:
            cut = self._cuts and self._cuts.pattern.search(text, starts[-1] + PIECE)
            end = len(text) if cut is None else cut.start()
            if end - starts[-1] > MOST_WHOLE:
                raise TextError(
                    f"{end - starts[-1]} characters without a place where this tokenizer certainly "
                    f"splits a text; at most {MOST_WHOLE} can be encoded together: shorten the "
                    "text, or write it in parts"
                )
            starts.append(end)
        if starts[-1] < len(text):
            starts.append(len(text))
        return starts

    @functools.cached_property
    def _limit(self) -> tokenizer_limits.CharacterLimit | None:
        return tokenizer_limits.character_limit(self.backend)

    @functools.cached_property
    def _cuts(self) -> tokenizer_limits.Cuts | None:
        return tokenizer_limits.cuts(self.backend)

    @functools.cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """Special tokens before and after a text."""
        with panics_as_errors():
            found = special_tokens_around(
                lambda text, special: self.backend.encode(text, add_special_tokens=special).ids
            )
        if found is None:
            raise TextError(
                f"none of {PROBES} has tokens, so the special tokens around a text are unknown; "
                "is tokenizer.json the one of this model?"
            )
        return found


def special_tokens_around(
    encode: Callable[[str, bool], list[int]],
) -> tuple[list[int], list[int]] | None:
    """Special tokens before and after a text; None if no probe has tokens.

    Args:
        encode: the ids of a text, without or with special tokens.
    """
    for probe in PROBES:
        bare, full = encode(probe, False), encode(probe, True)
        for k in range(len(full) - len(bare) + 1):
            if bare and full[k : k + len(bare)] == bare:
                return full[:k], full[k + len(bare) :]
    return None


def _with_blank(offsets: list[tuple[int, int]], first: str) -> list[tuple[int, int]]:
    """Offsets in a piece with the blank that was left out; its first token has the blank."""
    moved = [(a + 1, b + 1) for a, b in offsets]
    moved[0] = (0, 1 if first == tokenizer_limits.MARK else moved[0][1])
    return moved


def _too_long(found: str, most: int) -> str:
    return f"its text has {found}, more than the model's {most} positions can hold; shorten it"

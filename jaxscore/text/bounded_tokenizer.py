"""Encodes and decodes with bounded memory, and turns a tokenizer's panics into errors.

A text of up to `PIECE` characters is encoded as a whole. A longer one is encoded in pieces that
end where the tokenizer always splits (`tokenizer_limits.cuts`); without such a place, as a whole up
to `MOST_WHOLE` characters. Either way the ids equal the whole text's.
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

# Encoding takes 100 to 500 bytes per character until the ids are extracted.
PIECE, TOGETHER = 1 << 18, 4  # characters of a piece, and pieces encoded at a time
MOST_WHOLE = 1 << 21  # most characters of a text, or of a part, that cannot be split
PROBES = ("a", "0", "e", ".", " ")  # a tokenizer may lack tokens for some

Item = TypeVar("Item")
Encoded = TypeVar("Encoded")
Ids = list[int] | np.ndarray  # int32 array for a text encoded in pieces


class TextError(InputError):
    """The tokenizer cannot read a text; other texts of the batch are not affected."""


class TooLongError(TextError):
    """A text has more tokens than the model has positions."""


class Piece(NamedTuple):
    """A part of a text.

    Attributes:
        start: number of characters of the text before the piece.
        ids: int32; a list if the piece is the whole text.
        offsets: start and end of each token, in characters of the piece.
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
    """Turn any exception of a tokenizer into an `error`; a Rust panic is no `Exception`.

    Raises:
        InputError: an `error` with `failure`, the reason and `advice`.
    """
    try:
        yield
    except (InputError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as problem:
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise error(f"{failure} ({reason[0]}){advice}") from None


def decode_ids(tokenizer: Any, ids: Any, *, skip_special_tokens: bool = False) -> str:
    """Decode the ids of a whole text by the decoder of tokenizer.json, as transformers 5 does.

    transformers 4.57 also removes spaces before punctuation where tokenizer_config.json sets
    `clean_up_tokenization_spaces`; here the text is what its tokens are. For tokens that continue a
    text see `decoder.TokenBytes`: SentencePiece's decoders drop a space at a text's start.

    Args:
        ids: one id, or a sequence of ids.

    Raises:
        TextError: the tokenizer panics.
    """
    with panics_as_errors("the tokenizer cannot decode its ids"):
        text: str = tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    return text


def encode_each(
    encode: Callable[[Sequence[Item]], Iterable[Encoded]], items: Sequence[Item]
) -> list[Encoded | TextError]:
    """Encode all items; if it fails, bisect to find the items that fail."""
    try:
        return [*encode(items)]
    except TextError as problem:
        if len(items) == 1:
            return [problem]
    half = len(items) // 2
    return encode_each(encode, items[:half]) + encode_each(encode, items[half:])


class BoundedTokenizer:
    """Wraps a backend that neither pads nor truncates. Thread-safe."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend

    def ids(
        self, texts: Sequence[str], *, most: int | None = None, special_tokens: bool = False
    ) -> list[Ids]:
        """Encode each text.

        Args:
            most: most tokens of a text; None is no limit.
            special_tokens: whether to add the tokenizer's special tokens.

        Raises:
            TextError: a text certainly has more than `most` tokens, is too long to be encoded, or
                makes the tokenizer panic.
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
        """Encode each text in pieces with offsets; arguments and errors as of `ids`.

        Consume the pieces of a text before the next text.
        """
        self._check(texts, most)
        short = [text for text in texts if len(text) <= PIECE]
        with panics_as_errors():
            found = iter(self.backend.encode_batch(short, add_special_tokens=False))
        for text in texts:
            if len(text) <= PIECE:
                encoding = next(found)
                yield iter([Piece(0, text, encoding.ids, encoding.offsets)])
            else:
                yield self.pieces(text, most=most)

    def pieces(
        self, text: str, *, most: int | None = None, offsets: bool = True
    ) -> Iterator[Piece]:
        """Encode a long text in pieces, at most `TOGETHER` in memory; see `ids`."""
        starts = self._starts(text)
        skips = self._cuts is not None and self._cuts.leaves_blank_out
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        n_tokens = 0
        for k in range(0, len(starts) - 1, TOGETHER):
            bounds = starts[k : k + TOGETHER + 1]
            pieces = [text[a + (skips and a > 0) : b] for a, b in itertools.pairwise(bounds)]
            with panics_as_errors():
                found = encode(pieces, add_special_tokens=False)
            for (start, end), encoding in zip(itertools.pairwise(bounds), found, strict=True):
                ids = np.array(encoding.ids, np.int32)
                places = encoding.offsets if offsets else []
                n_tokens += len(ids)
                if offsets and skips and start:
                    places = _with_blank(places, encoding.tokens[0])
                yield Piece(start, text[start:end], ids, places)
            if most is not None and n_tokens > most + 1:
                raise TooLongError(_too_long(f"at least {n_tokens} tokens", most))

    def most_characters(self, n_tokens: int) -> int | None:
        """Most characters of a text with `n_tokens` tokens, or None if that is unknown."""
        limit = self._limit
        return None if limit is None or limit.counted else n_tokens * limit.characters

    def _check(self, texts: Sequence[str], most: int | None) -> None:
        if most is None:
            return
        for text in texts:
            if len(text) > most + 1 and self._limit and self._limit.exceeds(text, most + 1):
                raise TooLongError(_too_long(f"{len(text)} characters", most))

    def _starts(self, text: str) -> list[int]:
        """Starts of the pieces of a text, and its length."""
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
        encode: returns the ids of a text; its second argument says whether to add special tokens.
    """
    for probe in PROBES:
        bare, full = encode(probe, False), encode(probe, True)
        for k in range(len(full) - len(bare) + 1):
            if bare and full[k : k + len(bare)] == bare:
                return full[:k], full[k + len(bare) :]
    return None


def _with_blank(offsets: list[tuple[int, int]], first: str) -> list[tuple[int, int]]:
    """Offsets after restoring the leading blank, which belongs to the first token."""
    moved = [(a + 1, b + 1) for a, b in offsets]
    moved[0] = (0, 1 if first == tokenizer_limits.MARK else moved[0][1])
    return moved


def _too_long(found: str, most: int) -> str:
    return f"its text has {found}, more than the model's {most} positions can hold; shorten it"

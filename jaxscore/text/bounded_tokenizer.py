"""Encoding and decoding with bounded memory; a tokenizer's panics become errors.

A text of up to `PIECE` characters is encoded at once. A longer text is encoded in pieces that end
where the tokenizer always splits (`tokenizer_limits.cuts`). If it has no such position, it is
encoded at once up to `MAX_WHOLE` characters. The ids are always those of the whole text.
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
PIECE, TOGETHER = 1 << 18, 4  # characters per piece, and pieces encoded at a time
MAX_WHOLE = 1 << 21  # maximum number of characters between two splits
PROBES = ("a", "0", "e", ".", " ")  # several, since a tokenizer may lack tokens for some

Item = TypeVar("Item")
Encoded = TypeVar("Encoded")
Ids = list[int] | np.ndarray  # int32 array for a text encoded in pieces


class TextError(InputError):
    """The tokenizer cannot read a text; other texts of the batch are not affected."""


class TooLongError(TextError):
    """A text has more tokens than the model has positions."""


class Piece(NamedTuple):
    """A piece of a text.

    Attributes:
        start: the index of the piece's first character in the text.
        ids: the token ids: an int32 array, or a list if the piece is the whole text.
        offsets: the start and end of each token, in characters of the piece.
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
    """Turn any exception of a tokenizer into an `error`, including Rust panics.

    Raises:
        InputError: an `error` with `failure`, the reason and `advice`.
    """
    try:
        yield
    except (InputError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as problem:  # a Rust panic is not an `Exception`
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise error(f"{failure} ({reason[0]}){advice}") from None


def decode_ids(tokenizer: Any, ids: Any, *, skip_special_tokens: bool = False) -> str:
    """Decode the ids of a whole text by the decoder of tokenizer.json, as transformers 5 does.

    Ignores `clean_up_tokenization_spaces` of tokenizer_config.json, by which transformers 4.57
    removes spaces before punctuation. For tokens that continue a text use `decoder.TokenBytes`:
    SentencePiece's decoders drop a space at the start of a text.

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
    """A wrapper of a backend that neither pads nor truncates. Thread-safe."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend

    def ids(
        self,
        texts: Sequence[str],
        *,
        max_positions: int | None = None,
        special_tokens: bool = False,
    ) -> list[Ids]:
        """Encode each text.

        Args:
            max_positions: maximum number of input tokens of a text; None means no limit.
            special_tokens: if True, add the tokenizer's special tokens.

        Raises:
            TextError: a text certainly has more than `max_positions` + 1 tokens, is too long to be
                encoded, or makes the tokenizer panic.
        """
        self._check(texts, max_positions)
        short = [text for text in texts if len(text) <= PIECE]
        with panics_as_errors():
            encodings = iter(
                self.backend.encode_batch_fast(short, add_special_tokens=special_tokens)
            )
        out: list[Ids] = []
        for text in texts:
            if len(text) <= PIECE:
                out.append(next(encodings).ids)
                continue
            piece_ids = [
                piece.ids for piece in self.pieces(text, max_positions=max_positions, offsets=False)
            ]
            before, after = self._special_ids if special_tokens else ([], [])
            out.append(
                np.concatenate([before, *piece_ids, after], dtype=np.int32, casting="unsafe")
            )
        return out

    def pieces_of_each(
        self, texts: Sequence[str], *, max_positions: int | None = None
    ) -> Iterator[Iterator[Piece]]:
        """Encode each text in pieces with offsets; see `ids` for arguments and errors.

        Consume all pieces of a text before requesting the next text.
        """
        self._check(texts, max_positions)
        short = [text for text in texts if len(text) <= PIECE]
        with panics_as_errors():
            encodings = iter(self.backend.encode_batch(short, add_special_tokens=False))
        for text in texts:
            if len(text) <= PIECE:
                encoding = next(encodings)
                yield iter([Piece(0, text, encoding.ids, encoding.offsets)])
            else:
                yield self.pieces(text, max_positions=max_positions)

    def pieces(
        self, text: str, *, max_positions: int | None = None, offsets: bool = True
    ) -> Iterator[Piece]:
        """Encode a long text in pieces, with at most `TOGETHER` in memory; see `ids`."""
        starts = self._starts(text)
        drops_space = self._cuts is not None and self._cuts.drops_space
        encode = self.backend.encode_batch if offsets else self.backend.encode_batch_fast
        n_tokens = 0
        for k in range(0, len(starts) - 1, TOGETHER):
            bounds = starts[k : k + TOGETHER + 1]
            pieces = [text[a + (drops_space and a > 0) : b] for a, b in itertools.pairwise(bounds)]
            with panics_as_errors():
                encodings = encode(pieces, add_special_tokens=False)
            for (start, end), encoding in zip(itertools.pairwise(bounds), encodings, strict=True):
                ids = np.array(encoding.ids, np.int32)
                piece_offsets = encoding.offsets if offsets else []
                n_tokens += len(ids)
                if offsets and drops_space and start:
                    piece_offsets = _with_leading_space(piece_offsets, encoding.tokens[0])
                yield Piece(start, text[start:end], ids, piece_offsets)
            if max_positions is not None and n_tokens > max_positions + 1:
                raise TooLongError(_too_long(f"at least {n_tokens} tokens", max_positions))

    def most_characters(self, n_tokens: int) -> int | None:
        """Return the maximum length of a text with `n_tokens` tokens in characters, or None."""
        limit = self._limit
        return None if limit is None or limit.counted else n_tokens * limit.characters

    def _check(self, texts: Sequence[str], max_positions: int | None) -> None:
        if max_positions is None:
            return
        for text in texts:
            if (
                len(text) > max_positions + 1
                and self._limit
                and self._limit.exceeds(text, max_positions + 1)
            ):
                raise TooLongError(_too_long(f"{len(text)} characters", max_positions))

    def _starts(self, text: str) -> list[int]:
        """Return the start of each piece of a text, then the length of the text."""
        starts = [0]
        while len(text) - starts[-1] > PIECE:
            cut = self._cuts and self._cuts.pattern.search(text, starts[-1] + PIECE)
            end = len(text) if cut is None else cut.start()
            if end - starts[-1] > MAX_WHOLE:
                raise TextError(
                    f"{end - starts[-1]} characters without a position where this tokenizer "
                    f"certainly splits a text; at most {MAX_WHOLE} can be encoded together: "
                    "shorten the text, or write it in parts"
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
    def _special_ids(self) -> tuple[list[int], list[int]]:
        """Ids of the special tokens before and after a text."""
        with panics_as_errors():
            special_ids = special_tokens_around(
                lambda text, special: self.backend.encode(text, add_special_tokens=special).ids
            )
        if special_ids is None:
            raise TextError(
                f"none of {PROBES} has tokens, so the special tokens around a text are unknown; "
                "check that tokenizer.json belongs to this model"
            )
        return special_ids


def special_tokens_around(
    encode: Callable[[str, bool], list[int]],
) -> tuple[list[int], list[int]] | None:
    """Return the ids of the special tokens before and after a text; None if no probe has tokens.

    Args:
        encode: a function of a text that returns its ids, with special tokens if its second
            argument is True.
    """
    for probe in PROBES:
        bare, full = encode(probe, False), encode(probe, True)
        for k in range(len(full) - len(bare) + 1):
            if bare and full[k : k + len(bare)] == bare:
                return full[:k], full[k + len(bare) :]
    return None


def _with_leading_space(offsets: list[tuple[int, int]], first: str) -> list[tuple[int, int]]:
    """Shift offsets to include the leading space, which belongs to the first token."""
    shifted = [(a + 1, b + 1) for a, b in offsets]
    shifted[0] = (0, 1 if first == tokenizer_limits.MARK else shifted[0][1])
    return shifted


def _too_long(length: str, max_positions: int) -> str:
    return (
        f"its text has {length}, more than the model's {max_positions} positions can hold; "
        "shorten it"
    )

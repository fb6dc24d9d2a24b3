"""Token ids to text: decoding, stop strings, the bytes of each token, and words.

A token may be a part of a character, and a tokenizer's `decode` drops the blank before a text's
first word. Bytes lose neither: the joined bytes of a text's tokens are the text.
"""

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.text.bounded_tokenizer import decode_ids, panics_as_errors
from jaxscore.text.tokenizer_limits import parts
from jaxscore.types.token_texts import byte_of

PIECE = "\ufffd"  # decoded from an incomplete character
# Most characters at either end of a decoded piece that may differ from those of the whole text: a
# tokenizer drops a blank before a text and cleans up blanks before punctuation.
SLACK = 16
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte's name in a vocabulary with byte fallback
_KNOWN = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class TextDecoder:
    """Decodes token ids as the tokenizer's own `decode` does.

    Each method raises a `TextError` if the tokenizer panics.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return decode_ids(self._tokenizer, ids, skip_special_tokens=True)

    def raw_text(self, ids: Sequence[int]) -> str:
        """Text with special tokens by name."""
        return decode_ids(self._tokenizer, ids, skip_special_tokens=False)

    def text_before(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """Text without special tokens, up to the earliest stop string, if any.

        Stop strings are searched in `raw_text(ids)`, since one may be the name of a special token.
        """
        text, shown = self.text(ids), self.raw_text(ids)
        at = min((k for text in stop if (k := shown.find(text)) >= 0), default=len(shown))
        if text == shown:
            return text[:at]
        # Tokens before the stop string, up to one that ends with a complete character.
        n, head = len(ids), shown
        while n and (len(head) > at or head.endswith(PIECE)):
            n -= 1
            head = self.raw_text(ids[:n])
        begins_in_special = n < len(ids) and not self.text(ids[n : n + 1])
        return self.text(ids[:n]) + ("" if begins_in_special else shown[len(head) : at])


class StopSearch:
    """Finds the first token that completes a stop string in the decoded text.

    Decodes a window of the last tokens instead of the whole text, which would take quadratic time.
    The window starts after a complete character, and is so long that differences at its start lie
    outside the searched part.
    """

    def __init__(self, stop: Sequence[str], shown: Callable[[Sequence[int]], str]) -> None:
        """
        Args:
            stop: strings, none of them empty or with U+FFFD.
            shown: decodes ids, special tokens by name.
        """
        self._stop, self._shown = tuple(stop), shown
        self._back = max(map(len, self._stop), default=0) + SLACK
        self._window: list[int] = []
        # (tokens, characters) of the window at each token that ended with a complete character.
        self._whole: list[tuple[int, int]] = []

    def ends_with(self, id: int) -> bool:
        """Whether the next token of the text completes a stop string."""
        if not self._stop:
            return False
        self._window.append(id)
        text = self._shown(self._window)
        # The text up to the last complete character is searched already.
        start = max(0, (self._whole[-1][1] if self._whole else 0) - self._back)
        if any(text.find(stop, start) >= 0 for stop in self._stop):
            return True
        if not text.endswith(PIECE):
            self._whole.append((len(self._window), len(text)))
            self._move(len(text))
        return False

    def _move(self, length: int) -> None:
        """Drop the window's first tokens once half of it is enough."""
        enough = self._back + SLACK
        if length < 2 * enough:
            return
        before = [
            k for k, (_, characters) in enumerate(self._whole) if length - characters >= enough
        ]
        if not before:
            return
        n_tokens, n_characters = self._whole[before[-1]]
        self._window = self._window[n_tokens:]
        later = self._whole[before[-1] + 1 :]
        self._whole = [(n - n_tokens, characters - n_characters) for n, characters in later]


class TokenBytes:
    """Bytes and text of token ids under one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = tokenizer.backend_tokenizer
        self._added = backend.get_added_tokens_decoder()
        self._special = {id for id, token in self._added.items() if token.special}
        self._special |= set(tokenizer.all_special_ids)
        decoder_parts = list(parts(backend.decoder))
        kinds = {part["type"] for part in decoder_parts}
        self._byte_level = "ByteLevel" in kinds
        self._falls_back = "ByteFallback" in kinds
        self._replaced = dict(_replacements(decoder_parts))
        self._readable = bool(kinds) and kinds <= _KNOWN
        self.strips_first = not self._readable or any(map(_strips, decoder_parts))
        self._bytes: dict[int, bytes] = {}

    def is_special(self, id: int) -> bool:
        """Whether the token is special, such as BOS and EOS."""
        return id in self._special

    def raw(self, id: int) -> bytes:
        """Bytes of a token: the name of a special one, empty for an id without a token."""
        found = self._bytes.get(id)
        if found is None:
            found = self._bytes[id] = self._read(id)
        return found

    def text(self, id: int) -> str:
        """Text of one token; an incomplete character is U+FFFD."""
        return self.raw(id).decode("utf-8", "replace")

    def join(self, ids: Iterable[int]) -> str:
        """Text of tokens that continue a text, without special tokens."""
        raw = b"".join(self.raw(id) for id in ids if id not in self._special)
        return raw.decode("utf-8", "replace")

    def text_and_starts(self, ids: Iterable[int], *, is_first: bool) -> tuple[str, list[int]]:
        """Text of tokens without special ones, and the number of characters before each token.

        Args:
            is_first: whether the text starts here; the blank that the tokenizer puts before every
                text is then left out.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts, starts, n = [], [], 0
        for id in ids:
            starts.append(n)
            if id not in self._special:
                parts.append(decoder.decode(self.raw(id)))
                n += len(parts[-1])
        text = "".join(parts) + decoder.decode(b"", True)
        if is_first and self.strips_first and text.startswith(" "):
            return text[1:], [max(0, start - 1) for start in starts]
        return text, starts

    def _read(self, id: int) -> bytes:
        if id in self._added:
            return _utf8(self._added[id].content)
        name = self._tokenizer.convert_ids_to_tokens(id)
        if name is None:
            return b""
        if self._byte_level:
            table = byte_of()
            if all(character in table for character in name):
                return bytes(table[character] for character in name)
            return _utf8(name)
        if not self._readable:  # what `decode` adds for a token after another one
            before = self._before
            return _utf8(self._decode([*before, id])[len(self._decode(before)) :])
        if self._falls_back and (match := _BYTE.fullmatch(name)):
            return bytes([int(match[1], 16)])
        for stored, meant in self._replaced.items():
            name = name.replace(stored, meant)
        return _utf8(name)

    def _decode(self, ids: list[int]) -> str:
        return decode_ids(self._tokenizer, ids)

    @functools.cached_property
    def _before(self) -> list[int]:
        """Ids of a short text."""
        with panics_as_errors():
            encoded = self._tokenizer.backend_tokenizer.encode("a", add_special_tokens=False)
        return list(encoded.ids)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _replacements(found: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    for part in found:
        if part["type"] == "Metaspace":
            yield part["replacement"], " "
        if part["type"] == "Replace" and "String" in part["pattern"]:
            yield part["pattern"]["String"], part["content"]


def _strips(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Metaspace":
        return bool(part.get("prepend_scheme") != "never")
    return bool(part["type"] == "Strip" and part["content"] == " " and part["start"] > 0)


class Word(NamedTuple):
    """A word and the indices of its tokens.

    Attributes:
        text: its characters, without blanks around them. Two words that share a token are one,
            with the blank between them.
        tokens: indices of the tokens with its characters, in order. They may include a leading
            blank.
        blanks: indices of preceding tokens that are only blanks, such as line ends.
    """

    text: str
    tokens: tuple[int, ...]
    blanks: tuple[int, ...]


def split_words(ids: Sequence[int], token_bytes: TokenBytes) -> list[Word]:
    """Split consecutive tokens into words at blanks.

    A special token ends a word and belongs to none, and so do blanks after the last word.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    out: list[Word] = []
    blanks: list[int] = []  # before the next word
    parts: list[int] = []  # tokens of an incomplete character
    is_open = False  # whether the next character continues the last word

    def add(own: str, places: list[int]) -> None:
        if is_open and not own[0].isspace():
            last = out.pop()
            out.append(Word(last.text + own, (*last.tokens, *places), last.blanks))
        else:
            out.append(Word(own, tuple(places), tuple(blanks)))

    def end() -> None:
        if (own := decoder.decode(b"", True)) and parts:  # an incomplete character
            add(own, parts)

    for place, id in enumerate(ids):
        if token_bytes.is_special(id):
            end()
            blanks, parts, is_open = [], [], False
            continue
        own = decoder.decode(token_bytes.raw(id))
        unfinished = bool(decoder.getstate()[0])
        if not own:
            parts.append(place)
        elif not own.isspace():
            add(own, [*parts, place])
            blanks, parts, is_open = [], [], unfinished or not own[-1].isspace()
        elif unfinished:  # blanks and the first bytes of a word's character
            blanks, parts, is_open = [*blanks, *parts], [place], False
        else:
            blanks, parts, is_open = [*blanks, *parts, place], [], False
    end()
    return [word._replace(text=word.text.strip()) for word in out]

"""Bytes of each token, and the text and words that tokens make.

A token may be a part of a character, and a tokenizer's `decode` drops the blank before a text's
first word. Bytes lose neither: the joined bytes of a text's tokens are the text.
"""

import codecs
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.text.bounded_tokenizer import decode_ids, panics_as_errors
from jaxscore.text.tokenizer_limits import parts
from jaxscore.types.token_texts import byte_of

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte's name in a vocabulary with byte fallback
_KNOWN = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class TokenBytes:
    """Bytes and text of token ids under one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = tokenizer.backend_tokenizer
        self._added = backend.get_added_tokens_decoder()
        self._special = {id for id, token in self._added.items() if token.special}
        self._special |= set(tokenizer.all_special_ids)
        self._parts = list(parts(backend.decoder))
        self._byte_level = any(part["type"] == "ByteLevel" for part in self._parts)
        self._falls_back = any(part["type"] == "ByteFallback" for part in self._parts)
        self._replaced = dict(_replacements(self._parts))
        self._readable = bool(self._parts) and {p["type"] for p in self._parts} <= _KNOWN
        self.strips_first = not self._readable or any(map(_strips, self._parts))
        self._bytes: dict[int, bytes] = {}

    def is_special(self, id: int) -> bool:
        """Whether the token is special, such as BOS and EOS."""
        return id in self._special

    def of(self, id: int) -> bytes:
        """Bytes of a token: the name of a special one, empty for an id without a token."""
        found = self._bytes.get(id)
        if found is None:
            found = self._bytes[id] = self._found(id)
        return found

    def text(self, id: int) -> str:
        """Text of one token; an incomplete character is U+FFFD."""
        return self.of(id).decode("utf-8", "replace")

    def joined(self, ids: Iterable[int]) -> str:
        """Text of tokens that continue a text, without special tokens."""
        return b"".join(self.of(id) for id in ids if id not in self._special).decode(
            "utf-8", "replace"
        )

    def placed(self, ids: Iterable[int], *, first: bool) -> tuple[str, list[int]]:
        """Text of tokens without special ones, and the number of characters before each token.

        Args:
            first: whether the text starts here; the blank that the tokenizer puts before every
                text is then left out.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts, starts, n = [], [], 0
        for id in ids:
            starts.append(n)
            if id not in self._special:
                parts.append(decoder.decode(self.of(id)))
                n += len(parts[-1])
        text = "".join(parts) + decoder.decode(b"", True)
        if first and self.strips_first and text.startswith(" "):
            return text[1:], [max(0, start - 1) for start in starts]
        return text, starts

    def _found(self, id: int) -> bytes:
        if id in self._added:
            return str(self._added[id].content).encode("utf-8", "replace")
        name = self._tokenizer.convert_ids_to_tokens(id)
        if name is None:
            return b""
        if self._byte_level:
            table = byte_of()
            if all(character in table for character in name):
                return bytes(table[character] for character in name)
            return str(name).encode("utf-8", "replace")
        if not self._readable:
            return self._after_another(id).encode("utf-8", "replace")
        if self._falls_back and (match := _BYTE.fullmatch(name)):
            return bytes([int(match[1], 16)])
        for written, meant in self._replaced.items():
            name = name.replace(written, meant)
        return str(name).encode("utf-8", "replace")

    def _after_another(self, id: int) -> str:
        """Text that the tokenizer's `decode` adds for a token after another one."""
        before = self._before
        return decode_ids(self._tokenizer, [*before, id])[
            len(decode_ids(self._tokenizer, before)) :
        ]

    @functools.cached_property
    def _before(self) -> list[int]:
        with panics_as_errors():
            encoded = self._tokenizer.backend_tokenizer.encode("a", add_special_tokens=False)
        return list(encoded.ids)


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
        own = decoder.decode(token_bytes.of(id))
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

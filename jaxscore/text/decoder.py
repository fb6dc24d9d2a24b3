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
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a byte's name in a vocabulary with byte fallback
_KNOWN = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class StopSearch:
    """Finds the first token that completes a stop string in a text, special tokens by name."""

    def __init__(self, stop: Sequence[str], raw: Callable[[int], bytes]) -> None:
        """
        Args:
            stop: strings, none of them empty or with U+FFFD.
            raw: returns the bytes of a token.
        """
        self._stop, self._raw = tuple(stop), raw
        # Of the text before a token, the next stop string can have all but its last character.
        self._n_kept = max(map(len, self._stop), default=1) - 1
        self._end = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def ends_with(self, id: int) -> bool:
        """Return True if the next token of the text completes a stop string."""
        if not self._stop:
            return False
        text = self._end + self._decoder.decode(self._raw(id))
        self._end = text[max(0, len(text) - self._n_kept) :]
        return any(stop in text for stop in self._stop)


class TokenBytes:
    """Bytes and text of token ids under one tokenizer.

    The text of tokens is their bytes: that of two parts is the one of the first and the one of the
    second, unless a character is in both. A method raises a `TextError` if the tokenizer panics.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._added = self._backend.get_added_tokens_decoder()
        decoder_parts = list(parts(self._backend.decoder))
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
        return _text(self.raw(id) for id in ids if id not in self._special)

    def join_all(self, ids: Iterable[int]) -> str:
        """Text of tokens that continue a text, special tokens by name."""
        return _text(map(self.raw, ids))

    def text_before(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """Text without special tokens, up to the earliest stop string, if any.

        Stop strings are searched in `join_all(ids)`, since one may be the name of a special token.
        """
        named = self.join_all(ids)
        end = min((at for text in stop if (at := named.find(text)) >= 0), default=None)
        if end is None:
            return self.join(ids)
        # A token has the characters that it completes; both texts have those of other tokens.
        new_decoder = codecs.getincrementaldecoder("utf-8")
        named_decoder, decoder = new_decoder("replace"), new_decoder("replace")
        texts: list[str] = []
        n = 0
        for id in ids:
            raw = self.raw(id)
            n_named = len(named_decoder.decode(raw))
            text = "" if id in self._special else decoder.decode(raw)
            if n + n_named > end:
                rest = decoder.decode(b"", True) if id in self._special else text[: end - n]
                return "".join([*texts, rest])
            texts.append(text)
            n += n_named
        raise AssertionError("a stop string after the end of the text")

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
            without = decode_ids(self._tokenizer, before)
            return _utf8(decode_ids(self._tokenizer, [*before, id])[len(without) :])
        if self._falls_back and (match := _BYTE.fullmatch(name)):
            return bytes([int(match[1], 16)])
        for stored, meant in self._replaced.items():
            name = name.replace(stored, meant)
        return _utf8(name)

    @functools.cached_property
    def _special(self) -> set[int]:
        special = {id for id, token in self._added.items() if token.special}
        return special | set(self._tokenizer.all_special_ids)

    @functools.cached_property
    def _before(self) -> list[int]:
        """Ids of a short text."""
        with panics_as_errors():
            encoded = self._backend.encode("a", add_special_tokens=False)
        return list(encoded.ids)


def _text(raw: Iterable[bytes]) -> str:
    return b"".join(raw).decode("utf-8", "replace")


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

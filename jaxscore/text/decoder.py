"""Conversion of token ids to text: decoding, stop strings, the bytes of each token, and words.

A token may be a part of a character, and a tokenizer's `decode` drops the space before the first
word of a text. Bytes avoid both problems: the joined bytes of a text's tokens are the text.
"""

import codecs
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.text.bounded_tokenizer import decode_ids, panics_as_errors
from jaxscore.text.tokenizer_limits import parts
from jaxscore.types.token_texts import BYTE, byte_of

PIECE = "\ufffd"  # the replacement for an incomplete character
_KNOWN = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}


class StopSearch:
    """A search for the first token that completes a stop string; special tokens match by name."""

    def __init__(self, stop: Sequence[str], raw: Callable[[int], bytes]) -> None:
        """
        Args:
            stop: the stop strings, none of them empty or with U+FFFD.
            raw: a function from a token id to its bytes.
        """
        self._stop, self._raw = tuple(stop), raw
        # The text before a token can contain all but the last character of a stop string.
        self._n_kept = max(map(len, self._stop), default=1) - 1
        self._tail = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def ends_with(self, id: int) -> bool:
        """Return True if the next token of the text completes a stop string."""
        if not self._stop:
            return False
        text = self._tail + self._decoder.decode(self._raw(id))
        self._tail = text[max(0, len(text) - self._n_kept) :]
        return any(stop in text for stop in self._stop)


class TokenBytes:
    """Bytes and text of token ids under one tokenizer.

    The text of tokens is their decoded bytes. The text of two consecutive parts is thus the
    concatenation of their texts, unless a character straddles the two. Methods raise a `TextError`
    if the tokenizer panics.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        self._added = self._backend.get_added_tokens_decoder()
        decoder_parts = list(parts(self._backend.decoder))
        types = {component["type"] for component in decoder_parts}
        self._byte_level = "ByteLevel" in types
        self._falls_back = "ByteFallback" in types
        self._replaced = dict(_replacements(decoder_parts))
        self._readable = bool(types) and types <= _KNOWN
        self.strips_first = not self._readable or any(map(_strips, decoder_parts))
        self._bytes: dict[int, bytes] = {}

    def is_special(self, id: int) -> bool:
        """Return True if the token is special, such as BOS and EOS."""
        return id in self._special

    def raw(self, id: int) -> bytes:
        """Return the bytes of a token: a special token's name, or nothing for an unknown id."""
        raw = self._bytes.get(id)
        if raw is None:
            raw = self._bytes[id] = self._read_bytes(id)
        return raw

    def text(self, id: int) -> str:
        """Return the text of one token; an incomplete character is U+FFFD."""
        return self.raw(id).decode("utf-8", "replace")

    def join(self, ids: Iterable[int]) -> str:
        """Return the text of tokens that continue a text, without special tokens."""
        return _text(self.raw(id) for id in ids if id not in self._special)

    def join_all(self, ids: Iterable[int]) -> str:
        """Return the text of tokens that continue a text, with the names of special tokens."""
        return _text(map(self.raw, ids))

    def text_before(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """Return the text without special tokens, up to the earliest stop string, if any.

        Searches in `join_all(ids)`, since a stop string may be the name of a special token.
        """
        named = self.join_all(ids)
        end = min((at for text in stop if (at := named.find(text)) >= 0), default=None)
        if end is None:
            return self.join(ids)
        # A character belongs to the token that completes it.
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
        raise AssertionError("the stop string is not in the text")

    def text_and_starts(self, ids: Iterable[int], *, is_first: bool) -> tuple[str, list[int]]:
        """Return the text without special tokens, and the number of characters before each token.

        Args:
            is_first: if True, the tokens start a text, and the space that the tokenizer puts before
                every text is dropped.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        chunks, starts, n = [], [], 0
        for id in ids:
            starts.append(n)
            if id not in self._special:
                chunks.append(decoder.decode(self.raw(id)))
                n += len(chunks[-1])
        text = "".join(chunks) + decoder.decode(b"", True)
        if is_first and self.strips_first and text.startswith(" "):
            return text[1:], [max(0, start - 1) for start in starts]
        return text, starts

    def _read_bytes(self, id: int) -> bytes:
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
        if not self._readable:  # take the text that the token adds after another token
            before = self._before
            without = decode_ids(self._tokenizer, before)
            return _utf8(decode_ids(self._tokenizer, [*before, id])[len(without) :])
        if self._falls_back and (match := BYTE.fullmatch(name)):
            return bytes([int(match[1], 16)])
        for stored, text in self._replaced.items():
            name = name.replace(stored, text)
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


def _replacements(decoder_parts: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, str]]:
    for component in decoder_parts:
        if component["type"] == "Metaspace":
            yield component["replacement"], " "
        if component["type"] == "Replace" and "String" in component["pattern"]:
            yield component["pattern"]["String"], component["content"]


def _strips(component: Mapping[str, Any]) -> bool:
    if component["type"] == "Metaspace":
        return bool(component.get("prepend_scheme") != "never")
    return bool(
        component["type"] == "Strip" and component["content"] == " " and component["start"] > 0
    )


class Word(NamedTuple):
    """A word and the indices of its tokens.

    Attributes:
        text: the word's characters, without surrounding whitespace. Two words that share a token
            are one word, including the whitespace between them.
        tokens: the indices of the tokens with its characters, in order. They may include leading
            whitespace.
        blanks: the indices of preceding tokens that contain only whitespace, such as newlines.
        start: the number of characters of all tokens before the text.
    """

    text: str
    tokens: tuple[int, ...]
    blanks: tuple[int, ...]
    start: int


def split_words(ids: Iterable[int], token_bytes: TokenBytes) -> Iterator[Word]:
    """Split consecutive tokens into words at whitespace.

    A special token ends a word. Special tokens and whitespace after the last word belong to no
    word.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n_characters = 0
    out: list[Word] = []
    blanks: list[int] = []  # whitespace tokens before the next word
    pending: list[int] = []  # tokens of an incomplete character
    is_open = False  # True if the next character continues the last word

    def add(text: str, tokens: list[int]) -> None:
        if is_open and not text[0].isspace():
            last = out.pop()
            joined = last.text + text
            out.append(last._replace(text=joined, tokens=(*last.tokens, *tokens)))
        else:
            start = n_characters + len(text) - len(text.lstrip())
            out.append(Word(text, tuple(tokens), tuple(blanks), start))

    def flush() -> int:
        if (text := decoder.decode(b"", True)) and pending:  # an incomplete character
            add(text, pending)
        return len(text)

    for index, id in enumerate(ids):
        if len(out) > 1:
            yield _stripped(out.pop(0))
        if token_bytes.is_special(id):
            n_characters += flush() + len(_text([token_bytes.raw(id)]))
            blanks, pending, is_open = [], [], False
            continue
        text = decoder.decode(token_bytes.raw(id))
        is_incomplete = bool(decoder.getstate()[0])
        if not text:
            pending.append(index)
        elif not text.isspace():
            add(text, [*pending, index])
            blanks, pending, is_open = [], [], is_incomplete or not text[-1].isspace()
        elif is_incomplete:  # whitespace and the first bytes of a word's character
            blanks, pending, is_open = [*blanks, *pending], [index], False
        else:
            blanks, pending, is_open = [*blanks, *pending, index], [], False
        n_characters += len(text)
    flush()
    yield from map(_stripped, out)


def _stripped(word: Word) -> Word:
    return word._replace(text=word.text.strip())

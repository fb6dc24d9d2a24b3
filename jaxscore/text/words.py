"""Words of scored tokens: what stands between blanks, and which tokens make it."""

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from jaxscore.text.token_bytes import TokenBytes


class Word(NamedTuple):
    """A word, and the places of its tokens.

    Attributes:
        text: without blanks around it. Two words that share a token are one, with the blank
            between them.
        tokens: places of the tokens that hold its characters, in order. A leading blank that is
            part of such a token cannot be told apart from it.
        blanks: places of tokens before them that are blanks alone, as tokenizers make of line
            ends and indentation.
    """

    text: str
    tokens: tuple[int, ...]
    blanks: tuple[int, ...]


def words_of(ids: Sequence[int], token_bytes: TokenBytes) -> list[Word]:
    """The words of tokens that follow each other, in order.

    Blanks after the last word belong to none, and neither do special tokens, which end a word.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    out: list[Word] = []
    blanks: list[int] = []  # before the next word
    parts: list[int] = []  # of a character that a later token completes
    is_open = False  # whether the last word goes on with the next character

    def add(own: str, places: list[int]) -> None:
        if is_open and not own[0].isspace():
            last = out.pop()
            out.append(Word(last.text + own, (*last.tokens, *places), last.blanks))
        else:
            out.append(Word(own, tuple(places), tuple(blanks)))

    def end() -> None:
        if (own := decoder.decode(b"", True)) and parts:  # bytes that are no character
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
        elif unfinished:  # blanks and the first bytes of a word
            blanks, parts, is_open = [*blanks, *parts], [place], False
        else:
            blanks, parts, is_open = [*blanks, *parts, place], [], False
    end()
    return [word._replace(text=word.text.strip()) for word in out]

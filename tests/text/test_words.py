"""Words of tokens: by hand, and every character of a text in exactly one of them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.text.words import words_of


class Spelled:
    """Tokens that are their own bytes; `<s>` is special."""

    def __init__(self, *parts):
        self.parts = [part if isinstance(part, bytes) else part.encode() for part in parts]
        self.ids = range(len(parts))

    def is_special(self, id):
        return self.parts[id] == b"<s>"

    def of(self, id):
        return self.parts[id]


def words(*parts):
    spelled = Spelled(*parts)
    return [tuple(word) for word in words_of(spelled.ids, spelled)]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            ("The", " cat", " s", "at", "."),
            [("The", (0,), ()), ("cat", (1,), ()), ("sat.", (2, 3, 4), ())],
        ),
        (("a", "\n\n", " ", "b"), [("a", (0,), ()), ("b", (3,), (1, 2))]),
        (("a", " ", "b", " "), [("a", (0,), ()), ("b", (2,), (1,))]),  # nothing after the last
        (("a ", "b"), [("a", (0,), ()), ("b", (1,), ())]),
        (("a b", "c d", " e"), [("a bc d", (0, 1), ()), ("e", (2,), ())]),  # tokens of two words
        (("a", "<s>", "b"), [("a", (0,), ()), ("b", (2,), ())]),  # a special token ends a word
        ((" ", "<s>", "b"), [("b", (2,), ())]),
        (
            ("na", "\u00ef".encode()[:1], "\u00ef".encode()[1:], "ve"),
            [("na\u00efve", (0, 1, 2, 3), ())],
        ),
        ((" ", "\u00ef".encode()[:1], "\u00ef".encode()[1:]), [("\u00ef", (1, 2), (0,))]),
        (("\u3000", "\u4e16", "\u00a0", "x"), [("\u4e16", (1,), (0,)), ("x", (3,), (2,))]),
        ((), []),
        ((" ", "\n"), []),
        (("a", b" \xc3", b"\xaf", "b"), [("a", (0,), ()), ("\u00efb", (1, 2, 3), ())]),
        (("a", b"\xe3", b"\x80\x80", "b"), [("a", (0,), ()), ("b", (3,), (1, 2))]),  # a wide blank
        (("a", b"\xe3"), [("a\ufffd", (0, 1), ())]),  # no character
        (("a", b"\xe3", "<s>", "b"), [("a\ufffd", (0, 1), ()), ("b", (3,), ())]),
        ((" ", b"\xe3", "<s>"), [("\ufffd", (1,), (0,))]),
        ((b"a\xe3", "<s>", b"\x81\x82"), [("a", (0,), ()), ("\ufffd\ufffd", (2,), ())]),
    ],
)
def test_by_hand(parts, expected):
    assert words(*parts) == expected


@given(st.lists(st.text("ab .\n\u00ef\u4e16", min_size=1, max_size=4), max_size=12), st.data())
@settings(max_examples=200, deadline=None)
def test_every_token_with_a_character_is_in_one_word(parts, data):
    cut = [piece for part in parts for piece in _pieces(part.encode(), data)]
    text = "".join(parts)
    spelled = Spelled(*cut)
    found = words_of(spelled.ids, spelled)
    # Words that share a token are one.
    assert re.findall(r"\S+", " ".join(word.text for word in found)) == text.split()
    places = [place for word in found for place in (*word.blanks, *word.tokens)]
    assert places == sorted(set(places))
    for place, piece in enumerate(cut):
        if piece.strip():
            assert place in {one for word in found for one in word.tokens}


def _pieces(value, data):
    at = data.draw(st.integers(0, len(value)))
    return [piece for piece in (value[:at], value[at:]) if piece]

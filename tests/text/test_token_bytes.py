"""The bytes of tokens, joined, are the text; words are what stands between blanks."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.text.decoder import TokenBytes, split_words
from jaxscore.text.tokenizer_files import load_tokenizer
from tests.conftest import CASES

pytestmark = pytest.mark.lines

TEXTS = ["Hello wörld, it's €5 😀!", " a  b\n\tc", "Oslo", "", " "]
EXACT = ["models/tiny-gpt2", "models/tiny-llama3", "models/tiny-qwen2", "tokenizers/byte_level"]
EXACT += ["tokenizers/metaspace"]


def load(folder):
    tokenizer = load_tokenizer(CASES / folder)
    return tokenizer, TokenBytes(tokenizer)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("folder", EXACT)
def test_joined_bytes_are_the_text(folder, text):
    tokenizer, token_bytes = load(folder)
    ids = tokenizer(text)["input_ids"]
    found, starts = token_bytes.text_and_starts(ids, is_first=True)
    assert found == text == tokenizer.decode(ids, skip_special_tokens=True)
    assert starts == sorted(starts)
    assert len(starts) == len(ids)
    raw = text.encode()
    if not token_bytes.strips_first:
        own = [b"" if token_bytes.is_special(id) else token_bytes.raw(id) for id in ids]
        assert b"".join(own) == raw
        sums = [sum(map(len, own[:k])) for k in range(len(own))]
        whole = [len(raw[:n].decode("utf-8", "ignore")) for n in sums]
        assert starts == whole


@pytest.mark.parametrize("folder", ["tokenizers/unigram", "tokenizers/word_piece"])
def test_tokenizers_that_lose_characters_are_read_as_they_decode(folder):
    tokenizer, token_bytes = load(folder)
    ids = tokenizer("wörld it")["input_ids"]
    found, starts = token_bytes.text_and_starts(ids, is_first=True)
    assert found == tokenizer.decode(ids, skip_special_tokens=True)
    assert starts == sorted(starts)


def test_a_token_alone_keeps_its_blank():
    for folder in ("models/tiny-llama3", "tokenizers/metaspace"):
        tokenizer, token_bytes = load(folder)
        ids = tokenizer("a it", add_special_tokens=False)["input_ids"]
        assert "".join(map(token_bytes.text, ids)).lstrip() == "a it"
        assert any(token_bytes.text(id).startswith(" ") for id in ids[1:])


def test_special_tokens_by_name_and_not_in_texts():
    tokenizer, token_bytes = load("models/tiny-llama3")
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert token_bytes.text(bos) == tokenizer.bos_token
    assert token_bytes.is_special(eos)
    assert token_bytes.join([bos, eos]) == ""


def test_an_id_without_a_token_is_no_text():
    _, token_bytes = load("models/tiny-llama3")
    assert token_bytes.raw(1207) == b""
    assert token_bytes.text_and_starts([1207], is_first=True) == ("", [0])


def test_parts_of_a_character():
    tokenizer, token_bytes = load("models/tiny-gpt2")
    ids = tokenizer("€", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    assert [token_bytes.text(id) for id in ids] == ["\ufffd"] * 3
    assert token_bytes.text_and_starts(ids, is_first=True) == ("€", [0, 0, 0])
    assert token_bytes.text_and_starts(ids[:2], is_first=True) == ("\ufffd", [0, 0])


class Spelled:
    """Tokens that are their own bytes; `<s>` is special."""

    def __init__(self, *parts):
        self.parts = [part if isinstance(part, bytes) else part.encode() for part in parts]
        self.ids = range(len(parts))

    def is_special(self, id):
        return self.parts[id] == b"<s>"

    def raw(self, id):
        return self.parts[id]


def words(*parts):
    spelled = Spelled(*parts)
    return [tuple(word)[:3] for word in split_words(spelled.ids, spelled)]


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
    found = [*split_words(spelled.ids, spelled)]
    assert all(text[word.start :].startswith(word.text) for word in found)
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

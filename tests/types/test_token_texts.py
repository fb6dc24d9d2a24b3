"""Text and HTML of tokens."""

import math

import pytest
import regex

from jaxscore.types.token_texts import (
    DARKEST,
    byte_of,
    characters_of,
    is_byte_level,
    joined_text,
    token_bytes,
    tokens_html,
)


def names_of(text, cuts=()):
    """Return byte-level names of a text's bytes, one for each, or cut at these places."""
    raw = text.encode()
    name = {byte: character for character, byte in byte_of().items()}
    ends = [*cuts, len(raw)] if cuts else range(1, len(raw) + 1)
    starts = [0, *ends][:-1]
    return ["".join(name[b] for b in raw[a:e]) for a, e in zip(starts, ends, strict=True)]


def characters(names):
    pieces = token_bytes(names, byte_level=is_byte_level(names))
    return [text for _, _, text in characters_of(pieces)]


@pytest.mark.parametrize(
    "text",
    [
        "巴黎",
        "ö",
        "o\u0308",
        "👩‍👩‍👧",
        "👩🏽‍🚀",
        "🇫🇷",
        "กำ",
        "क्षि",
        "\U0001d518",
        "안",
        "عا",
        "a巴b",
        " 巴\n",
    ],
)
def test_tokens_that_cut_a_character_are_joined(text):
    """The bytes of a text, each a token of its own, become its grapheme clusters."""
    assert characters(names_of(text)) == regex.findall(r"\X", text)


def test_characters_of_one_token_stay_together():
    assert characters(names_of("巴黎", [4])) == ["巴黎"]
    assert characters(names_of("巴黎", [3])) == ["巴", "黎"]
    assert characters(["▁", "<0xE5>", "<0xB7>", "<0xB4>", "黎"]) == [" ", "巴", "黎"]
    assert characters(["Ġa", "Ã", "b", "Ħ"]) == [" a", "�", "b", "�"]
    assert characters([]) == []


@pytest.mark.parametrize(
    "names", [["The", "Ġcat"], names_of("巴黎"), names_of("巴黎", [2]), ["ÃĦ", "<|end▁of|>"]]
)
def test_byte_level_names(names):
    assert is_byte_level(names)


@pytest.mark.parametrize(
    "names",
    [["▁The", "é"], ["▁Ġabra"], ["K", "ö", "ln"], ["Łó", "dź"], ["今", "天"], ["ł"], ["a"],
     ["<0xE5>", "<0xB7>", "<0xB4>"], []],
)  # fmt: skip
def test_names_that_are_texts(names):
    assert not is_byte_level(names)


def test_darker_means_less_probable():
    page = tokens_html(
        ["a", "b", "c"], [0.0, -DARKEST / 2, -100.0], [1.0] * 3, [True, False, False]
    )
    alphas = [float(part.split(")")[0]) for part in page.split("214,96,32,")[1:]]
    assert alphas == sorted(alphas)
    assert alphas[0] == 0.0
    assert alphas[2] == 0.85
    assert page.count("the most probable token") == 1
    assert "log-probability -100.000 nats, entropy 1.000 nats" in page


def test_a_token_without_a_probability_and_markup():
    page = tokens_html(["<script>", "a\n"], [math.nan, -1.0], [math.nan, 0.5], [False, False])
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "no probability: no token before it" in page
    assert "a↵" in page


def test_joined_text_has_whole_characters():
    assert joined_text(["The", "Ġcat", "Ċ", "ÃĦ"]) == "The cat\nÄ"
    assert joined_text(["Ġ", "Ã", "Ħ", "Ã"]) == " Ä�"
    assert joined_text(["Ġa", "<|end▁of|>"]) == " a<|end▁of|>"
    assert joined_text(["▁a", "<0xC3>", "<0x84>", "b"]) == " aÄb"
    assert joined_text([]) == ""


def test_a_character_is_one_box_with_the_numbers_of_its_tokens():
    page = tokens_html(names_of("巴"), [-1.0, -2.0, -0.5], [1.0] * 3, [False, False, True])
    assert page.count("<span") == 1
    assert ">巴<" in page
    assert [f"log-probability {p} nats" in page for p in ("-1.000", "-2.000", "-0.500")] == [
        True
    ] * 3
    assert f"{0.85 * 3.5 / DARKEST:.2f}" in page  # the colour of the sum

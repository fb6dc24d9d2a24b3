"""Text and HTML of tokens."""

import math

from jaxscore.types.token_texts import DARKEST, joined_text, token_texts, tokens_html


def test_the_text_of_byte_level_tokens():
    assert token_texts(["The", "Ġcat", "Ċ", "ÃĦ"]) == ["The", " cat", "\n", "Ä"]
    assert token_texts(["Ġ", "Ã", "Ħ"]) == [" ", "�", "�"]  # two halves of one character
    assert token_texts(["Ġa", "<|end▁of|>"]) == [" a", "<|end▁of|>"]


def test_the_text_of_sentencepiece_tokens():
    assert token_texts(["▁The", "▁cat", "é"]) == [" The", " cat", "é"]


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
    assert joined_text(["Ġ", "Ã", "Ħ", "Ã"]) == " Ä�"
    assert joined_text(["Ġa", "<|end▁of|>"]) == " a<|end▁of|>"
    assert joined_text(["▁a", "<0xC3>", "<0x84>", "b"]) == " aÄb"
    assert joined_text([]) == ""

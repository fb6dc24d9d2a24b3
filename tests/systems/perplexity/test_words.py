"""Numbers per word of texts that do not separate their words."""

import pytest

from jaxscore import evaluate
from jaxscore.text.whole_words import lacks_spaces

CHINESE = "今天天气很好。我们去公园散步。"


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (CHINESE, True),
        ("巴黎", True),
        ("วันนี้อากาศดีมาก เราไปเที่ยวกัน", True),
        ("吾輩は猫である。\n名前はまだない。", True),
        ("今天 天气 很 好", False),
        ("오늘은 날씨가 정말 좋습니다", False),
        ("Donaudampfschifffahrtsgesellschaft", False),
        ("The cat sat.", False),
        ("கணினிகளுக்கிடையேயான தொடர்புகளை", False),
        ("ACGT" * 30, True),
    ],
)
def test_which_texts_separate_their_words(text, lacks):
    assert lacks_spaces(text[:60], len(text.encode()), len(text.split())) is lacks


def test_numbers_per_word_of_chinese_are_a_sentence(scorers):
    texts = [{"text": "The cat sat on the mat."}, {"text": CHINESE}]
    report = evaluate("perplexity", scorers("tiny-qwen2"), texts, n_bootstrap=20)
    assert "per word" not in report.headline
    why = "1 of 2 documents is written without spaces between words: numbers per word are left out"
    assert why in report.remarks
    markdown = report.markdown()
    assert "| Bits and perplexity per word | - | - | 1 of 2 documents is written" in markdown
    rows = [row.split(" | ") for row in markdown.splitlines() if row.startswith("| 2 ")]
    assert rows[0][3] == "\\-"
    spaced = evaluate("perplexity", scorers("tiny-qwen2"), texts[:1], n_bootstrap=20)
    assert ", per word " in spaced.headline
    assert spaced.headline.endswith(", 1 document")

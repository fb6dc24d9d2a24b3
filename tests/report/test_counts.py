"""Numbers with nouns, and numbers with too many digits."""

import pytest

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.counts import counted
from jaxscore.report.markdown import _number
from jaxscore.report.sections import closing, estimate_card, three


@pytest.mark.parametrize(
    ("n", "what", "shown"),
    [
        (1, "items", "1 item"),
        (0, "items", "0 items"),
        (2_000, "queries", "2,000 queries"),
        (1, "queries", "1 query"),
        (1, "outputs with gold", "1 output with gold"),
        (1, "largest differences", "1 largest difference"),
        (1, "documents, 5 bytes", "1 document, 5 bytes"),
        (1, "failed", "1 failed"),
    ],
)
def test_a_number_and_its_noun_agree(n, what, shown):
    assert counted(n, what) == shown


def test_cards_and_sections_agree():
    assert estimate_card("t", Estimate(1, 2.0, None, None), "items").note == "1 item"
    record = {"failures": [{"name": "a", "error": "b"}], "remarks": [], "settings": {}}
    assert closing(record, "items")[0].title == "Failed: 1 item, in no mean"


@pytest.mark.parametrize("high", [1.2e103, 1e8])
def test_an_interval_of_many_digits_is_a_sentence(high):
    card = estimate_card("t", Estimate(3, 9.0, 8.0, high), "items")
    assert card.note == "95% interval too wide to be of use\n3 items"
    assert _number(card) == ["t", "9", "too wide to be of use", "3 items"]
    assert "8.00 to 10.0" in estimate_card("t", Estimate(3, 9.0, 8.0, 10.0), "items").note


def test_a_large_number_has_no_more_than_15_digits():
    assert three(1.2e12) == "1,200,000,000,000"
    assert three(1.2e103) == "1.20e+103"

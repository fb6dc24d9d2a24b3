"""Sections of reports: items under themselves, the worst of them."""

import pytest

from jaxscore.report import sections


@pytest.mark.parametrize(
    ("n", "title", "shown"),
    [
        (1, "## Questions, worst first", 1),
        (sections.SHOWN, "## Questions, worst first", sections.SHOWN),
        (312, "## Questions, worst first (50 of 312 shown)", 50),
    ],
)
def test_the_worst_items_and_how_many_are_shown(n, title, shown):
    items = [{"text": f"Which river -> {k}?", "score": k} for k in range(n)]
    blocks = sections.items("Questions", items, lambda one: one["text"], lambda one: str(one))
    assert blocks[0] == title
    assert blocks[1::2] == [f"### Which river -> {k}?" for k in range(shown)]
    assert blocks[2::2] == [str(one) for one in items[:shown]]


def test_headings_of_long_and_empty_items():
    def heading(value):
        [_, found, _] = sections.items("Items", [{}], lambda _: value, lambda _: "body")
        return found

    assert heading("") == heading(" \t") == "### (no text)"
    assert heading("a|b\n# c") == r"### a\|b ↵ \# c"
    long = "x" * (sections.LONGEST_HEADING + 7)
    assert heading(long) == f"### {'x' * sections.LONGEST_HEADING} … (7 more characters)"
    assert sections.items("Items", [], str, str) == []

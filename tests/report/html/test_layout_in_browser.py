"""The layout of pages in Chromium, at the width of a desk and of a phone."""

import pytest

from jaxscore.report.document import Card, Chart, Section
from jaxscore.report.html.frame import columns, render
from jaxscore.report.html.histogram import counts, histogram
from jaxscore.report.markdown import table
from tests.report.html.made import page_of, with_column

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LONG = "Which river does the city lie on in which the author of the book was born?"


def page(n_cards=7, n_charts=4):
    svg = histogram(counts([1.0, 2.0, 4.0]), title="t", units="w", label="l")
    wide = table([f"Column {k}" for k in range(9)], [[f"{k}.2345 (0.1 to 0.2)" for k in range(9)]])
    data = page_of(
        [f"{LONG} {k}" for k in range(3)],
        cards=[Card(f"Card {k}", "0.5", "95% interval 0.1 to 0.9") for k in range(n_cards)],
        charts=[Chart(f"Chart {k}", svg) for k in range(n_charts)],
        sections=[Section("Results", [wide], opened=True)],
    )
    return render(with_column(data, 2, ["a", "b", "c"]))


def test_rows_are_full_and_of_similar_lengths():
    assert [n for _, n in columns("abcdefg", 6)] == [4, 4, 4, 4, 3, 3, 3]
    assert [n for _, n in columns("abcdefg", 3)] == [3, 3, 3, 2, 2, 2, 2]
    assert [n for _, n in columns("ab", 6)] == [2, 2]
    assert columns("", 6) == []


BOXES = """(names) => [...document.querySelectorAll(names)].map((one) => {
    const box = one.getBoundingClientRect(); return [box.top, box.left, box.right]; })"""


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_cards_and_charts_fill_their_rows(opened, viewport, n):
    shown, *_ = opened(page(n, max(n, 2)), viewport=viewport)
    for names in (".card", "figure"):
        rows = {}
        for top, left, right in shown.evaluate(BOXES, names):
            rows.setdefault(round(top), []).append((left, right))
        ends = {
            (round(min(row)[0]), round(max(row, key=lambda b: b[1])[1])) for row in rows.values()
        }
        assert len(ends) == 1, rows


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_numbers_are_visible_without_scrolling(opened, viewport):
    shown, *_ = opened(page(), "item=1", viewport=viewport)
    width = viewport["width"]
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    scrolled = """[...document.querySelectorAll('.wide')].filter(
        (one) => one.scrollWidth > one.clientWidth + 1).length"""
    assert shown.evaluate(scrolled) == 0
    cells = shown.evaluate(BOXES, "#table td.number, details.section td, #panel td")
    assert cells
    assert all(0 <= left <= right <= width for _, left, right in cells)


def test_every_filter_has_a_visible_label(opened):
    shown, *_ = opened(page())
    labels = shown.locator(".controls label > span").all_text_contents()
    assert labels == ["Search texts", "Kind", "Right?", "Which things", "Number", "from", "to"]
    assert shown.locator(".controls :is(input, select)").count() == len(labels)
    assert shown.locator("#is2 option").all_text_contents() == ["all", "a", "b", "c"]


def test_no_strip_is_wider_than_its_table(opened):
    shown, *_ = opened(page())
    for box, inner in (
        ("#items > .wide", "#table"),
        ("details.section .wide", "details.section table"),
    ):
        [[_, left, right]], [[_, start, end]] = (shown.evaluate(BOXES, one) for one in (box, inner))
        assert (left, right) == (pytest.approx(start, abs=1), pytest.approx(end, abs=1))

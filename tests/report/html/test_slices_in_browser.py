"""Tables and charts of `--by` in Chromium: hostile values, phone width, light and dark."""

import pytest

from jaxscore import evaluate
from tests.hostile.inputs import TEXTS

VALUES = [value for value in TEXTS if value.strip() and len(value) < 500]
VIEWPORTS = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 360, "height": 740}}
FIELD = "<b>_field_</b>"


@pytest.fixture(scope="module")
def report(scorers):
    items = [
        {"continuation": "A cat ran.", FIELD: value, "n": k % 53} for k, value in enumerate(VALUES)
    ]
    items += [{"continuation": "A dog sat down.", "n": k} for k in range(53)]
    return evaluate("score", scorers("tiny-qwen2"), items, by=[FIELD, "n"], summary_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", VIEWPORTS)
def test_tables_fit_the_width_and_values_stay_texts(opened, report, width, scheme):
    page, requests, complaints = opened(
        report.html(), viewport=VIEWPORTS[width], color_scheme=scheme
    )
    assert (len(requests), complaints) == (1, [])
    assert page.evaluate("document.documentElement.scrollWidth") <= VIEWPORTS[width]["width"]
    first, second = page.locator("details.section[open] .wide").all()[:2]
    assert page.locator("details.section h2").first.text_content().startswith(f"By {FIELD}")
    assert second.locator("tbody tr").count() == 50 + 2
    shown = len({value for value in VALUES if value.strip()}) + 1
    assert first.locator("tbody tr").count() == min(shown, 50) + 2
    assert page.locator("details.section b b, details.section script, figure script").count() == 0
    for table in (first, second):
        assert table.evaluate("(one) => one.scrollWidth - one.clientWidth") <= 1
        cell = table.locator("tbody tr").last.locator("td").last
        assert cell.is_visible()
        ink, paper = (
            cell.evaluate(f"(one) => getComputedStyle({style}")
            for style in ("one).color", "document.body).backgroundColor")
        )
        assert ink != paper


def test_a_chart_has_the_values_of_most_items(report):
    page = report.html()
    assert page.count("upright strokes are the mean over all requests.") >= 2
    assert "The 16 values of most requests." in page

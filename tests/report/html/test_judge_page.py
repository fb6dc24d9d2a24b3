"""Pages of `judge` by how the score came about, against its Markdown."""

import re

import pytest

from jaxscore.report import judge_report
from jaxscore.report.document import Source
from jaxscore.report.html.frame import render
from jaxscore.report.html.systems import judge_page
from tests.report.html.made import block, tree, values

ONE = {
    "index": 0,
    "q_id": 7,
    "question": "Who ran?",
    "label": ["the cat", "a cat"],
    "response": "the dog",
    "score": 0.25,
    "known": True,
    "probability": {"Yes": 0.25, "No": 0.75},
    "outside": 0.125,
    "texts": [],
}
SUMMARY = {
    "n": 3,
    "mean": 0.5,
    "interval": [0.25, 0.75],
    "interval_by": "bootstrap",
    "outside": 0.125,
    "labels": {"Yes": {"worth": 1.0, "n": 2, "probability": 0.5}},
    "n_none": 4,
    "n_several": 5,
    "n_failed": 1,
}
RATES = {
    "n": 8,
    "n_unknown": 2,
    "n_failed": 1,
    "agree": 75.0,
    "first": None,
    "rates": {
        name: {"percent": value, "interval": [value - 10, value + 10]}
        for name, value in (("win", 50.0), ("tie", 12.5), ("lose", 37.5))
    },
}


def found(**change):
    record = {
        "metric": "LLMeval_j",
        "kind": "logits",
        "summary": SUMMARY,
        "remarks": [],
        "failures": [{"name": "record 2", "error": "too long"}],
        "records": [
            {**ONE, "score": 0.75, "question": "Second?"},
            ONE,
            {**ONE, "score": 0.5, "question": "Third?", "within_noise": True},
            {**ONE, "known": None, "score": None},
        ],
        "noise": None,
        "settings": {"folder": "here", "n_bootstrap": 1000, "both_orders": True},
        **change,
    }
    page = judge_page.page(Source("judge", record, "0.5", 4))
    return page, render(page), judge_report.report(record)


def cards(page):
    return {one.title: (one.value, one.note) for one in page.cards}


@pytest.mark.parametrize("kind", ["logits", "sequence"])
def test_probabilities(kind):
    page, html, markdown = found(kind=kind)
    assert "| 0.50000 | 0.2500 to 0.7500 | 3 | 0.1250 | 1 |" in markdown
    assert cards(page)["Mean"] == ("0.500", "95% interval 0.250 to 0.750\n3 records")
    assert cards(page)["Outside"][0] == "0.125"
    header, arrays = block(html)
    assert values(header, arrays, 0) == ["Who ran?", "Third?", "Second?", "record 2"]
    assert values(header, arrays, 3) == ["0.2500", "0.5000 ≈", "0.7500", "-"]
    assert [row[0] for row in header["tables"][0]["items"][0]] == [
        ["Yes", "0.2500"], ["No", "0.7500"], ["(outside)", "0.1250"],
    ]  # fmt: skip
    assert header["noise"] == "-y--"
    titles = tree(html).xpath("//figcaption/b/text()")
    assert titles[0] == "Distribution of scores"
    assert len(titles) == 3


def test_what_is_asked_and_what_was_left_out_of_it():
    asked = [{"role": "user", "content": "Is {prediction} right? </script>"}]
    records = [{**ONE, "truncated": 5}, {**ONE, "score": 0.5, "truncated": 0}]
    page, html, _ = found(records=records, asked=asked)
    header, arrays = block(html)
    assert header["columns"][5]["title"] == "Truncated"
    assert values(header, arrays, 5) == ["5", "0", "-"]
    assert page.sections[0].title == "What the judge is asked"
    [cells] = tree(html).xpath("//table[.//th='Turn']/tbody/tr[1]")
    assert [one.text_content() for one in cells] == ["user", "Is {prediction} right? </script>"]


def test_answers_that_were_written():
    records = [
        {**ONE, "probability": {}, "outside": None, "texts": ["Yes!"], "score": 1.0},
        {**ONE, "probability": {}, "outside": None, "texts": ["?"], "score": -100, "known": False},
    ]
    page, html, _ = found(kind="text", records=records, summary={**SUMMARY, "outside": None})
    assert cards(page)["No label"][0] == "4"
    assert cards(page)["Several labels"][0] == "5"
    header, arrays = block(html)
    assert values(header, arrays, 3) == ["1.0000", "-", "-"]  # those without a label come last
    assert [one["title"] for one in header["fields"]][-1] == "The judge wrote"
    assert header["fields"][-1]["values"] == ["Yes!", "?", ""]


def test_pairs():
    records = [
        {**ONE, "score": score, "opponent": "a cow", "texts": ["1", "2"], "probability": None}
        for score in (1.0, 0.0, 0.5)
    ]
    page, html, markdown = found(kind="pairwise", records=records, summary=RATES)
    shown = cards(page)
    for name, one in RATES["rates"].items():
        row = re.search(rf"^\| {name} \| (.+) \| (.+) \|$", markdown, re.M)
        assert shown[name.capitalize()] == (row[1], f"95% interval {row[2]}")
        assert one["percent"] is not None
    assert shown["Both orders agree"][0] == "75.0 %"
    assert shown["First preferred"][0] == "-"
    header, arrays = block(html)
    assert values(header, arrays, 3)[:3] == ["lost", "tied", "won"]
    assert tree(html).xpath("//figcaption/b/text()") == ["Rates"]


def test_a_classifier():
    records = [
        {**ONE, "score": 0.125 * k, "best": "a cat", "probability": None, "outside": None}
        for k in range(3)
    ]
    _, html, _ = found(kind="bem", records=records, summary={**SUMMARY, "labels": {}})
    header, _ = block(html)
    assert header["fields"][3] == {"title": "Best reference", "values": ["a cat"] * 3 + [""]}
    assert "classifier" in tree(html).xpath("string(//div[@class='about'])")


def test_nothing_was_judged():
    empty = {**SUMMARY, "n": 0, "mean": None, "interval": [None, None], "outside": None}
    page, html, _ = found(records=[], summary={**empty, "labels": {}})
    assert cards(page)["Mean"] == ("-", "0 records")
    assert tree(html).xpath("//figure") == []

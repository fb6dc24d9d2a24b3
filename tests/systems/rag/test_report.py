"""The report of `judge` by how the scores came about, as a page and as Markdown."""

import re

import pytest

from jaxscore.report import markdown
from jaxscore.report.document import Source
from jaxscore.report.html.frame import render
from jaxscore.report.markdown import NOTHING
from jaxscore.systems.rag.report import report
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
    page = report(Source("judge", record, "0.5", 4))
    return page, render(page), markdown.render(page)


def cards(page):
    return {one.title: (one.value, one.note) for one in page.cards}


@pytest.mark.parametrize("kind", ["logits", "sequence"])
def test_probabilities(kind):
    page, html, markdown = found(kind=kind)
    assert "| Mean | 0.5 | 0.25 to 0.75 | 3 records |" in markdown
    assert "| Outside | 0.125 | - | mean probability on no label |" in markdown
    assert "| Yes | 1 | 2 | 0.5000 |" in markdown
    assert "q\\_id: 7; Score: 0.5000 ≈; Outside: 0.1250" in markdown
    assert cards(page)["Mean"] == ("0.500", "95% interval 0.250 to 0.750\n3 records")
    assert cards(page)["Outside"][0] == "0.125"
    header, arrays = block(html)
    assert values(header, arrays, 0) == ["Who ran?", "Third?", "Second?", "record 2"]
    assert values(header, arrays, 3) == ["0.2500", "0.5000 ≈", "0.7500", "-"]
    assert [row[0] for row in header["tables"][0]["items"][0]] == [
        ["Yes", "0.2500", "0.2188"], ["No", "0.7500", "0.6562"], ["(outside)", "-", "0.1250"],
    ]  # fmt: skip
    probabilities = [float(row[0][2]) for row in header["tables"][0]["items"][0]]
    assert sum(probabilities) == pytest.approx(1, abs=1e-4)
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
    assert page.sections[1].title == "What the judge is asked"
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
        row = re.search(rf"^\| {name.capitalize()} \| (.+) \| (.+) \| - \|$", markdown, re.M)
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
    page, html, markdown = found(records=[], summary={**empty, "labels": {}})
    assert cards(page)["Mean"] == ("-", "0 records")
    assert f"| Mean | {NOTHING} | {NOTHING} | 0 records |" in markdown
    assert "worst first" not in markdown
    assert tree(html).xpath("//figure") == []


def test_texts_of_users_cannot_leave_their_place():
    hostile = {
        **ONE,
        "question": "who?\n# a heading",
        "label": ["<b>", "`x`"],
        "response": "\u202eabc " + "long " * 40_000,
        "probability": {"a|b": 0.25},
    }
    labels = {"a|b": {"worth": 1.0, "n": 1, "probability": 0.5}}
    _, _, text = found(records=[hostile], summary={**SUMMARY, "labels": labels})
    assert len(text) < 4000
    assert "### who? ↵ \\# a heading" in text.splitlines()
    assert "| a\\|b | 1 | 1 | 0.5000 |" in text
    assert "\u202e" not in text
    assert "<b>" not in text


def test_markdown_has_the_worst_records_and_whole_questions():
    many = [{**ONE, "question": f"question {k}", "score": 1 - k / 100} for k in range(55)]
    _, _, text = found(records=many)
    headings = [line for line in text.splitlines() if line.startswith("### ")]
    assert (headings[0], len(headings)) == ("### question 54", 50)
    assert "50 of 55 shown" in text
    question = "why " * 60
    _, _, text = found(records=[{**ONE, "question": question}])
    [heading] = [line for line in text.splitlines() if line.startswith("### ")]
    assert len(heading) < 140
    assert f"Question: {question.strip()}" in text


def test_the_interval_is_explained_as_it_was_made():
    assert "95% of 1000 bootstrap means" in found()[2]
    text = found(summary={**SUMMARY, "interval_by": "wilson"})[2]
    assert "Wilson's 95% interval" in text
    assert "bootstrap means" not in text

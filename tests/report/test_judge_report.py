"""Reports of the judge: what hostile text does to the page, and how long it gets."""

from jaxscore.report.judge_report import SHOWN, report
from jaxscore.report.markdown import NOTHING

SUMMARY = {
    "n": 1,
    "mean": 0.5,
    "interval": [0.25, 0.75],
    "interval_by": "bootstrap",
    "outside": 0.125,
    "labels": {"a|b": {"worth": 1.0, "n": 1, "probability": 0.5}},
    "n_none": 0,
    "n_several": 0,
    "n_failed": 1,
}
ONE = {
    "index": 0,
    "q_id": "q|1",
    "question": "who?\n# a heading",
    "label": ["<b>", "`x`"],
    "response": "\u202eabc " + "long " * 40_000,
    "score": 0.5,
    "known": True,
    "probability": {"a|b": 0.5},
    "outside": 0.125,
    "texts": [],
}


def page(**change):
    record = {
        "metric": "LLMeval_j_logits",
        "kind": "logits",
        "summary": SUMMARY,
        "remarks": ["mind this"],
        "failures": [{"name": "record 2", "error": "too | long"}],
        "records": [ONE],
        "settings": {"folder": "here", "seed": 0, "n_bootstrap": 1000},
        **change,
    }
    return report(record)


def test_users_text_cannot_leave_its_place():
    text = page()
    assert len(text) < 4000
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "# LLMeval\\_j\\_logits: here",
        "## Labels",
        "## Remarks",
        "## Failed: 1 records, in no mean",
        "## Worst first",
        "### who? ↵ \\# a heading",
        "## Settings and versions",
    ]
    assert "| 0.50000 | 0.2500 to 0.7500 | 1 | 0.1250 | 1 |" in text
    assert "| a\\|b | 1 | 1 | 0.5000 |" in text
    assert "Score 0.5000 (q_id q\\|1)" in text
    assert "Labels: a\\|b 0.5000; outside 0.1250" in text
    assert "\u202e" not in text
    assert "<b>" not in text


def test_worst_first_and_not_all():
    many = [{**ONE, "q_id": k, "score": 1 - k / 100} for k in range(SHOWN + 5)]
    text = page(records=[{**one, "question": f"question {one['q_id']}"} for one in many])
    lines = text.splitlines()
    shown = [k for k, line in enumerate(lines) if line.startswith("### ")]
    assert lines[shown[0]] == f"### question {SHOWN + 4}"
    assert lines[shown[0] + 2] == f"Score {1 - (SHOWN + 4) / 100:.4f} (q_id {SHOWN + 4})"
    assert len(shown) == SHOWN == 50
    assert "50 of 55 shown" in text
    assert "shown" not in page(records=many[:SHOWN])


def test_a_long_question_is_shortened_in_its_heading_and_whole_below():
    question = "why " * 60
    text = page(records=[{**ONE, "question": question}])
    [heading] = [line for line in text.splitlines() if line.startswith("### ")]
    assert len(heading) < 140
    assert f"Question: {question.strip()}" in text
    assert "### -" in page(records=[{**ONE, "question": ""}])


def test_the_interval_is_explained_as_it_was_made():
    assert "95% of 1000 bootstrap means" in page()
    text = page(summary={**SUMMARY, "interval_by": "wilson"})
    assert "Wilson's 95% interval" in text
    assert "bootstrap means" not in text


def test_nothing_was_judged():
    summary = {**SUMMARY, "n": 0, "mean": None, "interval": [None, None], "outside": None}
    text = page(summary=summary, records=[{**ONE, "score": None, "known": None}])
    assert f"| {NOTHING} | {NOTHING} | 0 | 1 |" in text
    assert "## Worst first" not in text

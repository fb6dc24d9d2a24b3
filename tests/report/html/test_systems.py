"""The pages of the systems: their numbers are those of the Markdown and of the record."""

import itertools
import math
import re
from typing import Any

import pytest

from jaxscore import InputError, evaluate
from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report.document import Source
from jaxscore.systems.self_certainty.report import report as self_certainty_report
from tests.report.html.made import block, rounded, tree, values

LONG = " and" * 1100
ROW = re.compile(r"^\| (?!---)(.+) \|$", re.M)
PATHS = [
    {"question": "Where was Ada born?", "paths": [["Ada", "born in", "Oslo"], ["Ada", "is", "b"]]},
    {"question": "Who ran?", "paths": [["the cat", "ran"]]},
    {"question": LONG, "paths": [["a", "b"]]},
]
QUESTIONS = [
    {
        "main_question": f"Which city {k}?",
        "question_category": "ab"[k % 2],
        "answer_strings": ["Vael", "Osk", "Tor"],
        "answer_probabilities": [1.0, 0.0, 0.0],
        "answer_types": ["truth", "b", "c"],
    }
    for k in range(4)
]
QUESTIONS.append({**QUESTIONS[0], "main_question": LONG})
SUITE = {
    "prompt": "Say.",
    "queries": ["True", "False"],
    "context": [{"text": f"{k} is {k}", "expected": k % 2} for k in range(3)]
    + [{"text": LONG, "expected": 0}],
}
OUTPUTS: list[Any] = [
    {"model_input": f"Say {k}:", "output": [" yes", " no", " so"], "right": [True, False, None]}
    for k in range(3)
]
OUTPUTS.append({"model_input": "x", "output": [" a", 3]})


def numbers(text):
    """Numbers as they are written."""
    return re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)


def check_numbers(text, page):
    """Every number of a text stands on the page, as it is or with a card's three digits."""
    on_page = set(numbers(shown(page)))
    for number in numbers(text):
        assert {number, rounded(number)} & on_page, number


def shown(page):
    """What a browser without scripts shows of the summary."""
    found = tree(page)
    return " ".join(found.xpath("//header//text() | //*[@class='card']//text()"))


def columns(page):
    header, arrays = block(page)
    return {
        one["title"]: values(header, arrays, k) for k, one in enumerate(header["columns"])
    }, header


@pytest.fixture
def scorer(scorers):
    return scorers("tiny-qwen2")


def test_paths(scorer):
    report = evaluate("paths", scorer, PATHS, audit_noise=2, system_prompts=["Be brief.", "Think."])
    page, markdown = report.html(), report.markdown()
    for row in ROW.findall(markdown)[1:5]:
        check_numbers(row, page)
    assert report.headline[1:] in tree(page).findtext(".//p[@class='verdict']")
    table, header = columns(page)
    reported = re.findall(r"Without: (.*); With: (.*); Gain: (.*); Entities: ", markdown)
    shown = zip(*(table[name][:3] for name in ("Without", "With", "Gain")), strict=True)
    assert reported == list(shown)
    assert header["n"] == header["nAll"] == 4
    assert list(header["errors"]) == ["3"]
    assert header["noise"][3] == "-"
    assert set(header["noise"][:3]) <= {"y", "n"}
    titles = header["strips"]["titles"]
    assert titles[:2] == ["without the path, system prompt 1", "with the path, system prompt 1"]
    assert len(header["tables"][0]["items"][0]) == 2
    assert header["strips"]["shows"][1]["top"] == math.log(scorer.model.vocab_size)


def test_the_table_of_paths_shows_the_path(scorer):
    table, _ = columns(evaluate("paths", scorer, PATHS[:1]).html())
    assert sorted(table["Path"]) == ["Ada → born in → Oslo", "Ada → is → b"]


def test_the_strips_are_those_of_their_path(scorer):
    """exp(mean log-probability) of each strip is the probability beside it."""
    report = evaluate("paths", scorer, PATHS)
    header, arrays = block(report.html())
    starts = [0, *arrays["length"].cumsum()]
    means = [arrays["logprob"][a:b].mean() / 1000 for a, b in itertools.pairwise(starts)]
    every = [path for record in report.items for path in record["path_evaluations"]]
    paths = [path for path in every if "error" not in path]
    paths.sort(key=lambda path: path["absolute_improvement"])
    assert len(means) == 2 * len(paths)
    for one, without, with_path in zip(paths, means[::2], means[1::2], strict=True):
        assert 2.718281828459045**without == pytest.approx(one["baseline_prob"], rel=2e-3)
        assert 2.718281828459045**with_path == pytest.approx(one["retrieved_prob"], rel=2e-3)
    assert header["strips"]["contexts"][0].endswith("Answer:")


@pytest.mark.slow
def test_chronologic(scorer):
    report = evaluate("chronologic", scorer, QUESTIONS, mode="full", calibrate=True, audit_noise=2)
    page, markdown = report.html(), report.markdown()
    [overall] = re.findall(r"^\| Overall \| (.+) \|$", markdown, re.M)
    check_numbers(overall, page)
    check_numbers(re.search(r"calibration error ([\d.]+)", markdown)[1].rstrip("."), page)
    table, header = columns(page)
    briers = re.findall(r"; Brier: (\d+\.\d+)", markdown)
    assert table["Brier"][:4] == briers
    assert [row[0] for row in header["tables"][0]["items"][0][0:3]] == [
        row.replace("**", "").replace(" (right)", "").split(" | ")
        for row in ROW.findall(markdown.partition("### Which")[2])[1:4]
    ]
    assert [row[2] for row in header["tables"][0]["items"][0]] == [1, 0, 0]
    assert list(header["errors"]) == ["4"]
    assert "Temperature scaling" in tree(page).xpath("//summary/h2/text()")
    assert tree(page).xpath("//figcaption/b/text()")[-1] == "Reliability after temperature scaling"


@pytest.mark.slow
def test_chronologic_letters(scorer):
    report = evaluate("chronologic", scorer, QUESTIONS[:4], mode="mcq")
    page, markdown = report.html(), report.markdown()
    [overall] = re.findall(r"^\| Overall \| (.+) \|$", markdown, re.M)
    check_numbers(overall, page)
    table, header = columns(page)
    skills = re.findall(r"; Skill: (-?\d+\.\d+)", markdown)
    assert table["Skill"] == skills
    assert header["strips"] is None


@pytest.mark.slow
def test_probsem(scorer):
    report = evaluate("probsem", scorer, SUITE, audit_noise=2)
    page, markdown = report.html(), report.markdown()
    [overall] = re.findall(r"^\| Accuracy \| (.+) \|$", markdown, re.M)[:1]
    check_numbers(overall, page)
    table, header = columns(page)
    assert table["Passed"][:3] == sorted(table["Passed"][:3])
    first = header["tables"][0]["items"][0]
    rows = ROW.findall(markdown.partition("### ")[2])[1:3]
    for row, (cells, share, _) in zip(rows, first, strict=True):
        assert numbers(row) == numbers(" ".join(cells[1:]))
        assert share == pytest.approx(float(cells[2]), abs=1e-4)
    assert sum(marked for *_, marked in first) == 1


@pytest.mark.slow
def test_self_certainty(scorer):
    report = evaluate("self-certainty", scorer, OUTPUTS, n_bootstrap=50)
    page = report.html()
    assert numbers(report.headline)[0] in shown(page)
    table, header = columns(page)
    best = [max(v for v in one["confidence_list"] if v is not None) for one in report.items]
    assert sorted(table["Best"], key=float) == [f"{value:.6g}" for value in sorted(best)]
    assert table["Scored"].count("3") == 3
    assert set(table["Right?"]) <= {"yes", "no", "-"}
    for rows in header["tables"][0]["items"]:
        certainties = [float(row[0][1]) for row in rows if row[0][1] != "-"]
        assert certainties == sorted(certainties, reverse=True)
    assert list(header["errors"].values()) == ["output 2: found a whole number, expected a string"]
    titles = tree(page).xpath("//figcaption/b/text()")
    assert "Self-certainty of right and wrong outputs" in titles


def test_no_right_and_wrong_without_gold(scorer):
    items = [{k: v for k, v in one.items() if k != "right"} for one in OUTPUTS]
    page = evaluate("self-certainty", scorer, items, n_bootstrap=50).html()
    assert "right and wrong" not in page.partition("<script")[0]
    assert "Right?" not in columns(page)[0]


def test_self_certainty_of_any_records():
    """Whatever an input file may hold in place of what is expected."""
    records = [
        {"confidence_list": [None], "output": None, "model_input": 3, "right": "no"},
        {"confidence_list": [1.5, 2.5], "output": ["a", "b"], "right": ["x", True]},
        {"confidence_errors": ["no field"], "confidence_list": []},
    ]
    mean = Estimate(2, 2.0, None, None)
    found = {
        "summary": {"n_items": 3, "n_outputs": 3, "n_scored": 2, "mean_self_certainty": mean},
        "settings": {}, "remarks": [], "failures": [],
    }  # fmt: skip
    page = self_certainty_report(Source("self-certainty", found, "x", 3, items=records))
    assert page.title == "Self-certainty: no model"
    titles = [one.title for one in page.items.columns]
    right = page.items.columns[titles.index("Right?")]
    assert list(right.values) == ["yes", "-", "-"]


@pytest.mark.slow
def test_score_in_python(scorer):
    texts = [("The cat", " sat down"), ("The cat", " ran"), {"continuation": LONG}, {"id": 3}]
    report = evaluate("score", scorer, texts, audit_noise=2)
    table, header = columns(report.html())
    good = [one for one in report.items if "error" not in one]
    good.sort(key=lambda one: one["mean_logprob"])
    assert table["Sum"][:2] == [f"{one['sum_logprob']:.4f}" for one in good]
    assert header["strips"]["contexts"] == ["The cat"]
    assert list(header["errors"]) == ["2", "3"]
    assert header["textColumn"] == "Text"


def test_a_system_without_a_page(scorer):
    with pytest.raises(InputError, match="metrics does not have a page"):
        evaluate("metrics", None, [{"response": "a", "label": ["a"]}]).html()


def test_nothing_was_scored(scorer):
    """Every item failed: no number, no picture, and a row for each."""
    report = evaluate("paths", scorer, PATHS[2:])
    [_] = report.failures
    page = report.html()
    table, header = columns(page)
    assert header["n"] == 1
    assert table["Gain"] == ["-"]
    assert tree(page).xpath("//figure") == []


def test_self_certainty_shows_messages():
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho ran?<|im_end|>\n"
    records = [{"confidence_list": [1.5], "output": ["a"], "model_input": prompt}]
    found = {
        "summary": {"n_items": 1, "n_outputs": 1, "n_scored": 1,
                    "mean_self_certainty": Estimate(1, 1.5, None, None)},
        "settings": {}, "remarks": [], "failures": [],
    }  # fmt: skip
    page = self_certainty_report(Source("self-certainty", found, "x", 1, items=records))
    assert page.items.columns[0].values == ["Who ran?"]
    [messages] = page.items.fields
    assert messages.values == ["system: Be brief.\n\nuser: Who ran?"]

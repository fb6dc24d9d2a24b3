"""--html and --no-html of the commands that have a page."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import QWEN
from tests.report.html.made import block, tree

LINE = {"id": "q", "question": "Who ran?", "paths": [["the cat", "ran"], ["a", "b"]]}
QUESTION = {
    "main_question": "Which?",
    "answer_strings": ["a", "b"],
    "answer_probabilities": [1.0, 0.0],
}
RECORD = {"q_id": "1", "response": "a", "label": ["a"], "question": "?"}


def pages(folder):
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*.html"))


def score(folder, *more):
    places = ("--input", folder / "in.jsonl", "--output", folder / "out.jsonl")
    return "score", "--model", QWEN, *places, "--quiet", *more


@pytest.fixture
def texts(place):
    """Three requests, the second of which is too long."""
    return place(
        {"id": "a", "context": "The cat", "continuation": " sat down"},
        {"id": "b", "continuation": " and" * 1100},
        {"id": "c", "context": "<b>", "continuation": " ran", "rank": "mine"},
    )


def test_score(run, texts):
    code, out, _ = run(*score(texts))
    assert code == 1
    assert pages(texts) == ["out.jsonl.report.html"]
    path = texts / "out.jsonl.report.html"
    assert f"         {path}\n" in out
    header, arrays = block(path.read_text(encoding="utf-8"))
    lines = [json.loads(one) for one in (texts / "out.jsonl").read_text().splitlines()]
    good = sorted((one for one in lines if "error" not in one), key=lambda x: x["mean_logprob"])
    assert header["columns"][0]["values"] == [*(one["id"] for one in good), "b"]
    assert header["errors"]["2"].startswith("1100 tokens")
    contexts = [header["strips"]["contexts"][place] for place in arrays["context"]]
    assert contexts == [{"a": "The cat", "c": "<b>"}[one["id"]] for one in good]
    ids = [header["strips"]["ids"][place] for place in arrays["token"]]
    assert ids == [id for one in good for id in one["token_ids"]]
    nats = [round(p * 1000) for one in good for p in one["logprob"]]
    assert arrays["logprob"].tolist() == pytest.approx(nats, abs=1)
    assert "rank" not in arrays  # a user's own field is none of ours


@pytest.mark.slow
def test_the_page_of_a_second_run_is_the_same(run, texts):
    path = texts / "out.jsonl.report.html"
    bodies = []
    for _ in range(2):
        run(*score(texts))
        page = path.read_text(encoding="utf-8")
        [date] = tree(page).xpath("//tr[th='date']/td/text()")
        bodies.append(page.replace(date, ""))
    assert bodies[0] == bodies[1]


def test_no_page(run, texts):
    assert run(*score(texts, "--no-html")).code == 1
    assert pages(texts) == []


def test_another_place(run, texts):
    place = texts / "new" / "page.html"
    code, out, _ = run(*score(texts, "--html", place, "--summary-only"))
    assert code == 1
    assert pages(texts) == ["new/page.html"]
    assert str(place) in out
    header, _ = block(place.read_text(encoding="utf-8"))
    assert header["strips"] is None


@pytest.mark.slow
def test_a_table_has_a_page_too(run, texts):
    words = [str(word).replace("out.jsonl", "out.parquet") for word in score(texts)]
    assert run(*words).code == 1
    assert pages(texts) == ["out.parquet.report.html"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("in.jsonl", "--html .*in.jsonl is an input of this run"),
        ("out.jsonl", "out.jsonl.* are one file, and this run would write both"),
        ("out.jsonl.run.json", "run.json are one file, and this run would write both"),
        (".", "found a folder, expected the name of a file"),
    ],
)
def test_places_that_cannot_be_used(run, texts, name, message):
    code, _, err = run(*score(texts, "--html", texts / name))
    assert code == 2
    assert re.search(message, err)
    assert [one.name for one in texts.iterdir()] == ["in.jsonl"]


def test_only_one_of_both(run, texts):
    code, _, err = run(*score(texts, "--html", texts / "a.html", "--no-html"))
    assert code == 2
    assert "--no-html: not allowed with argument --html" in err


def test_an_output_is_never_a_page_of_another(run, texts):
    words = [str(word).replace("out.jsonl", "out_report.html") for word in score(texts)]
    code, _, err = run(*words)
    assert code == 2
    assert "names that end in _report.html are those of reports" in err


@pytest.mark.slow
def test_paths(run, place):
    folder = place(LINE)
    words = ("paths", "--model", QWEN, "--input", folder / "in.jsonl", "--quiet")
    assert run(*words, "--output", folder / "out.json").code == 0
    assert run(*words, "--output", folder / "out.json", "--html", folder / "a.html").code == 0
    assert run(*words, "--output", folder / "other", "--no-html").code == 0
    assert pages(folder) == ["a.html", "out_report.html"]


@pytest.mark.slow
def test_chronologic(run, place):
    folder = place(QUESTION)
    words = ("chronologic", QWEN, folder / "in.jsonl", "--quiet", "--output-dir")
    assert run(*words, folder / "one").code == 0
    assert run(*words, folder / "two", "--html", folder / "a.html").code == 0
    assert run(*words, folder / "three", "--no-html").code == 0
    found = pages(folder)
    assert found[0] == "a.html"
    assert found[1].startswith("one/eval_report_")
    assert len(found) == 2


@pytest.mark.slow
def test_judge(run, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eval_dev_out.json").write_text(json.dumps([RECORD]))
    every = ("judge", "--experiments-folder", tmp_path, "--llm", QWEN, "q", "--quiet")
    code, _, err = run(*every, "--html", tmp_path / "a.html")
    assert code == 2
    assert "each folder gets its own, or judge one with --folder" in err
    assert run(*every).code == 0
    name = "eval_dev_judge_LLMeval_q_logits.html"
    assert pages(tmp_path) == [f"one/{name}", f"two/{name}"]
    words = ("judge", "--folder", tmp_path / "one", "--llm", QWEN, "r", "--quiet")
    assert run(*words, "--html", tmp_path / "a.html").code == 0
    assert len(pages(tmp_path)) == 3
    refused = run(*words, "--force", "--html", tmp_path / "one" / "eval_dev_out.json")
    assert "eval_dev_out.json is an input of this run" in refused.err
    assert json.loads((tmp_path / "one" / "eval_dev_out.json").read_text())


def test_self_certainty_that_has_nothing_left_to_do(run, tmp_path):
    items = [{"model_input": "Say:", "output": [" a", " b"]}]
    (tmp_path / "in.json").write_text(json.dumps(items))
    words = ("self-certainty", "--model", QWEN, "--input", tmp_path / "in.json", "--quiet")
    assert run(*words, "--no-html").code == 0
    assert pages(tmp_path) == []
    assert run(*words).code == 0
    page = (tmp_path / "in-confidence-list_report.html").read_text(encoding="utf-8")
    assert block(page)[0]["n"] == 1
    assert tree(page).findtext(".//h1") == f"Self-certainty: {Path(QWEN).name}"


OPTIONS = {"context": "Q:", "options": [" a", " b"], "gold": 0}
SAMPLED = [
    {"id": k, "output": ['{"answer": 1}', '{"answer": 2}'], "confidence_list": [1.0, 2.0]}
    for k in (1, 2)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "line"), [("choose", OPTIONS), ("perplexity", {"text": "The cat sat."})]
)
def test_choose_and_perplexity(run, place, command, line):
    folder = place(line, line | {"id": "b"})
    words = (command, "--model", QWEN, "--input", folder / "in.jsonl", "--quiet", "--output")
    code, out, _ = run(*words, folder / "out.jsonl")
    assert code == 0
    assert f"         {folder / 'out.jsonl.report.html'}\n" in out
    assert run(*words, folder / "other.jsonl", "--no-html").code == 0
    assert pages(folder) == ["out.jsonl.report.html"]
    code, _, err = run(*words, folder / "x.jsonl", "--html", folder / "x.jsonl.report.json")
    assert code == 2
    assert "this run would write both" in err


@pytest.mark.slow
def test_compare_and_the_runs_that_it_reads(run, place):
    folder = place(OPTIONS, OPTIONS | {"id": "b"})
    words = ("choose", "--model", QWEN, "--input", folder / "in.jsonl", "--quiet", "--no-html")
    for name in "ab":
        assert run(*words, "--output", folder / f"{name}.jsonl").code == 0
    both = ("compare", folder / "a.jsonl", folder / "b.jsonl", "--quiet")
    for name in ("a.jsonl", "b.jsonl.run.json"):
        code, _, err = run(*both, "--html", folder / name)
        assert code == 2
        assert f"{name} is an input of this run" in err
    code, out, _ = run(*both)
    assert code == 0
    assert "a-vs-b.report.html\n" in out
    assert pages(folder) == ["a-vs-b.report.html"]


@pytest.mark.parametrize("command", ["select", "vote", "livecode-select"])
def test_choices_have_a_page_with_gold_and_without(run, tmp_path, command):
    path = tmp_path / "in.json"
    gold = [{**one, "gold": [True, False], "question_id": one["id"]} for one in SAMPLED]
    path.write_text(json.dumps(gold))
    words = (command, "--input", path, "--output", tmp_path / "out.json", "--quiet")
    assert run(*words, "--gold", "gold", "--no-html").code == 0
    assert pages(tmp_path) == []
    assert run(*words, "--gold", "gold", "--html", tmp_path / "a.html").code == 0
    assert pages(tmp_path) == ["a.html"]
    code, out, _ = run(*words)
    assert code == 0
    assert f"         {tmp_path / 'out_report.html'}\n" in out
    assert pages(tmp_path) == ["a.html", "out_report.html"]

"""`self-certainty --gold`: lists beside the confidences, a report, and runs that go on."""

import json

import pytest

from jaxscore.cli import model_flags
from tests.cli.conftest import QWEN, strict, with_input
from tests.hostile.inputs import TEXTS

ITEMS = [
    {
        "id": k,
        "model_input": f"{k} + 1 =",
        "output": [' {"answer": 1}', ' {"answer": 2}'],
        "g": str(k),
    }
    for k in range(1, 4)
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    return tmp_path


def flags(folder, *more):
    return (
        "self-certainty", "--input", folder / "in.json", "--output", folder / "out.json",
        "--model", QWEN, "--dtype", "float32", "--journal", "off", *more,
    )  # fmt: skip


def result(folder, name="out.json"):
    return strict((folder / name).read_text(encoding="utf-8"))


def test_what_is_printed_and_written(run, folder):
    code, out, err = run(*flags(folder, "--gold", "g", "--quiet"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["AUROC", "PRR", "AURC", "ECE"]
    names = "self-certainty|negative mean entropy|mean log-probability|negative perplexity"
    assert [line[:21].strip() for line in lines[1:5]] == names.split("|")
    report = result(folder, "out_report.json")
    for line, one in zip(lines[1:5], report["quality"]["confidences"].values(), strict=True):
        assert line.split()[-4:-1] == [f"{one[k]['value']:.3f}" for k in ("auroc", "prr", "aurc")]
    [reported] = [line for line in lines if line.startswith("result")]
    assert reported.endswith("), 2 of 6 outputs are right")
    reports = [f"out_report.{kind}" for kind in ("md", "json", "html")]
    assert [line.split()[-1] for line in lines[-5:]] == [
        str(folder / name) for name in ("out.json", *reports, "out.json.run.json")
    ]
    assert [one["right"] for one in result(folder)] == [[True, False], [False, True], [False] * 2]
    assert report["summary"]["n_scored"] == 6
    assert "## Risk at coverage" in (folder / "out_report.md").read_text("utf-8")
    # graded outputs are what `select` chooses among, by the verdicts that are now there
    words = ("select", "--input", folder / "out.json", "--gold", "right", "--output")
    assert run(*words, folder / "s.json").code == 0
    first = result(folder, "s_report.json")["summary"]["accuracy"]["first sample"]
    assert first["mean"] == pytest.approx(1 / 3)


def test_a_file_without_the_lists_is_scored_again_and_one_with_them_is_not(
    run, folder, monkeypatch
):
    assert run(*flags(folder)).code == 0
    plain = result(folder)
    assert {"right", "mean_logprob_list"}.isdisjoint(plain[0])
    assert run(*flags(folder, "--gold", "g")).code == 0
    graded = result(folder)
    assert [one["confidence_list"] for one in graded] == [one["confidence_list"] for one in plain]
    page = (folder / "out_report.md").read_text("utf-8").split("## Settings")[0]
    monkeypatch.setattr(model_flags, "load_scorer", None)
    (folder / "out_report.md").unlink()
    code, out, _ = run(*flags(folder, "--gold", "g"))
    assert (code, out.startswith("nothing was left to do in")) == (0, True)
    assert result(folder) == graded
    assert (folder / "out_report.md").read_text("utf-8").split("## Settings")[0] == page
    assert run(*flags(folder)).code == 0  # the lists stay, and nobody asks what is right
    for one in graded:
        del one["right"], one["answer_forms"]
    assert result(folder) == graded


def test_items_without_gold_and_with_gold_that_cannot_be_used(run, folder):
    items = [*ITEMS, {**ITEMS[0], "id": "none", "g": None}, {**ITEMS[0], "id": "bad", "g": [True]}]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    code, _, err = run(*flags(folder, "--gold", "g", "--quiet"))
    assert code == 1
    assert err == (
        'failed: item 5 (id bad): field "g", the gold, has 1 verdicts for 2 responses, expected '
        "one for each\n1 failed, the others are kept\n"
    )
    *_, none, bad = result(folder)
    assert (none["right"], bad["right"]) == (None, None)
    assert "has 1 verdicts" in bad["error"]
    assert len(bad["confidence_list"]) == 2
    assert result(folder, "out_report.json")["quality"]["without_gold"] == ["item 4 (id none)"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--gold", "h"), 'in.json: no item has gold in field "h"; the first item has the fields'),
        (("--gold", ""), "argument --gold: '', expected the name of a field"),
        (("--gold", "g", "--alignment", "upstream"), "take alignment formula"),
    ],
)
def test_usage_that_cannot_work(run, folder, monkeypatch, words, part):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    monkeypatch.chdir(folder)
    (folder / "out_report.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    words = flags(folder, "--output", "out.json", *words)
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert part in err
    assert sorted(one.name for one in folder.iterdir()) == ["in.json", "out_report.json"]


def test_an_input_that_is_the_report_of_the_output(run, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "out_report.json").write_text(json.dumps(ITEMS), encoding="utf-8")
    words = flags(folder, "--output", "out.json", "--gold", "g")
    code, out, err = run(*with_input(words, "out_report.json"))
    assert (code, out) == (2, "")
    assert "out_report.json is an input of this run" in err
    assert sorted(one.name for one in folder.iterdir()) == ["in.json", "out_report.json"]


def test_hostile_texts_in_a_report(run, folder):
    items = [
        {"id": text, "model_input": "a", "output": [f" {text}", " b"], "g": [False, True]}
        for text in TEXTS
        if len(text) < 1000
    ]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    ran = run(*flags(folder, "--gold", "g", "--quiet"))
    assert (ran.code, "Traceback" in ran.err) == (0, False)
    page = (folder / "out_report.md").read_text("utf-8")
    assert "<script>" not in page
    assert not {"\u202e", "\x1b", "\0"} & set(page)
    result(folder, "out_report.json")

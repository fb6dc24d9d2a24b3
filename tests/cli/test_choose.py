"""`choose`: the documented files, in every form, and exit codes."""

import csv
import json

import pytest
from pyarrow import parquet

from jaxscore.cli import model_flags
from tests.cli.conftest import QWEN, strict

LINES = (
    {"id": "a", "context": "The cat", "options": [" sat", " ran, far"], "gold": 1, "topic": "x"},
    {"context": "One", "options": [" two", " three", " four"], "gold": " two"},
    {"id": "bad", "context": "One", "options": [" two"]},
)
FIELDS = (
    "id context options category sum_logprob n_tokens n_bytes pmi probability choice choice_norm "
    "choice_pmi gold acc acc_norm acc_pmi chance skill skill_norm skill_pmi brier"
).split()


def flags(folder, *more, output="out.jsonl"):
    return (
        "choose", "--model", QWEN, "--input", folder / "in.jsonl", "--output", folder / output,
        "--batch-tokens", 256, "--quiet", *more,
    )  # fmt: skip


def test_the_documented_files(run, place):
    folder = place(*LINES)
    code, out, err = run(*flags(folder))
    assert code == 1
    assert err.startswith(f'failed: {folder / "in.jsonl"}:3 (id bad): field "options" has 1 text')
    assert "done     3 items, 1 failed in " in out
    assert "result   acc " in out
    records = [strict(line) for line in (folder / "out.jsonl").read_text("utf-8").splitlines()]
    assert list(records[0]) == [*FIELDS, "topic"]
    assert list(records[1]) == FIELDS
    assert list(records[2]) == ["id", "error"]
    assert [one["id"] for one in records] == ["a", 2, "bad"]
    report = strict((folder / "out.jsonl.report.json").read_text("utf-8"))
    assert "items" not in report
    assert report["summary"]["overall"]["acc"]["n"] == 2
    assert report["settings"]["pmi_context"] == "Answer:"
    page = (folder / "out.jsonl.report.md").read_text("utf-8")
    assert page.startswith("# Multiple choice: ")
    assert "## Failed: 1 item, in no mean" in page
    manifest = strict((folder / "out.jsonl.run.json").read_text("utf-8"))
    assert (manifest["command"], manifest["failed"]) == ("choose", 1)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_tables(run, place, ending):
    folder = place(*LINES)
    run(*flags(folder))
    assert run(*flags(folder, output=f"out.{ending}")).code == 1
    if ending == "parquet":
        table = parquet.read_table(folder / "out.parquet").to_pylist()
    else:
        with (folder / f"out.{ending}").open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file, delimiter="," if ending == "csv" else "\t"))
    lines = (folder / "out.jsonl").read_text("utf-8").splitlines()
    for row, line in zip(table, map(strict, lines), strict=True):
        for name in FIELDS:
            want = line.get(name)
            if name == "id":
                assert row[name] == str(want)
            elif ending == "parquet" or isinstance(want, str):
                assert row[name] == want
            else:
                assert row[name] == ("" if want is None else json.dumps(want, ensure_ascii=False))
        assert (row["error"] or None) == line.get("error")
    assert json.loads(table[0]["extra"]) == {"topic": "x"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "in.jsonl:1: not JSON"),
        ("", "in.jsonl: the file is empty"),
        ({"id": 1}, "no item is usable; the first, "),
    ],
)
def test_what_is_unusable_leaves_nothing(run, place, monkeypatch, line, message):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place(line)
    code, out, err = run(*flags(folder))
    assert (code, out) == (2, "")
    assert message in err
    assert [one.name for one in folder.iterdir()] == ["in.jsonl"]


def test_an_output_that_is_the_input(run, place):
    folder = place(*LINES)
    code, _, err = run(*flags(folder, output="in.jsonl"))
    assert code == 2
    assert "is an input of this run" in err


def test_the_journal_has_what_was_scored(run, place):
    folder = place(*LINES[:2])
    first = run(*flags(folder))
    assert first.code == 0
    before = (folder / "out.jsonl").read_bytes()
    second = run(*flags(folder))
    assert "10 of 10 texts come from it" in second.out
    assert (folder / "out.jsonl").read_bytes() == before
    assert run(*flags(folder, "--limit", 1)).code == 0
    assert len((folder / "out.jsonl").read_text("utf-8").splitlines()) == 1

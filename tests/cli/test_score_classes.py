"""`score --class` and `--word-correction` from the command line: files, tables, journal."""

import csv
import json
import re
import shlex

import numpy as np
import pytest
from pyarrow import parquet

from tests.cli.test_score import flags, records
from tests.conftest import ROOT

LINES = (
    {"id": "a", "context": "The cat", "continuation": " sat on the mat."},
    {"id": "b", "continuation": "It was late.\n"},
)
WORDS = ("--unit", "word", "--word-correction")


def test_records_and_tables_have_the_fields_of_the_classes(run, place):
    folder = place(*LINES)
    (folder / "ids.txt").write_text("7\n\n11\n 7\n", encoding="utf-8")
    (folder / "ids.json").write_text("[7, 11]", encoding="utf-8")
    words = flags(
        folder, *WORDS, "--class", "end=eos", "--class", f"some={folder / 'ids.txt'}",
        "--class", f"same={folder / 'ids.json'}", "--class", "again=11,7",
    )  # fmt: skip
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert "; class end -" in out
    lines = records(folder)
    for line in lines:
        assert line["mass_some"] == line["mass_same"] == line["mass_again"] != line["mass_end"]
        assert len(line["mass_some"]) == line["n_tokens"]
        assert len(line["word_logprob_corrected"]) == len(line["words"])
    assert lines[1]["mass_end"][0] is None
    report = json.loads((folder / "out.jsonl.report.json").read_text("utf-8"))
    assert report["summary"]["mean_mass_some"] == report["summary"]["mean_mass_same"]
    page = (folder / "out.jsonl.report.md").read_text("utf-8")
    assert "Class end" in page
    for ending in ("csv", "parquet"):
        assert run(*[str(word).replace("out.jsonl", f"out.{ending}") for word in words]).code == 0
    with (folder / "out.csv").open(encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    rows = parquet.read_table(folder / "out.parquet").to_pylist()
    for line, cell, row in zip(lines, cells, rows, strict=True):
        assert json.loads(cell["mass_end"]) == line["mass_end"]
        assert float(cell["mean_mass_end"]) == row["mean_mass_end"] == line["mean_mass_end"]
        assert row["mass_end"] == pytest.approx(line["mass_end"])
        assert row["word_logprob_corrected"] == line["word_logprob_corrected"]


def test_a_resumed_run_with_other_ids_computes_them(run, place):
    folder = place(*LINES)
    assert "0 of 2 texts come from it" in run(*flags(folder, "--class", "x=7")).out
    lines = (folder / "out.jsonl").read_bytes()
    ran = run(*flags(folder, "--class", "x=8", "--force"))
    assert "0 of 2 texts come from it" in ran.out
    assert (folder / "out.jsonl").read_bytes() != lines
    ran = run(*flags(folder, "--class", "x=7", "--force"))
    assert "2 of 2 texts come from it" in ran.out
    assert (folder / "out.jsonl").read_bytes() == lines
    (folder / "out.jsonl.report.html").unlink()
    assert run("report", folder / "out.jsonl").code == 0
    assert b"Class x" in (folder / "out.jsonl.report.html").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--class", "x"), "argument --class: 'x', expected NAME=IDS"),
        (("--class", "x="), "argument --class: class x: contains no ids, expected at least one"),
        (("--class", "x=none.txt"), "none.txt: No such file or directory; expected ids such as"),
        (("--class", "x=99999"), "class x has id 99999, expected 0 to"),
        (("--word-correction",), "only matters with --unit word"),
    ],
)
def test_classes_that_are_refused(run, place, words, message):
    code, _, err = run(*flags(place(*LINES), *words))
    assert (code, message in err) == (2, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("7\nx\n", "line 2: 'x', expected a token id"),
        ("\n", "contains no ids, expected at least one"),
        ('[7, "x"]', "contains 'x', expected token ids from 0 on"),
        ("[7, -1]", "contains -1, expected token ids from 0 on"),
        ("[7", "not a JSON array of ids"),
    ],
)
def test_file_of_ids_that_is_refused(run, place, content, message):
    folder = place(*LINES)
    (folder / "ids").write_text(content, encoding="utf-8")
    code, _, err = run(*flags(folder, "--class", f"x={folder / 'ids'}"))
    assert (code, f"{folder / 'ids'}" in err, message in err) == (2, True, True)


def test_field_of_a_class_in_the_input_is_refused(run, place):
    folder = place({"id": "a", "continuation": "A b", "mass_x": 1})
    code, _, err = run(*flags(folder, "--class", "x=7"))
    assert (code, "mass_x" in err) == (2, True)
    assert run(*flags(folder, "--class", "y=7")).code == 0
    assert records(folder)[0]["mass_x"] == 1


def test_the_example_of_the_page(run, tmp_path, monkeypatch):
    """Most of what the answer costs is the space before it."""
    page = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")
    section = page.partition("## Words and classes of tokens")[2]
    line, command = re.search(r"```sh\n(.*)\n(.*)\n```", section).groups()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(shlex.split(line)[1], encoding="utf-8")
    assert run(*shlex.split(command)[3:]).code == 0
    [record] = records(tmp_path)
    assert record["words"] == ["Norvaford."]
    [corrected] = record["word_logprob_corrected"]
    assert record["sum_logprob"] + 0.2 < corrected < -0.01  # without the space before the answer
    assert np.greater(record["mass_words"], record["mass_end"]).all()

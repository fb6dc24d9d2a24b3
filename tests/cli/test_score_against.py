"""`score --against` and `--against-field` from the command line: files, journal, comparison."""

import csv
import json
import re
import shlex

import pytest
from pyarrow import parquet

from tests.cli.conftest import QWEN
from tests.cli.test_score import flags, records
from tests.conftest import ROOT
from tests.endpoints.model_server import ModelServer
from tests.endpoints.server import Server

LINES = (
    {"id": "a", "context": "The cat", "continuation": " sat on the mat.", "other": "The dog"},
    {"id": "b", "context": "The cat ran.", "continuation": " It was late.", "other": "The"},
)
GAINS = ["sum_gain", "gain_bits", "ifd", "ifd_ppl", "long_ppl", "n_long", "n_both"]


def test_the_columns_of_tables(run, place):
    folder = place(*LINES)
    words = flags(folder, "--against-field", "other", "--long-logprob", "-9", "--long-gain", "-1")
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert "gain by the context" in out
    lines = records(folder)
    assert all(line["long_ppl"] > 1 and line["other"] for line in lines)
    for ending in ("csv", "parquet"):
        words = [str(word).replace("out.jsonl", f"out.{ending}") for word in words]
        words = [word.replace("out.csv", f"out.{ending}") for word in words]
        assert run(*words).code == 0
    with (folder / "out.csv").open(encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    rows = parquet.read_table(folder / "out.parquet").to_pylist()
    for line, cell, row in zip(lines, cells, rows, strict=True):
        for name in GAINS:
            assert float(cell[name]) == row[name] == line[name]
        assert json.loads(cell["gain"]) == line["gain"]
        assert row["gain"] == pytest.approx(line["gain"])


def test_a_finished_run_comes_from_its_journal(run, place):
    folder = place(*LINES)
    words = flags(folder, "--against", "")
    first = run(*words)
    assert (first.code, "0 of 4 texts come from it" in first.out) == (0, True)
    lines = (folder / "out.jsonl").read_bytes()
    (folder / "out.jsonl").unlink()
    again = run(*words)
    assert "4 of 4 texts come from it" in again.out
    assert (folder / "out.jsonl").read_bytes() == lines
    (folder / "out.jsonl.report.html").unlink()
    assert run("report", folder / "out.jsonl").code == 0
    assert b"Gain by the context" in (folder / "out.jsonl.report.html").read_bytes()


def test_gains_of_two_runs_are_compared(run, place):
    folder = place(*LINES, {"id": "c", "context": "A", "continuation": " b c", "other": "B"})
    words = flags(folder, "--against", "A dog")
    assert run(*words).code == 0
    others = [str(word).replace("out.jsonl", "other.jsonl") for word in words]
    assert run(*others, "--system", "Be brief.").code == 0
    ran = run("compare", folder / "out.jsonl", folder / "other.jsonl", "--output", folder / "c")
    assert ran.code == 0, ran.err
    for title in ("gain of a text by its context, nats", "(IFD)"):
        assert any(title in file.read_text("utf-8") for file in folder.glob("c*"))
    assert run(*others[:-2], "--against", "").code == 0
    refused = run("compare", folder / "out.jsonl", folder / "other.jsonl", "--output", folder / "c")
    assert refused.code == 2
    assert "differ in against" in refused.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--against", "x", "--against-field", "other"), "both give the other context; give one"),
        (("--against-field", "othr"), "no field \"othr\", expected a string; there are 'other'"),
        (("--long-gain", "1"), "which only matters with --against"),
    ],
)
def test_what_is_refused(run, place, words, message):
    code, _, err = run(*flags(place(*LINES), *words))
    assert (code, message in err) == (2, True)


def test_a_server_gives_the_same_gains(run, place, scorers, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    folder = place(*LINES)
    words = ("--input", folder / "in.jsonl", "--against-field", "other", "--quiet", "--output")
    with Server(ModelServer(scorers("tiny-qwen2"))) as server:
        served = ("--model", "m", "--api-base", server.url)
        ran = run("score", *served, *words, folder / "served.jsonl")
    assert ran.code == 0, ran.err
    assert run("score", "--model", QWEN, *words, folder / "out.jsonl").code == 0
    for one, other in zip(records(folder, "served.jsonl"), records(folder), strict=True):
        assert one["gain"] == pytest.approx(other["gain"], abs=1e-4)
        assert one["ifd"] == pytest.approx(other["ifd"], rel=1e-4)


def test_the_example_of_the_page(run, tmp_path, monkeypatch):
    """Evidence makes its answer more probable than the question alone."""
    page = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")
    section = page.partition("## What a context is worth")[2]
    line, command = re.search(r"```sh\n(.*)\n(.*)\n```", section).groups()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(shlex.split(line)[1], encoding="utf-8")
    assert run(*shlex.split(command)[3:]).code == 0
    [record] = records(tmp_path)
    assert record["gain_bits"] > 1

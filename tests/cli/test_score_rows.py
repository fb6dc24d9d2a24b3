"""`score --rows` from the command line: tables, records next to them, shards, streams."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from pyarrow import parquet

from tests.cli.conftest import QWEN
from tests.cli.test_score import flags, records
from tests.conftest import ROOT

LINES = (
    {"id": "a", "context": "The cat", "continuation": ' sat, "on" the mat.', "condition": "x"},
    {"id": "b", "continuation": "It was\nlate. 東京 🙂", "condition": "y, z", "n": 2},
    {"id": "c", "continuation": "", "condition": "x"},
)
COLUMNS = {
    "token": ["index", "text", "start", "end", "token_id", "token", "logprob", "surprisal"],
    "word": ["index", "text", "start", "end", "n_tokens", "logprob", "surprisal", "entropy"],
}


def rows_of(folder, name):
    """The rows of a table, as JSONL has them."""
    path = folder / name
    if path.suffix == ".jsonl":
        return records(folder, name)
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    delimiter = "\t" if path.suffix == ".tsv" else ","
    return [*csv.DictReader(io.StringIO(path.read_text("utf-8"), newline=""), delimiter=delimiter)]


def same(cell, value):
    """Whether a cell of any table has the value that JSONL has."""
    if value is None:
        return cell in (None, "")
    if isinstance(value, float):
        return float(cell) == pytest.approx(value, rel=1e-6)
    return cell == value or cell == str(value) or json.loads(cell) == value


@pytest.mark.parametrize("unit", ["token", "word"])
def test_all_tables_have_the_same_rows(run, place, unit):
    folder = place(*LINES)
    words = flags(folder, "--rows", unit)
    code, out, err = run(*words)
    assert (code, "in.jsonl:3 (id c): its continuation adds no token" in err) == (1, True)
    assert "out.jsonl.records.jsonl" in out
    rows = rows_of(folder, "out.jsonl")
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert rows[-1] == {
        "id": "c",
        "condition": "x",
        "error": "its continuation adds no token to the context; is it empty?",
    }
    assert list(rows[0])[:10] == ["id", "condition", *COLUMNS[unit]]
    for ending in ("csv", "tsv", "parquet"):
        run(*(str(word).replace("out.jsonl", f"out.{ending}") for word in words))
        others = rows_of(folder, f"out.{ending}")
        names = ["id", "condition", "n", *COLUMNS[unit]]
        assert list(others[0])[: len(names)] == names
        assert list(others[0])[-1] == "error"
        for row, other in zip(rows, others, strict=True):
            for name in other:
                assert same(other[name], row.get(name))
        kept = [folder / f"out.{each}.records.jsonl" for each in ("jsonl", ending)]
        assert kept[0].read_bytes() == kept[1].read_bytes()
    table = parquet.read_table(folder / "out.parquet")
    assert {"condition": "string", "n": "int64", "index": "int64"}.items() <= {
        field.name: str(field.type) for field in table.schema
    }.items()


def test_records_next_to_the_rows_are_those_of_the_items(run, place):
    folder = place(*LINES[:2])
    assert run(*flags(folder, "--summary-only")).code == 0
    summary = records(folder)
    assert run(*flags(folder, "--rows", "word", "--force")).code == 0
    kept = records(folder, "out.jsonl.records.jsonl")
    counts = [record.pop("n_rows") for record in kept]
    assert kept == summary
    assert sum(counts) == len(records(folder))
    manifest = json.loads((folder / "out.jsonl.run.json").read_text())
    assert manifest["outputs"]["out.jsonl.records.jsonl"]["records"] == 2
    assert manifest["outputs"]["out.jsonl"]["size"] == (folder / "out.jsonl").stat().st_size


def test_report_and_compare_read_the_records(run, place):
    folder = place(*LINES)
    run(*flags(folder, "--rows", "token"))
    before = (folder / "out.jsonl").read_bytes()
    run(*(str(w).replace("out.jsonl", "b.csv") for w in flags(folder, "--rows", "word")))
    page = folder / "out.jsonl.report.json"
    report = json.loads(page.read_text())
    page.unlink()
    code, out, _ = run("report", folder / "out.jsonl")
    assert (code, "2 requests" in out or "3 requests, 1 failed" in out) == (1, True)
    assert json.loads(page.read_text())["summary"] == report["summary"]
    assert report["summary"]["n_rows"] == len(records(folder)) - 1  # one of a failed item
    assert "a table with a row per token" in (folder / "out.jsonl.report.md").read_text()
    assert (folder / "out.jsonl").read_bytes() == before
    for a in ("out.jsonl", "out.jsonl.records.jsonl"):
        code, out, err = run("compare", folder / a, folder / "b.csv")
        assert (code, "log-probability of a text, nats: A" in out) == (1, True), out + err
        assert "differ in rows" not in out + err
    (folder / "b.csv.records.jsonl").write_text("{}\n")
    code, _, err = run("report", folder / "b.csv")
    assert (code, "b.csv.records.jsonl: not as its manifest describes it" in err) == (2, True)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_merged_rows_are_those_of_one_run(run, tmp_path, ending):
    """Shards with other types of one column: whole numbers, numbers, nothing."""
    lines = [
        {"id": f"i{k}", "continuation": f" The cat sat {k}.", "n": n}
        for k, n in enumerate((1, 2, None, 2.5))
    ]
    (tmp_path / "in").mkdir()
    for name, some in (("a", lines[:2]), ("b", lines[2:3]), ("c", lines[3:]), ("all", lines)):
        folder = tmp_path if name == "all" else tmp_path / "in"
        _write(folder / f"{name}.{ending}", some)
    words = ("--model", QWEN, "--rows", "word", "--reproducible", "--quiet")
    folders = ("--input", tmp_path / "in", "--output", f"{tmp_path}/out/")
    assert run("score", *folders, *words).code == 0
    merged, whole = tmp_path / f"merged.{ending}", tmp_path / f"whole.{ending}"
    assert run("merge", f"{tmp_path}/out/", "--output", merged).code == 0
    one = ("score", "--input", tmp_path / f"all.{ending}", "--output", whole, *words)
    assert run(*one).code == 0
    assert rows_of(tmp_path, merged.name) == rows_of(tmp_path, whole.name)
    kept = [records(tmp_path, f"{path.name}.records.jsonl") for path in (merged, whole)]
    assert [record["id"] for record in kept[0]] == [line["id"] for line in lines]
    assert [record["n_rows"] for record in kept[0]] == [record["n_rows"] for record in kept[1]]
    # Finished shards are skipped; one without its records is scored again.
    (tmp_path / f"out/b.{ending}.records.jsonl").unlink()
    again = run("score", "--input", tmp_path / "in", "--output", f"{tmp_path}/out/", *words[:-1])
    assert again.code == 0
    assert "2 of 3 shards are finished" in again.err
    code, _, err = run(
        "score", "--input", tmp_path / "in", "--output", f"{tmp_path}/out/", *words[:3], "token",
        "--reproducible",
    )  # fmt: skip
    assert (code, "--rows word, this one has token" in err) == (2, True)


def _write(path, lines):
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, [*lines[0]], delimiter=";")
            writer.writeheader()
            writer.writerows(lines)
    else:
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(lines), path)


def test_shards_with_other_columns_are_refused(run, tmp_path):
    (tmp_path / "in").mkdir()
    _write(tmp_path / "in/a.csv", [{"continuation": " a", "x": 1}])
    _write(tmp_path / "in/b.csv", [{"continuation": " a", "y": 1}])
    words = ("--model", QWEN, "--rows", "word", "--quiet")
    folders = ("--input", tmp_path / "in", "--output", f"{tmp_path}/out/")
    assert run("score", *folders, *words).code == 0
    code, _, err = run("merge", f"{tmp_path}/out/", "--output", tmp_path / "all.csv")
    assert (code, "found columns id,y," in err, "of b.csv" in err) == (2, True, True)
    assert not (tmp_path / "all.csv").exists()


def test_an_empty_shard_has_a_table_without_rows(run, tmp_path):
    (tmp_path / "in").mkdir()
    _write(tmp_path / "in/a.jsonl", LINES[:1])
    (tmp_path / "in/b.jsonl").write_text("")
    words = ("--model", QWEN, "--rows", "word", "--quiet")
    folders = ("--input", tmp_path / "in", "--output", f"{tmp_path}/out/")
    assert run("score", *folders, *words).code == 0
    assert (tmp_path / "out/b.jsonl").read_text() == ""
    assert run("merge", f"{tmp_path}/out/", "--output", tmp_path / "all.jsonl").code == 0
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "out/a.jsonl").read_bytes()


def test_rows_of_a_stream(place, tmp_path):
    folder = place(*LINES[:2])
    words = [str(word).replace(str(folder / "out.jsonl"), "-") for word in flags(folder)]
    process = subprocess.run(
        [sys.executable, "-m", "jaxscore", *words, "--rows", "word"],
        capture_output=True, text=True, encoding="utf-8", check=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    assert [row["text"] for row in rows] == 'sat, "on" the mat. It was late. 東京 🙂'.split()
    assert {path.name for path in folder.iterdir()} == {"in.jsonl"}


def test_regions_from_a_table_of_excel(run, tmp_path):
    """Byte order mark, semicolons, JSON or bars in a cell, a missing cell."""
    texts = [" The horse| raced| fell.", '[" The horse", " raced", " fell."]', "[[0,10],[16,22]]"]
    lines = [{"item": k, "text": " The horse raced fell.", "roi": t} for k, t in enumerate(texts)]
    _write(tmp_path / "in.csv", [*lines, {"item": 9, "text": " a", "roi": ""}])
    code, _, err = run(
        "score", "--model", QWEN, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv",
        "--column", "continuation=text", "--rows", "region", "--regions-field", "roi", "--quiet",
    )  # fmt: skip
    assert (code, 'in.csv:5: field "roi" is null' in err) == (1, True)
    rows = rows_of(tmp_path, "out.csv")
    assert [(row["item"], row["text"]) for row in rows[:-1]] == [
        *(("0", part) for part in texts[0].split("|")),
        *(("1", part) for part in texts[0].split("|")),
        *(("2", part) for part in (" The horse", " fell.")),
    ]
    assert "roi" not in rows[0]
    assert "is null" in rows[-1]["error"]


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        (["The cat"], "region 0 is 'The cat', and the text has ' The ca' there"),
        ([[0, 4], [3, 8]], "begins before region 0, [0, 4], ends; give them in order"),
        (7, "'7', expected a list of texts or of [start, end) pairs"),
        (..., 'no field "regions", expected the regions of --rows region; give --regions-field'),
    ],
)
def test_unusable_regions_are_refused_before_a_model_is_loaded(run, place, regions, message):
    good = {"continuation": " The cat", "regions": [" The", " cat"]}
    bad = {"continuation": " The cat", "regions": regions}
    if regions is ...:
        del bad["regions"]
    folder = place(good, bad)
    words = flags(folder, "--rows", "region", "--model", "missing")
    code, _, err = run(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert "in.jsonl:2: " in err
    assert message in err


@pytest.mark.parametrize("name", ["text", "entropy", "n_rows"])
def test_a_column_of_the_user_with_the_name_of_a_result_is_refused(run, place, name):
    folder = place({"continuation": " a", name: 1})
    code, _, err = run(*flags(folder, "--rows", "word"))
    assert (code, f'field "{name}" is one of the results' in err) == (2, True)


def test_an_endpoint_gives_no_rows(run, place):
    folder = place({"continuation": " a"})
    words = ("--api-base", "http://localhost:9", "--rows", "word", "--model", "x")
    code, _, err = run(*flags(folder, *words))
    assert (code, "rows: an endpoint does not give the bytes of its tokens" in err) == (2, True)


@pytest.mark.slow_after(10)
def test_an_interrupted_run_leaves_no_table(place):
    folder = place(*({"continuation": f" The cat sat {k}." * 20} for k in range(3000)))
    words = [str(word) for word in flags(folder, "--rows", "token")]
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxscore", *words], stderr=subprocess.PIPE, env=os.environ
    )
    part = folder / ".out.jsonl.part"
    try:
        for _ in range(600):
            if part.exists() and part.stat().st_size:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert {path.name for path in folder.iterdir()} == {"in.jsonl", ".jaxscore"}


PAGE = (ROOT / "jaxscore/systems/README.md").read_text(encoding="utf-8")


def blocks(heading, language):
    section = PAGE.partition(f"# {heading}\n")[2].partition("\n#")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def test_the_example_of_the_page(run, tmp_path, monkeypatch):
    [code] = blocks("A table of tokens, words or regions: `score --rows`", "sh")
    line, command = code.splitlines()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(shlex.split(line)[1], encoding="utf-8")
    assert run(*shlex.split(command)[3:]).code == 0
    rows = rows_of(tmp_path, "regions.csv")
    assert [(row["item"], row["text"]) for row in rows] == [
        ("1", " Sana"), ("1", " was born"), ("1", " in Merrow."),
    ]  # fmt: skip


def test_the_recipe_of_a_reading_time_study(run, tmp_path, monkeypatch):
    """The commands on the table as Excel writes it, then the lines of pandas and, if present, R."""
    pytest.importorskip("pandas")
    heading = "A reading-time study, from Excel to R"
    [table] = blocks(heading, "csv")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.csv").write_bytes(table.replace("\n", "\r\n").encode("utf-8-sig"))
    [commands] = blocks(heading, "sh")
    for command in commands.splitlines():
        code, _, err = run(*shlex.split(command)[3:])
        assert code == 0, err
    names = {}
    *setup, pivot, words, spillover = blocks(heading, "python")[0].rstrip().splitlines()
    exec("\n".join([*setup, f"means = {pivot}", words, spillover]), names)
    assert names["means"].columns.tolist() == ["full", "reduced"]
    assert len(names["means"]) == 4
    assert names["words"].previous.isna().sum() == 4
    assert names["words"].groupby(["item", "condition"]).size().tolist() == [9, 7, 9, 7]
    if shutil.which("Rscript"):
        [code] = blocks(heading, "r")
        out = subprocess.run(["Rscript", "-e", code], capture_output=True, text=True, check=True)
        assert "condition index surprisal" in out.stdout

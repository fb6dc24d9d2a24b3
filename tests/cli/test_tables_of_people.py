"""Tables as spreadsheets and pandas write them: delimiters, empty cells, nulls, endings."""

import csv
import json

import pytest

from tests.cli.conftest import QWEN

SCORE = ("score", "--model", QWEN, "--quiet", "--no-html", "--journal", "off", "--summary-only")
ROWS = [
    "1;a;Die Bäckerin öffnete früh;x",
    '2;b;"Er sagte: ""nein""; und ging";',
    "3;c;今天天气很好。;",
]
HEADER = "item;cond;sentence;note"


def cells_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.reader(file)]


@pytest.mark.parametrize("start", ["\ufeff", ""])
@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_another_delimiter_is_recognised_and_the_columns_stay(run, tmp_path, start, delimiter):
    text = "\r\n".join([start + HEADER, *ROWS, ""])
    if delimiter == "\t":
        text = text.replace('"', "").replace("; und", " und").replace(";", "\t")
    (tmp_path / "in.csv").write_text(text, encoding="utf-8", newline="")
    words = (*SCORE, "--input", tmp_path / "in.csv", "--output", tmp_path / "out.csv")
    code, _, err = run(*words, "--column", "continuation=sentence", "id=item")
    assert (code, err) == (0, "")
    header, *rows = cells_of(tmp_path / "out.csv")
    assert header[:6] == ["item", "cond", "sentence", "note", "id", "sum_logprob"]
    assert header[-1] == "error"
    assert [row[:2] for row in rows] == [["1", "a"], ["2", "b"], ["3", "c"]]
    assert rows[2][2:5] == ["今天天气很好。", "", "3"]
    assert all(float(row[5]) < 0 for row in rows)


def test_shards_of_tables_with_own_columns_are_merged(run, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, row in zip("ab", ROWS, strict=False):
        (folder / f"{name}.csv").write_text(f"{HEADER}\n{row}\n", encoding="utf-8")
    words = (*SCORE, "--column", "continuation=sentence", "--input", folder)
    assert run(*words, "--output", f"{tmp_path}/o/").code == 0
    assert run("merge", tmp_path / "o", "--output", tmp_path / "all.csv").code == 0
    header, *rows = cells_of(tmp_path / "all.csv")
    assert header == cells_of(tmp_path / "o/a.csv")[0]
    assert rows == [cells_of(tmp_path / f"o/{name}.csv")[1] for name in "ab"]
    assert [row[header.index("id")] for row in rows] == ["a.csv:2", "b.csv:2"]
    (folder / "b.csv").write_text(f"{HEADER};more\n{ROWS[0]};y\n", encoding="utf-8")
    assert run(*words, "--output", f"{tmp_path}/o/").code == 0
    code, _, err = run("merge", tmp_path / "o", "--output", tmp_path / "all.csv")
    assert (code, "b.csv: found columns item, cond, sentence, note, more" in err) == (2, True)


def test_a_field_that_is_not_text_replaces_the_users_column(run, tmp_path):
    (tmp_path / "in.csv").write_text(
        'context,options,gold,who\nQ:,"["" a"", "" b""]",1,me\nQ:,,1,you\n', encoding="utf-8"
    )
    words = ("choose", "--model", QWEN, "--quiet", "--no-html", "--input", tmp_path / "in.csv")
    assert run(*words, "--output", tmp_path / "out.csv").code == 1
    header, first, second = cells_of(tmp_path / "out.csv")
    assert (header[3], first[3], second[3]) == ("who", "me", "you")
    assert first[2] == "1"
    assert "options" in second[header.index("error")]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_null_is_missing_in_an_optional_field_and_an_error_of_its_item(run, tmp_path, form):
    rows = [
        {"id": None, "context": None, "continuation": "a b"},
        {"id": 7.0, "context": "x", "continuation": None},
        {"id": 8.0, "context": "x", "continuation": " b"},
    ]
    path = tmp_path / f"in.{form}"
    if form == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    code, out, err = run(*SCORE, "--input", path, "--output", tmp_path / "out.jsonl")
    assert (code, "done     3 requests, 1 failed" in out) == (1, True)
    assert 'field "continuation" is null, expected a string' in err
    got = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["id"] for row in got] == [1, 7, 8]
    assert ["error" in row for row in got] == [False, True, False]


@pytest.mark.parametrize("name", ["a.xlsx", "a.xls", "A.XLSX", "a.ods"])
def test_a_spreadsheet_is_refused_by_name(run, tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 \xff")
    for command in ("score", "choose", "perplexity"):
        words = (command, "--model", QWEN, "--input", tmp_path / name)
        code, out, err = run(*words, "--output", tmp_path / "out.csv")
        assert (code, out) == (2, "")
        assert f"{name}: found a spreadsheet, expected text; save it as CSV UTF-8" in err


@pytest.mark.parametrize(
    ("command", "name", "why"),
    [
        ("score", "out.xlsx", ".jsonl, .csv, .tsv, .parquet; a spreadsheet opens .csv"),
        ("score", "out.txt", "the output is JSONL or a table; give a name ending in .jsonl, .csv"),
        ("score", "out.xml.gz", "give a name ending in .jsonl"),
        ("paths", "out.xlsx", "the output is JSON; give a name ending in .json"),
        ("paths", "out.csv", "the output is JSON; give a name ending in .json"),
    ],
)
def test_other_endings_of_an_output_are_refused(run, tmp_path, command, name, why):
    (tmp_path / "in.jsonl").write_text('{"continuation": "a"}\n', encoding="utf-8")
    words = (command, "--model", QWEN, "--input", tmp_path / "in.jsonl")
    code, out, err = run(*words, "--output", tmp_path / name)
    assert (code, out) == (2, "")
    assert f"--output {tmp_path / name}: " in err
    assert why in err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["out", "qwen2-0.5B", "out.json", "out.gz"])
def test_names_without_the_ending_of_another_form_are_allowed(run, tmp_path, name):
    (tmp_path / "in.jsonl").write_text('{"continuation": "a"}\n', encoding="utf-8")
    words = (*SCORE, "--input", tmp_path / "in.jsonl", "--output", tmp_path / name)
    assert run(*words).code == 0

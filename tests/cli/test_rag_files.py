"""`judge` and `metrics` on files of records, as people have them."""

import json

import pytest

from tests.cli.test_judge import GPT2

COLUMNS = ("--column", "q_id=qid", "label=gold", "response=out")
ROWS = [
    {"qid": "a", "question": "Where was Ada born?", "gold": ["Oslo"], "out": "In Oslo.", "n": 1},
    {"qid": "b", "question": "埃菲尔铁塔在哪个城市", "gold": ["巴黎", "Paris"], "out": "巴黎"},
    {"qid": "c", "question": "Capital of Peru?", "gold": "Lima", "out": "Cusco"},
]
TABLE = (
    "\ufeffqid,question,gold,out,n\r\n"
    "a,Where was Ada born?,Oslo,In Oslo.,1\r\n"
    'b,埃菲尔铁塔在哪个城市,"[""巴黎"", ""Paris""]",巴黎,\r\n'
    "c,Capital of Peru?,Lima,Cusco,\r\n"
)


@pytest.fixture
def files(tmp_path):
    """The same records as JSONL, CSV and Parquet."""
    import pyarrow
    from pyarrow import parquet

    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in ROWS)
    (tmp_path / "in.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "in.csv").write_text(TABLE, encoding="utf-8", newline="")
    rows = [{**row, "gold": [row["gold"]] * (row["gold"] == "Lima") or row["gold"]} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
    return tmp_path


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_metrics_of_a_file_are_those_of_a_folder(run, files, form):
    rows = [{"q_id": r["qid"], "label": r["gold"], "response": r["out"]} for r in ROWS]
    (files / "eval_dev_out.json").write_text(json.dumps(rows), encoding="utf-8")
    assert run("metrics", "--folder", files).code == 0
    want = json.loads((files / "eval_dev_out.json").read_text(encoding="utf-8"))
    output = files / "out.jsonl"
    code, out, err = run("metrics", "--input", files / f"in.{form}", "--output", output, *COLUMNS)
    assert (code, err) == (0, "")
    assert "done     3 records, 0 failed" in out
    got = lines_of(output)
    assert [row["label"] for row in got] == [["Oslo"], ["巴黎", "Paris"], ["Lima"]]
    assert [row["q_id"] for row in got] == ["a", "b", "c"]
    for row, other in zip(got, want, strict=True):
        assert [row[name] for name in ("M", "EM", "F1")] == [other[n] for n in ("M", "EM", "F1")]
    assert got[0]["n"] in (1, "1")


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_what_judge_writes_of_a_file_is_reported_and_compared(run, files, form):
    words = ("judge", "--model", GPT2, "--quiet", *COLUMNS)
    assert run(*words, "--input", files / "in.jsonl", "--output", files / "lines.jsonl").code == 0
    output = files / f"out.{form}"
    code, out, err = run(*words, "--input", files / "in.csv", "--output", output)
    assert (code, err) == (0, "")
    headline = next(line for line in out.splitlines() if line.startswith("result"))
    report = files / f"out.{form}.report.json"
    before = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    code, out, _ = run("report", output)
    assert (code, headline in out) == (0, True)
    assert json.loads(report.read_text(encoding="utf-8"))["summary"] == before["summary"]
    if form != "csv":
        code, out, err = run("compare", files / "lines.jsonl", output)
        assert (code, err) == (0, "")
        assert "done     3 pairs, 0 failed" in out


def test_files_of_records_are_merged(run, files):
    for form in ("jsonl", "csv"):
        (files / form).mkdir()
        for name in "xy":
            (files / form / f"{name}.{form}").write_bytes((files / f"in.{form}").read_bytes())
        for command in (("judge", "--model", GPT2, "--quiet"), ("metrics",)):
            folder = f"{files}/{form}-{command[0]}/"
            done = run(*command, "--input", files / form, "--output", folder, *COLUMNS)
            assert done.code == 0, done.err
            merged = files / f"{command[0]}.{form}"
            code, out, err = run("merge", folder, "--output", merged)
            assert (code, "failed" in err) == (0, False)
            assert "done     6 records of 2 files, 0 failed" in out
    assert [row["index"] for row in lines_of(files / "metrics.jsonl")][2:4] == [
        "x.jsonl:2",
        "y.jsonl:0",
    ]


def test_a_missing_field_names_column_and_a_bad_record_fails_alone(run, files):
    words = ("metrics", "--output", files / "out.jsonl", "--input", files / "in.jsonl")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "--column response=out" in err or "--column label=gold" in err
    (files / "in.jsonl").write_text(
        '{"response": "x", "label": "y", "question": "q"}\n'
        '{"id": "z", "response": null, "label": "y"}\n{"response": "x", "label": ""}\n',
        encoding="utf-8",
    )
    code, out, err = run(*words)
    assert code == 1
    assert f"failed: {files}/in.jsonl:2 (q_id 'z'): field \"response\" is null" in err
    assert 'in.jsonl:3 (q_id 3): field "label" is empty' in err
    assert "done     3 records, 2 failed" in out
    assert [row["index"] for row in lines_of(files / "out.jsonl")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--input", "in.jsonl"), "in.jsonl: found a file of records, whose results need --output"),
        (("--folder", "in.csv"), "in.csv: found a file of records, whose results need --output"),
        (("--output", "out.jsonl"), "give a file of records with --input"),
        (("--folder", ".", "--input", "in.csv"), "--folder and --input: give one of them"),
        (("--folder", ".", "--column", "label=gold"), "--column label=gold: only with --input"),
    ],
)
@pytest.mark.parametrize("command", [("judge", "--model", GPT2), ("metrics",)])
def test_a_folder_or_a_file(run, files, monkeypatch, command, words, why):
    monkeypatch.chdir(files)
    code, out, err = run(*command, *words)
    assert (code, out) == (2, "")
    assert why in err

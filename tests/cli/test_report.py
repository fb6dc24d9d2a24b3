"""`report`: the report of a finished output is made again from its records."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from jaxscore.cli.outputs import report_paths
from jaxscore.io.manifest import manifest_path
from tests.cli.conftest import QWEN, strict

ITEMS = [
    {"id": f"q{k}", "context": f"Q{k}: ", "options": ["yes", " no"], "gold": k % 2}
    for k in range(4)
] + [{"id": "bad", "context": "x", "options": []}]


@pytest.fixture
def finished(run, place):
    """`finished(name, words...)`: the path of a finished output of `choose`."""

    def write(name, *more):
        folder = place(*ITEMS)
        output = folder / name
        words = ("--input", folder / "in.jsonl", "--output", output, "--quiet", *more)
        assert run("choose", "--model", QWEN, *words).code == 1
        return output

    return write


@pytest.mark.parametrize(
    "name", ["out.jsonl", "out.csv", "out.parquet", "out.jsonl.gz", "out.json", "out.json.gz"]
)
def test_the_report_is_the_same_again(run, finished, name):
    output = finished(name, "--audit-noise", 2)
    markdown, json_file = report_paths(output)
    reports = [markdown, json_file, markdown.with_suffix(".html")]
    before, data = [path.read_text("utf-8") for path in reports], output.read_bytes()
    for path in reports:
        path.unlink()
    ran = run("report", output)
    assert ran.code == 1
    assert "done     5 items, 1 failed" in ran.out
    assert ran.err.count("failed: bad: ") == 1
    assert [path.read_text("utf-8") for path in reports[:2]] == before[:2]
    assert reports[2].exists()
    assert output.read_bytes() == data
    assert run("report", output).out == ran.out


def test_the_report_of_a_merged_output_is_the_same_again(run, place):
    folder = place(*ITEMS)
    (folder / "in").mkdir()
    for name in ("a", "b"):
        (folder / "in" / f"{name}.jsonl").write_bytes((folder / "in.jsonl").read_bytes())
    words = ("--input", folder / "in", "--output", f"{folder}/out/", "--audit-noise", 2)
    assert run("choose", "--model", QWEN, *words).code == 1
    merged = folder / "merged.jsonl"
    assert run("merge", folder / "out", "--output", merged).code == 1
    reports = report_paths(merged)
    before = [path.read_text("utf-8") for path in reports]
    assert "noise audited in" not in before[0]
    assert run("report", merged).code == 1
    assert [path.read_text("utf-8") for path in reports] == before


def test_a_shard_can_be_merged_after_its_report(run, place, monkeypatch):
    folder = place(*ITEMS)
    (folder / "in/below").mkdir(parents=True)
    (folder / "in.jsonl").rename(folder / "in/below/a.jsonl")
    words = ("--input", folder / "in", "--output", f"{folder}/out/")
    assert run("choose", "--model", QWEN, *words).code == 1
    monkeypatch.chdir(folder / "out/below")
    assert run("report", "a.jsonl").code == 1
    ran = run("merge", folder / "out", "--output", folder / "merged.jsonl")
    assert (ran.code, "done     5 items of 1 file, 1 failed" in ran.out) == (1, True)


def test_a_column_extra_of_the_users_table_stays(run, tmp_path):
    (tmp_path / "in").mkdir()
    table = {"context": ["A", "B"], "continuation": [" b", " c"], "extra": ["not JSON", None]}
    parquet.write_table(pyarrow.table(table), tmp_path / "in/a.parquet")
    words = ("--input", tmp_path / "in", "--output", f"{tmp_path}/out/")
    assert run("score", "--model", QWEN, *words).code == 0
    assert run("report", tmp_path / "out/a.parquet").code == 0
    merged = tmp_path / "merged.parquet"
    assert run("merge", tmp_path / "out", "--output", merged).code == 0
    assert parquet.read_table(merged)["extra"].to_pylist() == table["extra"]


@pytest.mark.parametrize("ids", [["u", "v"], [5, None]])
def test_a_table_has_the_fields_as_the_columns_of_other_names_give_them(run, tmp_path, ids):
    table = {
        "context": ["A", "B"],
        "options": [["yes", " no"]] * 2,
        "gold": [0, 0],  # another one, which --column leaves out
        "label": [1, 1],
        "key": ids,
    }
    parquet.write_table(pyarrow.table(table), tmp_path / "in.parquet")
    output = tmp_path / "out.parquet"
    words = ("--input", tmp_path / "in.parquet", "--column", "gold=label", "id=key")
    assert run("choose", "--model", QWEN, *words, "--output", output).code == 0
    written = parquet.read_table(output)
    assert written["gold"].to_pylist()[0] == 1
    assert written["label"].to_pylist() == [1, 1]
    assert written["id"].to_pylist() == (ids if "u" in ids else [5, 2])
    reports = report_paths(output)
    before = [path.read_text("utf-8") for path in reports]
    run("report", output)
    assert [path.read_text("utf-8") for path in reports] == before


def test_a_changed_output_is_refused(run, finished):
    output = finished("out.jsonl")
    output.write_text(output.read_text().replace("0", "1"))
    ran = run("report", output)
    assert (ran.code, f"{output}: not as its manifest describes it" in ran.err) == (2, True)


def test_a_file_without_a_manifest_is_refused(run, finished):
    output = finished("out.jsonl")
    manifest_path(output).unlink()
    ran = run("report", output)
    assert ran.code == 2
    expected = "found no out.jsonl.run.json next to it, expected the output of a finished run"
    assert expected in ran.err
    assert run("report", output.with_name("none.jsonl")).code == 2


def test_records_that_choose_did_not_write_are_named(run, finished):
    output = finished("out.jsonl")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    del lines[1]["probability"]
    output.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    manifest = json.loads(manifest_path(output).read_text())
    del manifest["outputs"]
    manifest_path(output).write_text(json.dumps(manifest))
    ran = run("report", output)
    assert (ran.code, f"{output}: record 2 is not as choose writes it (KeyError" in ran.err) == (
        2,
        True,
    )


def test_the_manifest_describes_the_new_report(run, finished):
    output = finished("out.jsonl")
    report = output.with_name("out.jsonl.report.json")
    first = strict(manifest_path(output).read_text())
    assert run("report", output, "--no-html").code == 1
    second = strict(manifest_path(output).read_text())
    assert first["outputs"]["out.jsonl"]["sha256"] == second["outputs"]["out.jsonl"]["sha256"]
    assert second["outputs"][report.name]["size"] == report.stat().st_size


def test_a_page_that_lacks_the_tokens_of_the_run_says_so(run, tmp_path):
    item = {"id": "q", "question": "Where?", "paths": [["Ada", "lives in", "Telford"]]}
    (tmp_path / "in.jsonl").write_text(json.dumps(item))
    output = tmp_path / "out.json"
    words = ("--input", tmp_path / "in.jsonl", "--output", output)
    assert "the page lacks" not in run("paths", "--model", QWEN, *words).err
    assert "the page lacks tokens and contexts" in run("report", output).err
    assert "the page lacks" not in run("report", output, "--no-html").err

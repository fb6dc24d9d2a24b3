"""`report`: the report of a finished output is made again from its records."""

import json

import pytest

from jaxscore.io.run_files import manifest_path
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


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet", "out.jsonl.gz"])
def test_the_report_is_the_same_again(run, finished, name):
    output = finished(name, "--audit-noise", 2)
    reports = [output.with_name(f"{output.name}.report{end}") for end in (".md", ".json", ".html")]
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
    assert "found no out.jsonl.run.json beside it, expected the output of a finished run" in ran.err
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

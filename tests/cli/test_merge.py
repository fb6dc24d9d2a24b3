"""`merge`: shards become the file and the report of one run."""

import gzip
import json

import pyarrow.parquet
import pytest

from tests.cli.conftest import QWEN

SCORED = [
    {"id": f"{k}", "context": f"The cat {k}", "continuation": " sat" * (k + 1)} for k in range(6)
]
CHOICES = [
    {"id": f"{k}", "context": f"Q{k}:", "options": [" yes", " no"], "gold": k % 2} for k in range(5)
]
TEXTS = [{"id": f"{k}", "text": f"Some words {k}. " * (k + 1)} for k in range(5)]
PATHS = [
    {"id": f"{k}", "question": f"Where is {k}?", "paths": [["a", "in", f"{k}"]]} for k in range(5)
]
OUTPUTS = [{"id": f"{k}", "input": f"Say {k}.", "output": ["One.", f"Two {k}."]} for k in range(5)]
SYSTEMS = {
    "score": SCORED,
    "divergence": SCORED,
    "self-certainty": OUTPUTS,
    "choose": CHOICES,
    "perplexity": TEXTS,
    "paths": PATHS,
}
# Facts of one run alone, and of the machine.
OF_THE_RUN = {"findings", "remarks", "settings", "answer_blank", "boundary_audit",
              "worst_tokens", "worst_texts"}  # fmt: skip


def lines(items):
    return "".join(json.dumps(item) + "\n" for item in items)


@pytest.fixture
def shards(tmp_path):
    """`shards(items)`: a folder with two shards, and one file of all items."""

    def write(items):
        folder = tmp_path / "in"
        folder.mkdir()
        (folder / "a.jsonl").write_text(lines(items[:2]))
        (folder / "b.jsonl").write_text(lines(items[2:]))
        (tmp_path / "all.jsonl").write_text(lines(items))
        return tmp_path

    return write


def command(name, source, output, *more):
    return (name, "--model", QWEN, "--quiet", "--reproducible", "--input", source,
            "--output", output, *more)  # fmt: skip


@pytest.mark.parametrize("name", SYSTEMS)
def test_merged_file_and_report_equal_those_of_one_run(run, shards, name):
    place = shards(SYSTEMS[name])
    ending = "json" if name in ("paths", "self-certainty") else "jsonl"
    more = ("--reference", QWEN, "--reference-dtype", "bfloat16") if name == "divergence" else ()
    assert run(*command(name, place / "all.jsonl", place / f"one.{ending}", *more)).code == 0
    assert run(*command(name, place / "in", f"{place}/out/", *more)).code == 0
    ran = run("merge", place / "out", "--output", place / f"merged.{ending}")
    assert ran.code == 0
    assert "failed" not in ran.err
    one, merged = place / f"one.{ending}", place / f"merged.{ending}"
    assert merged.read_bytes() == one.read_bytes()
    assert merged.with_name(f"{merged.name}.run.json").is_file()
    if name == "score":
        assert "mean log-probability" in ran.out
        page = (place / "merged.jsonl.report.html").read_text()
        assert "Requests" in page
        return
    if name == "self-certainty":
        assert "mean self-certainty" in ran.out
        return
    reports = [
        place / (f"{x}_report.json" if ending == "json" else f"{x}.jsonl.report.json")
        for x in ("one", "merged")
    ]
    facts, found = (json.loads(report.read_text()) for report in reports)
    counts = {"changed": facts["boundary_audit"]["changed"]} if "boundary_audit" in facts else {}
    assert counts.items() <= found.get("boundary_audit", {}).items()
    for field in facts.keys() - OF_THE_RUN:
        assert found[field] == facts[field], field


def test_merged_run_can_be_compared(run, shards):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/")).code == 0
    assert run("merge", place / "out", "--output", place / "m.jsonl").code == 0
    ran = run("compare", place / "m.jsonl", place / "m.jsonl", "--output", place / "c.json")
    assert ran.code == 0


def test_missing_shard_is_named_and_the_rest_is_merged(run, shards):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--shard", "1/2")).code == 0
    ran = run("merge", place / "out", "--output", place / "merged.jsonl.gz")
    assert ran.code == 1
    assert "failed: a.jsonl: is not finished" in ran.err
    text = gzip.decompress((place / "merged.jsonl.gz").read_bytes()).decode()
    assert [json.loads(line)["id"] for line in text.splitlines()] == ["2", "3", "4", "5"]
    manifest = json.loads((place / "merged.jsonl.gz.run.json").read_text())
    assert manifest["missing"] == ["a.jsonl"]
    assert list(manifest["shards"]) == ["b.jsonl"]


def test_tables_are_merged(run, shards):
    place = shards(SCORED)
    (place / "in/a.csv").write_text("id,continuation\nx,one two\n")
    (place / "in/b.csv").write_text('id,continuation\ny,"three\nfour"\n')
    pattern = place / "in/*.csv"
    assert run(*command("score", pattern, f"{place}/out/")).code == 0
    assert run("merge", place / "out", "--output", place / "m.csv").code == 0
    (place / "both.csv").write_text('id,continuation\nx,one two\ny,"three\nfour"\n')
    assert run(*command("score", place / "both.csv", place / "one.csv")).code == 0
    assert (place / "m.csv").read_bytes() == (place / "one.csv").read_bytes()


def test_parquet_is_merged(run, shards):
    place = shards(SCORED)
    tables = place / "tables"
    tables.mkdir()
    for name, items in (("a", SCORED[:2]), ("b", SCORED[2:])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(items), tables / f"{name}.parquet")
    assert run(*command("score", tables, f"{place}/out/")).code == 0
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SCORED), place / "all.parquet")
    assert run(*command("score", place / "all.parquet", place / "one.parquet")).code == 0
    ran = run("merge", place / "out", "--output", place / "m.parquet")
    assert (ran.code, ran.err) == (0, "")
    one, merged = (pyarrow.parquet.read_table(place / f"{x}.parquet") for x in ("one", "m"))
    assert merged.to_pylist() == one.to_pylist()
    assert "mean log-probability" in ran.out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest["flags"].update(dtype="bfloat16"), "another dtype (bfloat16)"),
        (lambda manifest: manifest["model"].update(model="0"), "another model's weights (0)"),
    ],
)
def test_shards_of_two_runs_are_refused(run, shards, change, message):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    path = place / "out/b.jsonl.run.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    ran = run("merge", place / "out", "--output", place / "m.jsonl")
    assert ran.code == 2
    assert message in ran.err
    assert not (place / "m.jsonl").exists()


def test_folder_of_no_shards_and_another_form_are_refused(run, shards):
    place = shards(SCORED)
    ran = run("merge", place / "in", "--output", place / "m.jsonl")
    assert (ran.code, "found no _shards.json" in ran.err) == (2, True)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    ran = run("merge", place / "out", "--output", place / "m.csv")
    assert (ran.code, "found .jsonl, and --output is .csv" in ran.err) == (2, True)
    assert not (place / "m.csv").exists()

"""`merge`: shards become the file and the report of one run."""

import contextlib
import datetime
import gzip
import json
import re
import weakref

import pyarrow.csv
import pyarrow.parquet
import pytest

from jaxscore.cli import merge as merging
from jaxscore.cli.outputs import report_paths
from jaxscore.io import run_files
from jaxscore.io.json_output import StoredRecords
from jaxscore.io.manifest import read_manifest
from jaxscore.io.records import csv_line
from jaxscore.report import document
from jaxscore.shell.rounding_audit import OF_REQUESTS, Noise, OtherLayouts, Spread
from tests.cli.conftest import QWEN
from tests.io.test_remote import content, store  # noqa: F401

# The boundary "separate" changes requests of the second shard alone.
SCORED = [
    {"id": f"{k}", "context": f"The cat {k}", "continuation": " sat" * (k + 1)} for k in range(5)
] + [{"id": "5", "context": "The cat ", "continuation": "sat"}]
CHOICES = [
    {"id": f"{k}", "context": f"Q{k}:", "options": [" yes", " no"], "gold": k % 2 or None}
    if k < 2
    else {"id": f"{k}", "context": f"Q{k}: ", "options": ["left", " yes"], "gold": k % 2}
    for k in range(5)
]  # fmt: skip
TEXTS = [{"id": f"{k}", "text": f"Some words {k}. " * (k + 1)} for k in range(5)]
PATHS = [
    {"id": f"{k}", "question": f"Where is {k}?", "paths": [["a", "in", f"{k}"]]} for k in range(5)
]
OUTPUTS = [{"id": f"{k}", "input": f"Say {k}.", "output": ["One.", f"Two {k}."]} for k in range(5)]
PROMPTS = [{"id": f"{k}", "prompt": f"The cat {k}"} for k in range(5)]
SYSTEMS = {
    "sample": PROMPTS,
    "score": SCORED,
    "divergence": SCORED,
    "self-certainty": OUTPUTS,
    "choose": CHOICES,
    "perplexity": TEXTS,
    "paths": PATHS,
}
MORE = {
    "divergence": ("--reference", QWEN, "--reference-dtype", "bfloat16"),
    "sample": ("-n", 2, "--max-new-tokens", 3),
}
# Settings of one run alone, and facts of its device.
LACKS = {"date", "device", "revision", "limit", "input", "input_sha256"}
RESULTS = ("finding", "result", "boundary")  # of the closing block, what all items say


def read_report(path):
    """A report without its settings; averages of shards' averages differ in their last bits."""
    facts = json.loads(path.read_text(), parse_float=lambda text: f"{float(text):.9g}")
    del facts["settings"]
    return facts


def results(text):
    title, out = "", []
    for line in text.splitlines():
        title = line[:9].strip() or title
        out += [line] if title in RESULTS else []
    return out


def assert_same_reports(one, merged):
    """See that Markdown and JSON of two outputs are equal but for settings, and what merge says."""
    found = [report_paths(output) for output in (one, merged)]
    pages = [page.read_text().partition("## Settings and versions")[0] for page, _ in found]
    no_remarks = [re.sub(r"## Remarks\n\n(- .*\n)+\n", "", page) for page in pages]
    assert no_remarks[1] == no_remarks[0]
    facts = [read_report(data) for _, data in found]
    own = [remark for remark in facts[1]["remarks"] if remark.startswith("audits: each of 2 files")]
    assert len(own) == ("boundary_audit" in facts[0])
    facts[1]["remarks"] = [remark for remark in facts[1]["remarks"] if remark not in own]
    assert facts[1] == facts[0]
    settings, made = (json.loads(data.read_text())["settings"] for _, data in found)
    lacks = {name for name, value in settings.items() if made.get(name) != value}
    assert lacks <= LACKS


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


def most_records_in_memory(run, monkeypatch, place, ending):
    """The number of stored records that a merge has in memory at a time, on a page with one."""
    alive, most = weakref.WeakSet(), 0

    class Record(dict):
        __hash__ = object.__hash__

    def element(self, place):
        nonlocal most
        record = Record(read(self, place))
        alive.add(record)
        most = max(most, len(alive))
        return record

    read = StoredRecords.element
    with monkeypatch.context() as patch:
        patch.setattr(StoredRecords, "element", element)
        patch.setattr(document, "MOST", 1)
        patch.setattr(document, "EMBEDDED", 1)
        assert run("merge", place / "out", "--output", place / f"again.{ending}").code == 0
    return most


@pytest.mark.parametrize("name", SYSTEMS)
def test_merged_file_and_report_equal_those_of_one_run(run, shards, monkeypatch, name):
    place = shards(SYSTEMS[name])
    ending = "json" if name in ("paths", "sample", "self-certainty") else "jsonl"
    more = MORE.get(name, ())
    one, merged = place / f"one.{ending}", place / f"merged.{ending}"
    alone = run(*command(name, place / "all.jsonl", one, *more))
    assert run(*command(name, place / "in", f"{place}/out/", *more)).code == 0
    page = () if name == "score" else ("--no-html",)
    ran = run("merge", place / "out", "--output", merged, *page)
    assert (alone.code, ran.code) == (0, 0)
    assert "failed" not in ran.err
    assert merged.read_bytes() == one.read_bytes()
    assert merged.with_name(f"{merged.name}.run.json").is_file()
    assert results(ran.out) == results(alone.out)
    if name == "score":
        assert "joint: of 6 requests separate would change 1" in ran.out
        page = (place / "merged.jsonl.report.html").read_text()
        assert "Requests" in page
        assert "page: without the contexts, which the outputs do not have" in page
        return
    if name == "sample":
        assert "result   5 of 5 prompts have 2 samples each; of 10 samples" in ran.out
        assert not list(place.glob("merged*report*"))
        return
    assert most_records_in_memory(run, monkeypatch, place, ending) <= 4  # of 5
    if name == "self-certainty":
        assert "mean self-certainty" in ran.out
        return
    if name == "paths":
        [line] = [line for line in alone.out.splitlines() if line.startswith("Average baseline")]
        assert line in ran.out.splitlines()
    assert_same_reports(one, merged)
    audit = read_report(report_paths(merged)[1]).get("boundary_audit", {})
    assert ("effect" in audit) == (name in ("choose", "divergence"))


def write_items(path, items):
    if path.suffix == ".parquet":
        dated = [{**item, "when": datetime.date(2026, 1, 1)} for item in items]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(dated), path)
    elif path.suffix == ".tsv":
        rows = [
            {k: json.dumps(v) if isinstance(v, list) else v for k, v in item.items()}
            for item in items
        ]
        path.write_text(table(rows))
    else:
        path.write_text(lines(items))


@pytest.mark.parametrize(
    ("name", "ending"),
    [("choose", "jsonl"), ("choose", "tsv"), ("choose", "parquet"), ("paths", "jsonl"),
     ("self-certainty", "jsonl"), ("score", "jsonl")],
)  # fmt: skip
def test_noise_floor_of_all_shards_marks_all_records(run, tmp_path, monkeypatch, name, ending):
    (tmp_path / "in").mkdir()
    items = SYSTEMS[name]
    for place, part in (("in/a", items[:2]), ("in/b", items[2:]), ("all", items)):
        write_items(tmp_path / f"{place}.{ending}", part)

    def score(source, output, *spreads):
        left = iter(spreads)

        def found(_, pairs, **options):
            spread = Spread(next(left), 0.0)
            names = ("token_logprob", *OF_REQUESTS)
            return Noise(len(pairs), ("alone", "others"), dict.fromkeys(names, spread), 7, 0)

        monkeypatch.setattr(OtherLayouts, "scores", found)
        ran = run(*command(name, source, output, "--audit-noise", 100, "--no-html"))
        assert ran.code == 0, ran.err
        return ran.out

    out = "json" if name in ("paths", "self-certainty") else ending
    one, merged = tmp_path / f"one.{out}", tmp_path / f"merged.{out}"
    alone = score(tmp_path / f"all.{ending}", one, 100.0)
    score(tmp_path / "in", f"{tmp_path}/out/", 1e-9, 100.0)
    ran = run("merge", tmp_path / "out", "--output", merged, "--no-html")
    assert ran.code == 0
    if ending == "parquet":
        before, now = (pyarrow.parquet.read_table(path) for path in (one, merged))
        assert now.to_pylist() == before.to_pylist()
        assert now.schema == before.schema
    else:
        assert merged.read_bytes() == one.read_bytes()
    noise = [read_manifest(path)["noise"] for path in (one, merged)]
    assert noise[1].pop("n_tokens") == 2 * noise[0].pop("n_tokens")
    assert noise[1] == noise[0]
    assert results(ran.out) == [line.replace("of 7", "of 14") for line in results(alone)]
    if name in ("choose", "paths"):
        [*_, within] = noise[1]["decisions"]
        assert 0 < within["n_within"] == within["n"]


@pytest.mark.parametrize(
    "words",
    [
        ("vote", "--best-N", 2, "--gold", "gold"),
        ("select", "--best-N", 2),
        ("usc-select", "--dataset-type", "close", "--gold", "gold"),
        ("usc-select", "--dataset-type", "close"),
        ("livecode-select", "--best-N", 2),
        ("livecode-parse",),
    ],
    ids=lambda words: f"{words[0]}-{words[-1]}",
)
def test_merge_of_choices_is_the_run_over_all_items(run, tmp_path, words):
    texts = [json.dumps({"answer": str(k)}) for k in range(2)]
    items = [
        {"id": f"{k}", "question_id": f"{k}", "output": texts, "responses": texts, "gold": "1",
         "confidence_list": [1.0, 2.0]}
        for k in range(4)
    ]  # fmt: skip
    for name, part in (("a", items[:1]), ("b", items[1:]), ("all", items)):
        (tmp_path / f"{name}.json").write_text(json.dumps(part))

    def choose(*names, output):
        inputs = [tmp_path / f"{name}.json" for name in names]
        return run(*words, "--quiet", "--input", *inputs, "--output", output).code

    assert choose("all", output=tmp_path / "one.json") == 0
    assert choose("a", "b", output=f"{tmp_path}/out/") == 0
    merge = ("merge", tmp_path / "out", "--output", tmp_path / "m.json")
    assert run(*merge).code == 0
    assert (tmp_path / "m.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    if "--gold" in words:
        one, merged = (
            json.loads((tmp_path / f"{name}_report.json").read_text()) for name in ("one", "m")
        )
        del one["settings"], merged["settings"]
        assert merged == one
    else:
        assert not list(tmp_path.glob("m_report*"))
        assert run(*merge, "--html", tmp_path / "page.html").code == 2


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
    (place / "out/b.jsonl.run.json").unlink()
    ran = run("merge", place / "out", "--output", place / "merged.jsonl.gz")
    assert (ran.code, "found 0 empty and 2 unfinished shards" in ran.err) == (2, True)


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


@pytest.mark.parametrize("name", ["choose", "perplexity"])
def test_tables_in_text_have_the_report_of_one_run(run, shards, name):
    place = shards([])
    rows = [
        {
            field: json.dumps(value) if isinstance(value, list) else value
            for field, value in item.items()
        }
        for item in SYSTEMS[name]
    ]
    (place / "all.tsv").write_text(table(rows))
    (place / "in/a.tsv").write_text(table(rows[:2]))
    (place / "in/b.tsv").write_text(table(rows[2:]))
    assert run(*command(name, place / "all.tsv", place / "one.tsv")).code == 0
    assert run(*command(name, f"{place}/in/*.tsv", f"{place}/out/")).code == 0
    assert run("merge", place / "out", "--output", place / "m.tsv").code == 0
    one, merged = (read_report(place / f"{x}.tsv.report.json") for x in ("one", "m"))
    for field in one.keys() - {"items", "documents", "remarks"}:
        assert merged[field] == one[field], field


def table(rows):
    lines = [list(rows[0]), *(["" if x is None else str(x) for x in row.values()] for row in rows)]
    return "".join(csv_line(line, "\t") for line in lines)


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
    assert (ran.code, "failed" in ran.err) == (0, False)
    one, merged = (pyarrow.parquet.read_table(place / f"{x}.parquet") for x in ("one", "m"))
    assert merged.to_pylist() == one.to_pylist()
    assert merged.schema.metadata == one.schema.metadata
    assert "mean log-probability" in ran.out
    for name, made in (("b", None), ("a", "0")):  # as by an earlier version, and as by other flags
        path = place / f"out/{name}.parquet"
        manifest = read_manifest(path)
        manifest_path = run_files.manifest_path(path)
        manifest_path.write_text(json.dumps({**manifest, run_files.MADE: made}))
        assert run("merge", place / "out", "--output", place / "m.parquet").code == 0
        assert b"jaxscore" not in (pyarrow.parquet.read_schema(place / "m.parquet").metadata or {})
        assert run_files.MADE not in read_manifest(place / "m.parquet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest["flags"].update(dtype="bfloat16"), "another dtype (bfloat16)"),
        (lambda manifest: manifest["model"].update(model="0"), "another model's weights (0)"),
        (lambda manifest: manifest["model"].update(dtype="float64"), "another dtype (float64)"),
        (lambda manifest: manifest["model"].update(jax="0.1"), "another version of jax (0.1)"),
        (lambda manifest: manifest["model"].update(numbers=0), "numerics (numbers) (0) than"),
        (lambda manifest: manifest["model"].update(new=1), "another new (1) than"),
        (lambda manifest: manifest.update(record_version=9), "another record_version (9)"),
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
    assert f"{place}/out/b.jsonl: made with" in ran.err
    assert message in ran.err
    assert not (place / "m.jsonl").exists()


def test_shards_of_two_example_files_are_refused(run, shards):
    place = shards(PATHS)
    examples = place / "examples.jsonl"
    words = command("paths", place / "in", f"{place}/out/", "--fewshot", examples, "--no-html")
    merge = ("merge", place / "out", "--output", place / "m.json", "--no-html")
    for number, town in enumerate(("Oslo", "Rome")):
        examples.write_text(lines([{"question": town, "paths": [[town, "in", "x"]]}]))
        assert run(*words, "--shard", f"{number}/2").code == 0
    ran = run(*merge)
    assert (ran.code, "made with another content of --fewshot" in ran.err) == (2, True)
    assert not (place / "m.json").exists()
    assert run(*words, "--shard", "0/2", "--force").code == 0
    assert run(*merge).code == 0
    found = read_manifest(place / "m.json")["fewshot_sha256"]
    assert found == run_files.file_digest(examples)


@pytest.mark.parametrize(
    ("change", "remark", "has_effect"),
    [
        (lambda details: details.clear(), "boundaries audited in 1 of 2 files", True),
        (
            lambda details: details["boundary_audit"].pop("effect"),
            "the effect of boundaries is left out, 1 of 2 files do not state it",
            False,
        ),
    ],
)
def test_missing_audit_of_a_shard_is_reported(run, shards, change, remark, has_effect):
    place = shards(SCORED)
    words = ("--reference", QWEN, "--reference-dtype", "bfloat16", "--audit-noise", 2)
    assert run(*command("divergence", place / "in", f"{place}/out/", *words)).code == 0
    path = place / "out/a.jsonl.run.json"
    manifest = json.loads(path.read_text())
    change(manifest["details"])
    del manifest["noise"]
    path.write_text(json.dumps(manifest))
    assert run("merge", place / "out", "--output", place / "m.jsonl", "--no-html").code == 0
    found = read_report(place / "m.jsonl.report.json")
    remarks = "\n".join(found["remarks"])
    assert remark in remarks
    assert "audits: noise audited in 1 of 2 files" in remarks
    assert ("effect" in found["boundary_audit"]) == has_effect


@pytest.mark.parametrize("killed", ["a", "b", "ab"])
def test_shards_killed_before_their_manifest_are_merged(run, shards, killed):
    place = shards(OUTPUTS)
    words = command("self-certainty", place / "in", f"{place}/out/", "--audit-noise", 2)
    assert run(*words).code == 0
    manifests = {name: place / f"out/{name}.jsonl.json.run.json" for name in "ab"}
    made = json.loads(manifests["a"].read_text())
    for name in killed:
        manifests[name].unlink()
    assert run(*words).code == 0
    ran = run("merge", place / "out", "--output", place / "m.json")
    assert ran.code == 0, ran.err
    assert ("noise floor: " in ran.out) == (killed != "ab")
    assert "no request was scored" not in ran.out
    found = read_manifest(place / "m.json")
    known = {"model", "machine"} if killed != "ab" else set()
    assert {name: found.get(name) for name in known} == {name: made[name] for name in known}
    assert ("noise" in found) == (killed != "ab")


def test_shards_of_other_devices_are_merged(run, shards):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    path = place / "out/b.jsonl.run.json"
    manifest = json.loads(path.read_text())
    manifest["model"] |= {"platform": "gpu", "device_kind": "H100", "shards": 2}
    path.write_text(json.dumps(manifest))
    assert run("merge", place / "out", "--output", place / "m.jsonl").code == 0


def test_merge_that_is_killed_leaves_no_earlier_manifest(run, shards, monkeypatch):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    merge = ("merge", place / "out", "--output", place / "m.jsonl", "--no-html")
    assert run(*merge).code == 0
    assert (place / "m.jsonl.run.json").is_file()

    def kill(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(merging, "_write_manifest", kill)
    with contextlib.suppress(KeyboardInterrupt):
        run(*merge)
    assert not (place / "m.jsonl.run.json").exists()


def test_output_that_is_a_shard_is_refused(run, shards):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    folder = place / "out"
    (folder / "a.jsonl").unlink()  # one that is not finished is none of another run's either
    before = {path: path.read_bytes() for path in folder.glob("[ab_]*")}
    for flags in (
        ["--output", folder / "a.jsonl"],
        ["--output", f"{place}/in/../out/b.jsonl"],
        ["--output", next(folder.glob("_shards-*.json"))],
        ["--output", place / "m.jsonl", "--html", folder / "b.jsonl.run.json"],
    ):
        ran = run("merge", folder, *flags)
        assert (ran.code, f"{flags[-1]} is an input of this run" in ran.err) == (2, True)
    assert {path: path.read_bytes() for path in folder.glob("[ab_]*")} == before


def test_output_without_a_confidence_is_merged_as_failed(run, shards):
    items = [*OUTPUTS[:2], {"id": "x", "input": "Say x.", "output": ["One.", " long" * 3000]}]
    place = shards(items)
    assert run(*command("self-certainty", place / "all.jsonl", place / "one.json")).code == 1
    assert run(*command("self-certainty", place / "in", f"{place}/out/")).code == 1
    ran = run("merge", place / "out", "--output", place / "m.json")
    assert ran.code == 1
    assert "output 2: " in ran.err
    assert "positions" in ran.err
    assert (place / "m.json").read_bytes() == (place / "one.json").read_bytes()
    assert json.loads((place / "m.json.run.json").read_text())["failed"] == 1


def test_graded_outputs_are_merged(run, shards):
    gold: list[object] = ["2", "no", "3", {}]
    items = [
        {"id": f"{k}", "input": f"Say {k}.", "output": [f"Answer: {k}", "Answer: 2"], "gold": right}
        for k, right in enumerate(gold)
    ]
    place = shards(items)
    flags = ("--gold", "gold", "--answer-rule", "answer")
    assert (
        run(*command("self-certainty", place / "all.jsonl", place / "one.json", *flags)).code == 1
    )
    assert run(*command("self-certainty", place / "in", f"{place}/out/", *flags)).code == 1
    assert run("merge", place / "out", "--output", place / "m.json").code == 1
    assert (place / "m.json").read_bytes() == (place / "one.json").read_bytes()
    assert b'"right": [' in (place / "m.json").read_bytes()


def write_tables(folder, rows, ending):
    """Two tables, of the first row and of the others."""
    folder.mkdir()
    for name, part in (("a", rows[:1]), ("b", rows[1:])):
        table = pyarrow.Table.from_pylist(part)
        if ending == "parquet":
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
        else:
            delimiter = {"csv": ",", "tsv": "\t"}[ending]
            options = pyarrow.csv.WriteOptions(delimiter=delimiter)
            pyarrow.csv.write_csv(table, folder / f"{name}.{ending}", options)


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_failed_items_of_tables_are_counted(run, tmp_path, ending):
    rows = [
        {"id": "u", "prompt": "The cat", "chosen": " sat", "rejected": " ran\r\n", "tools": ""},
        {"id": "v", "prompt": "The cat", "chosen": " sat", "rejected": " ran", "tools": "x"},
        {"id": "w", "prompt": "The cat", "chosen": " sat", "rejected": " is", "tools": ""},
    ]
    write_tables(tmp_path / "in", rows, ending)
    assert run(*command("preferences", tmp_path / "in", f"{tmp_path}/out/")).code == 1
    merged = tmp_path / f"m.{ending}"
    ran = run("merge", tmp_path / "out", "--output", merged)
    assert ran.code == 1
    assert "failed: v: it has tools" in ran.err
    assert "done     3 pairs of 2 files, 1 failed" in ran.out
    assert json.loads(merged.with_name(f"{merged.name}.run.json").read_text())["failed"] == 1


def test_unusable_items_of_a_table_are_in_no_remark(run, tmp_path):
    rows = [{**CHOICES[0], "options": ["yes", "yes"], "gold": gold} for gold in (0, 2, 0)]
    write_tables(tmp_path / "in", rows, "parquet")
    assert run(*command("choose", tmp_path / "in", f"{tmp_path}/out/")).code == 1
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.parquet")
    assert "2 of 2 scored items have the same option more than once" in ran.err
    assert "2 of 2 scored items share their id" in ran.err


def test_failures_that_no_record_has_are_of_their_shards(run, shards):
    place = shards(TEXTS)
    command_of = ("preferences", "--model", QWEN, "--quiet")
    for name in "ab":
        pair = {"prompt": f"Say {name}.", "chosen": " Yes.", "rejected": " No."}
        (place / f"in/{name}.jsonl").write_text(lines([pair]))
    assert run(*command_of, "--input", place / "in", "--output", f"{place}/out/").code == 0
    path = next((place / "out").glob("b*.run.json"))
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "failed": 2}))
    ran = run("merge", place / "out", "--output", place / "m.jsonl")
    assert ran.code == 1
    assert "failed: b.jsonl: 2 failures" in ran.err
    assert json.loads((place / "m.jsonl.run.json").read_text())["failed"] == 2


@pytest.mark.parametrize(
    ("ending", "found", "expected"),
    [("parquet", "n: int64", "n: int32"), ("csv", "id, to", "id, other")],
)
def test_tables_with_other_columns_are_refused(run, tmp_path, ending, found, expected):
    rows = [{"id": "u", "continuation": "The cat"}, {"id": "v", "continuation": "One"}]
    write_tables(tmp_path / "in", rows, ending)
    if ending == "parquet":
        for name, kind in (("a", pyarrow.int32()), ("b", pyarrow.int64())):
            path = tmp_path / f"in/{name}.parquet"
            table = pyarrow.parquet.read_table(path)
            pyarrow.parquet.write_table(table.append_column("n", pyarrow.array([1], kind)), path)
    assert run(*command("score", tmp_path / "in", f"{tmp_path}/out/", "--no-html")).code == 0
    if ending == "csv":
        path = tmp_path / "out/a.csv"
        path.write_text(path.read_text().replace("id,", "id,other,").replace("u,", "u,,"))
        made = read_manifest(path)
        del made["outputs"]
        run_files.manifest_path(path).write_text(json.dumps(made))
    ran = run("merge", tmp_path / "out", "--output", tmp_path / f"m.{ending}")
    assert ran.code == 2
    assert f"out/b.{ending}: found columns {found}" in ran.err
    assert f"out/a.{ending}, {expected}" in ran.err
    assert not (tmp_path / f"m.{ending}").exists()


def test_folder_of_no_shards_and_another_form_are_refused(run, shards):
    place = shards(SCORED)
    ran = run("merge", place / "in", "--output", place / "m.jsonl")
    assert (ran.code, "found no _shards-*.json" in ran.err) == (2, True)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    ran = run("merge", place / "out", "--output", place / "m.csv")
    assert (ran.code, "found .jsonl, and --output is .csv" in ran.err) == (2, True)
    assert not (place / "m.csv").exists()


def test_outputs_of_several_forms_are_refused(run, shards):
    place = shards(SCORED)
    (place / "in/c.csv").write_text("id,continuation\nx,one two\n")
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    for ending in ("jsonl", "csv"):
        ran = run("merge", place / "out", "--output", place / f"m.{ending}")
        message = f"{place}/out: found outputs of several forms (.jsonl, .csv), expected one"
        assert (ran.code, message in ran.err) == (2, True)


def test_output_of_another_run_in_a_store_needs_force(run, store, tmp_path):  # noqa: F811
    for name in ("in", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text('{"continuation": "one two"}\n')
        words = ("--input", tmp_path / name, "--output", f"{tmp_path}/{name}-out/")
        assert run("score", "--model", QWEN, "--quiet", "--no-html", *words).code == 0
    words = ("--output", "faulty://b/all.jsonl", "--no-html")
    for _ in range(2):  # the same merge replaces its own
        assert run("merge", tmp_path / "in-out", *words).code == 0
    before = content(store)
    ran = run("merge", tmp_path / "other-out", *words)
    assert ran.code == 2
    assert f"finished by another run, with --input {tmp_path}/in-out; give another" in ran.err
    assert content(store) == before
    assert run("merge", tmp_path / "other-out", *words, "--force").code == 0
    assert "other-out" in content(store)["/b/all.jsonl.run.json"].decode()

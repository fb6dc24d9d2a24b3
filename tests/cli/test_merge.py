"""`merge`: shards become the file and the report of one run."""

import contextlib
import datetime
import gzip
import json
import re
import weakref
from typing import Any, NamedTuple

import pyarrow
import pyarrow.parquet
import pytest

from jaxscore.cli import execute
from jaxscore.cli.made import MADE
from jaxscore.cli.outputs import report_paths
from jaxscore.engine import loading
from jaxscore.io.manifest import file_digest, read_manifest
from jaxscore.io.records import csv_line
from jaxscore.report import document
from jaxscore.shell.records import Records
from jaxscore.shell.report import marked_decisions
from jaxscore.shell.rounding_audit import OF_REQUESTS, Noise, OtherLayouts, Spread
from jaxscore.systems import SYSTEMS, declaration
from tests.cli.conftest import QWEN
from tests.io.test_remote import content, store  # noqa: F401

# The boundary "separate" changes requests of the second shard alone.
SCORED = [
    {"id": f"{k}", "context": f"The cat {k}", "continuation": " sat" * (k + 1)} for k in range(5)
] + [{"id": "5", "context": "The cat ", "continuation": "sat\nsat"}]
CHOICES = [
    {"id": f"{k}", "context": f"Q{k}:", "options": [" yes", " no"], "gold": k % 2 or None}
    if k < 2
    else {"id": f"{k}", "context": f"Q{k}: ", "options": ["left", " yes"], "gold": k % 2}
    for k in range(5)
] + [{"id": "bad", "context": "Q:", "options": [" one"]}]  # fmt: skip
TEXTS = [{"id": f"{k}", "text": f"Some words {k}. " * (k + 1)} for k in range(5)]
PAIRS = [
    {"id": "u", "prompt": "The cat", "chosen": " sat", "rejected": " ran\r\n", "tools": ""},
    {"id": "v", "prompt": "The cat", "chosen": " sat", "rejected": " ran", "tools": "x"},
    {"id": "w", "prompt": "The cat", "chosen": " sat", "rejected": " is", "tools": ""},
]
PATHS = [
    {"id": f"{k}", "question": f"Where is {k}?", "paths": [["a", "in", f"{k}"]]} for k in range(5)
]
OUTPUTS = [
    {"id": f"{k}", "input": f"Say {k}.", "output": ["One.", f"Two {k}."], "gold": "2"}
    for k in range(4)
]
GRADED = [
    {**item, "output": ["Answer: 2", f"Answer: {k}"], "gold": gold}
    for k, (item, gold) in enumerate(zip(OUTPUTS, ["2", "no", ["3", "1"], {}], strict=True))
]
PROMPTS = [{"id": f"{k}", "prompt": f"The cat {k}"} for k in range(5)]
ANSWERS = [json.dumps({"answer": str(k)}) for k in range(2)]
SAMPLES = [
    {"id": f"{k}", "question_id": f"{k}", "output": ANSWERS, "responses": ANSWERS, "gold": "1",
     "confidence_list": [1.0, 2.0], "model_input": f"Say {k}."}
    for k in range(4)
]  # fmt: skip


class Case(NamedTuple):
    """A command, and items of which the first two are one shard.

    Attributes:
        forms: endings of the input; an array is written in any case where the system has a layout.
        code: exit code of each run.
    """

    system: str
    items: list[dict[str, Any]]
    words: tuple[object, ...] = ()
    forms: tuple[str, ...] = ("json",)
    code: int = 0


TABLES = ("jsonl", "csv", "tsv", "parquet")
MODEL = ("--model", QWEN, "--reproducible")
SELECT = ("--best-N", 2)
NOISE = ("--audit-noise", 100)
REFERENCE = ("--reference", QWEN, "--reference-dtype", "bfloat16")
CASES_OF_MERGE = [
    Case("score", SCORED, (*MODEL, *NOISE), TABLES),
    Case("score", SCORED, (*MODEL, "--summary-only"), ("jsonl",)),
    Case("score", SCORED, (*MODEL, "--against", "", "--boundary", "separate"), ("jsonl", "csv")),
    Case("choose", CHOICES, (*MODEL, *NOISE), TABLES, code=1),
    Case("perplexity", TEXTS, MODEL, TABLES),
    Case("divergence", SCORED, (*MODEL, *NOISE, *REFERENCE), TABLES),
    Case("preferences", PAIRS, MODEL, TABLES, code=1),
    Case("paths", PATHS, (*MODEL, *NOISE), ("json", "jsonl")),
    Case("sample", PROMPTS, (*MODEL, "-n", 2, "--max-new-tokens", 3), ("jsonl",)),
    Case("self-certainty", OUTPUTS, (*MODEL, *NOISE)),
    Case("self-certainty", GRADED, (*MODEL, "--gold", "gold", "--answer-rule", "answer"), code=1),
    Case("usc-generate", SAMPLES, (*MODEL, *SELECT, "--max-new-tokens", 3)),
    Case("select", SAMPLES, SELECT),
    Case("select", SAMPLES, (*SELECT, "--gold", "gold")),
    Case("vote", SAMPLES, (*SELECT, "--gold", "gold")),
    Case("usc-select", SAMPLES, ("--dataset-type", "close")),
    Case("usc-select", SAMPLES, ("--dataset-type", "close", "--gold", "gold")),
    Case("livecode-select", SAMPLES, SELECT),
    Case("livecode-parse", SAMPLES),
]  # fmt: skip

# Settings of one run alone, and facts of its device.
LACKS = {"date", "device", "revision", "limit", "input", "input_sha256"}
RESULTS = ("finding", "result", "boundary")  # of the closing block, what all items say
OWN_REMARK = "audits: each of 2 files was audited by itself"


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


def assert_same_reports(one, merged, *, has_contexts=True):
    """Check that Markdown and JSON are equal but for settings, and the remark of a merge.

    Args:
        has_contexts: False if the Markdown of a run has contexts that its output does not have.
    """
    (page, data), (merged_page, merged_data) = map(report_paths, (one, merged))
    assert [path.exists() for path in (merged_page, merged_data)] == [
        path.exists() for path in (page, data)
    ]
    if not data.exists():
        return
    facts, found = read_report(data), read_report(merged_data)
    own = [remark for remark in found["remarks"] if remark.startswith(OWN_REMARK)]
    is_audited = any(facts.get(name) for name in ("noise", "boundary_audit"))
    assert len(own) == is_audited
    assert found == facts | {"remarks": [*facts["remarks"], *own]}
    settings, made = (json.loads(path.read_text())["settings"] for path in (data, merged_data))
    assert {name for name, value in settings.items() if made.get(name) != value} <= LACKS
    text, merged_text = (
        path.read_text().partition("## Settings and versions")[0] for path in (page, merged_page)
    )
    merged_text = re.sub(f"- {OWN_REMARK}.*\n", "", merged_text)
    merged_text = merged_text.replace("## Warnings\n\n\n", "")
    if not has_contexts:
        text, merged_text = (re.sub(r"The cat( \d)?| ", "", each) for each in (text, merged_text))
    assert merged_text == text


def lines(items):
    return "".join(json.dumps(item) + "\n" for item in items)


def table(rows, delimiter):
    rows = [[cell(value) for value in row] for row in ([*rows[0]], *(row.values() for row in rows))]
    return "".join(csv_line(row, delimiter) for row in rows)


def cell(value):
    return json.dumps(value) if isinstance(value, list) else "" if value is None else str(value)


def write_items(path, items):
    names = dict.fromkeys(name for item in items for name in item)
    rows = [{name: item.get(name) for name in names} for item in items]
    if path.suffix == ".parquet":
        dated = [{**row, "when": datetime.date(2026, 1, 1)} for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(dated), path)
    elif path.suffix in (".csv", ".tsv"):
        path.write_text(table(rows, {".csv": ",", ".tsv": "\t"}[path.suffix]), newline="")
    else:
        path.write_text(json.dumps(items) if path.suffix == ".json" else lines(items))


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


@pytest.fixture
def audits(monkeypatch):
    """`audits(spread, ...)`: the next audits of rounding find these as the largest spreads."""

    def plant(*spreads):
        left = iter(spreads)

        def audit(_, pairs, **options):
            names = ("token_logprob", "label_logprob", "label_probability", *OF_REQUESTS)
            spread = dict.fromkeys(names, Spread(next(left), 0.0))
            return Noise(len(pairs), ("alone", "others"), spread, len(pairs), 0)

        for name in ("scores", "labels"):
            monkeypatch.setattr(OtherLayouts, name, audit)

    return plant


def command(name, source, output, *more):
    return (name, "--model", QWEN, "--quiet", "--reproducible", "--input", source,
            "--output", output, *more)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "form"),
    [
        pytest.param(case, form, id="-".join([case.system, str(number), form]))
        for number, case in enumerate(CASES_OF_MERGE)
        for form in case.forms
    ],
)
def test_merge_equals_one_run_over_all_items(run, tmp_path, audits, case, form):
    """Bytes and reports; an audit that only the second shard fails marks the first one too."""
    system = declaration(case.system)
    (tmp_path / "in").mkdir()
    for name, items in (("in/a", case.items[:2]), ("in/b", case.items[2:]), ("all", case.items)):
        write_items(tmp_path / f"{name}.{form}", items)
    ending = form if system.layout is None else "json"
    one, merged = tmp_path / f"one.{ending}", tmp_path / f"merged.{ending}"

    def score(source, output, *spreads):
        audits(*spreads)
        return run(case.system, "--quiet", *case.words, "--input", source, "--output", output)

    alone = score(tmp_path / f"all.{form}", one, 100.0)
    assert score(tmp_path / "in", f"{tmp_path}/out/", 1e-9, 100.0).code == case.code
    ran = run("merge", tmp_path / "out", "--output", merged)
    assert (alone.code, ran.code) == (case.code, case.code), alone.err + ran.err
    if form == "parquet":
        before, now = (pyarrow.parquet.read_table(path) for path in (one, merged))
        assert now.schema.equals(before.schema, check_metadata=True)
        assert now.to_pylist() == before.to_pylist()
    else:
        assert merged.read_bytes() == one.read_bytes()
    assert {path.name for path in tmp_path.glob("merged*")} == {
        path.name.replace("one", "merged", 1) for path in tmp_path.glob("one*")
    }
    has_contexts = case.system != "divergence" or form == "parquet"
    assert_same_reports(one, merged, has_contexts=has_contexts)
    assert results(ran.out) == results(alone.out)
    manifests = [read_manifest(path) for path in (one, merged)]
    assert manifests[1]["failed"] == manifests[0]["failed"]
    n_failed = manifests[0]["failed"]
    assert f"{len(case.items)} {system.what} of 2 files, {n_failed} failed" in ran.out
    assert [manifest[MADE] for manifest in manifests] == [manifests[0][MADE]] * 2
    if "--audit-noise" in case.words and marked_decisions(system):
        assert "decisions within that" in ran.out
        assert b"ithin_noise" in merged.read_bytes()


def test_every_system_is_merged_in_a_test():
    """`chronologic` and `probsem` have ids of their files, see `test_shards_of_suites`."""
    of_others = {"chronologic", "probsem", "judge", "bem", "metrics"}  # the last three: no shards
    assert {case.system for case in CASES_OF_MERGE} | of_others == set(SYSTEMS)


@pytest.mark.parametrize("name", ["choose", "perplexity", "divergence", "paths"])
def test_merge_has_few_records_in_memory(run, tmp_path, monkeypatch, name):
    case = next(case for case in CASES_OF_MERGE if case.system == name)
    items = [{**case.items[k % 5], "id": f"{k}"} for k in range(20)]
    (tmp_path / "in").mkdir()
    for shard, part in (("a", items[:10]), ("b", items[10:])):
        write_items(tmp_path / f"in/{shard}.jsonl", part)
    words = [word for word in case.words if word not in NOISE]
    assert run(name, "--quiet", *words, "--input", tmp_path / "in", "--output",
               f"{tmp_path}/out/").code == 0  # fmt: skip
    alive, most = weakref.WeakSet(), 0

    class Record(dict):
        __hash__ = object.__hash__

    def counted(record):
        nonlocal most
        alive.add(out := Record(record))
        most = max(most, len(alive))
        return out

    element, iterate = Records.element, Records.__iter__
    monkeypatch.setattr(Records, "element", lambda self, place: counted(element(self, place)))
    monkeypatch.setattr(Records, "__iter__", lambda self: map(counted, iterate(self)))
    monkeypatch.setattr(document, "MOST", 1)
    monkeypatch.setattr(document, "EMBEDDED", 1)
    ending = "json" if name == "paths" else "jsonl"
    assert run("merge", tmp_path / "out", "--output", tmp_path / f"m.{ending}").code == 0
    assert 0 < most <= 4


def test_merge_writes_the_page_that_shards_left_out(run, shards):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    ran = run("merge", place / "out", "--output", place / "merged.jsonl")
    assert "joint: of 6 requests separate would change 1" in ran.out
    assert "Requests" in (place / "merged.jsonl.report.html").read_text()


def test_page_of_a_system_without_one_is_refused(run, tmp_path):
    (tmp_path / "in").mkdir()
    write_items(tmp_path / "in/a.json", SAMPLES)
    words = ("livecode-parse", "--quiet", "--input", tmp_path / "in", "--output",
             f"{tmp_path}/out/")  # fmt: skip
    assert run(*words).code == 0
    page = ("--output", tmp_path / "m.json", "--html", tmp_path / "page.html")
    assert run("merge", tmp_path / "out", *page).code == 2


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


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("flags", {"dtype": "bfloat16"}, "--dtype bfloat16, and"),
        ("weights", {"model": "0"}, "weights (--model) 0, and"),
        ("loaded", {"dtype": "float64"}, "dtype float64, and"),
        ("loaded", {"jax": "0.1"}, "jax 0.1, and"),
        ("loaded", {"new": 1}, "new 1, and"),
        (None, {"numbers": 0}, "version of jaxscore's numerics (numbers) 0, and"),
        (None, {"records": 9}, "version of the records 9, and"),
        (None, {"tokenizer": "0"}, "tokenizer, chat template or generation_config.json 0, and"),
    ],
)
def test_shards_of_two_runs_are_refused(run, shards, part, change, message):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    path = place / "out/b.jsonl.run.json"
    manifest = json.loads(path.read_text())
    made = manifest[MADE]
    (made if part is None else made[part]).update(change)
    path.write_text(json.dumps(manifest))
    ran = run("merge", place / "out", "--output", place / "m.jsonl")
    assert ran.code == 2
    assert f"{place}/out/b.jsonl: made with {message} {place}/out/a.jsonl with " in ran.err
    assert not (place / "m.jsonl").exists()


@pytest.mark.parametrize("field", [MADE, execute.FACTS])
def test_shards_of_an_earlier_version_are_refused(run, shards, field):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    path = place / "out/b.jsonl.run.json"
    manifest = json.loads(path.read_text())
    del manifest[field]
    path.write_text(json.dumps(manifest))
    ran = run("merge", place / "out", "--output", place / "m.jsonl")
    assert ran.code == 2
    assert f"{path}: found no field '{field}', expected it: an earlier version" in ran.err
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
    assert (ran.code, "made with content of --fewshot " in ran.err) == (2, True)
    assert not (place / "m.json").exists()
    assert run(*words, "--shard", "0/2", "--force").code == 0
    assert run(*merge).code == 0
    digest = file_digest(examples)
    assert read_manifest(place / "m.json")[MADE]["files"]["fewshot"] == digest


def test_missing_audit_of_a_shard_is_reported(run, shards):
    place = shards(SCORED)
    words = ("--reference", QWEN, "--reference-dtype", "bfloat16", "--audit-noise", 2)
    assert run(*command("divergence", place / "in", f"{place}/out/", *words)).code == 0
    path = place / "out/a.jsonl.run.json"
    manifest = json.loads(path.read_text())
    manifest[execute.FACTS] |= {"boundaries": {}, "noise": None}  # as where no item was scored
    path.write_text(json.dumps(manifest))
    assert run("merge", place / "out", "--output", place / "m.jsonl", "--no-html").code == 0
    remarks = "\n".join(read_report(place / "m.jsonl.report.json")["remarks"])
    assert "audits: noise audited in 1 of 2 files" in remarks
    assert "audits: boundaries audited in 1 of 2 files" in remarks


@pytest.mark.parametrize("killed", ["a", "b", "ab"])
def test_shards_killed_before_their_manifest_are_merged(run, shards, killed):
    place = shards(OUTPUTS)
    words = command("self-certainty", place / "in", f"{place}/out/", "--audit-noise", 2)
    assert run(*words).code == 0
    manifests = {name: place / f"out/{name}.jsonl.json.run.json" for name in "ab"}
    before = json.loads(manifests["a"].read_text())
    for name in killed:
        manifests[name].unlink()
    assert run(*words).code == 0
    ran = run("merge", place / "out", "--output", place / "m.json")
    assert ran.code == 0, ran.err
    assert ("noise floor: " in ran.out) == (killed != "ab")
    assert "no request was scored" not in ran.out
    found = read_manifest(place / "m.json")
    known = {"model", "machine"} if killed != "ab" else set()
    assert {name: found.get(name) for name in known} == {name: before[name] for name in known}
    assert (found[execute.FACTS]["noise"] is None) == (killed == "ab")


def test_shards_of_other_devices_are_merged(run, shards, monkeypatch):
    place = shards(SCORED)
    words = command("score", place / "in", f"{place}/out/", "--no-html")
    assert run(*words, "--shard", "0/2").code == 0
    about = loading.facts_of_numbers

    def other(*args, **options):
        return about(*args, **options) | {"platform": "gpu", "device_kind": "H100", "shards": 2}

    monkeypatch.setattr(loading, "facts_of_numbers", other)
    assert run(*words, "--shard", "1/2").code == 0
    made = [read_manifest(place / f"out/{name}.jsonl")["model"] for name in "ab"]
    assert made[0] != made[1]
    assert run("merge", place / "out", "--output", place / "m.jsonl").code == 0


def test_merge_that_is_killed_leaves_no_earlier_manifest(run, shards, monkeypatch):
    place = shards(SCORED)
    assert run(*command("score", place / "in", f"{place}/out/", "--no-html")).code == 0
    merge = ("merge", place / "out", "--output", place / "m.jsonl", "--no-html")
    assert run(*merge).code == 0
    assert (place / "m.jsonl.run.json").is_file()

    def kill(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "write_manifest", kill)
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


def test_unusable_items_of_a_table_are_in_no_remark(run, tmp_path):
    rows = [{**CHOICES[0], "options": ["yes", "yes"], "gold": gold} for gold in (0, 2, 0)]
    (tmp_path / "in").mkdir()
    for name, part in (("a", rows[:1]), ("b", rows[1:])):
        write_items(tmp_path / f"in/{name}.parquet", part)
    assert run(*command("choose", tmp_path / "in", f"{tmp_path}/out/")).code == 1
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.parquet")
    assert "2 of 2 scored items have the same option more than once" in ran.err
    assert "2 of 2 scored items share their id" in ran.err


def test_tables_with_other_columns_are_refused(run, tmp_path):
    rows = [{"id": "u", "continuation": "The cat"}, {"id": "v", "continuation": "One"}]
    (tmp_path / "in").mkdir()
    for name, row, kind in zip("ab", rows, (pyarrow.int32(), pyarrow.int64()), strict=True):
        table = pyarrow.Table.from_pylist([row]).append_column("n", pyarrow.array([1], kind))
        pyarrow.parquet.write_table(table, tmp_path / f"in/{name}.parquet")
    assert run(*command("score", tmp_path / "in", f"{tmp_path}/out/", "--no-html")).code == 0
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.parquet")
    assert ran.code == 2
    assert "out/b.parquet: found columns n: int64" in ran.err
    assert "out/a.parquet, n: int32" in ran.err
    assert not (tmp_path / "m.parquet").exists()


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

"""Finished outputs that lost records, and manifests, listings and records of another shape."""

import gzip
import json
import os
import shutil

import pytest
import zstandard

from jaxscore.io.manifest import manifest_path
from jaxscore.io.records import csv_line
from tests.cli.conftest import QWEN
from tests.io.test_remote import store as store  # a fixture

FORMS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".csv", ".parquet", ".json")
N = 12


def items(name):
    return [
        {"id": f"{name}{k}", "context": f"The cat {k}", "continuation": " sat"} for k in range(N)
    ]


def write_input(path, rows):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".csv":
        text = "".join(map(csv_line, [rows[0], *(row.values() for row in rows)]))
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.compress(text.encode()))
    else:
        path.write_text(text)


def scoring(source, output, form=".jsonl", *more):
    words = ("score", "--model", QWEN, "--quiet", "--no-html", "--input", source,
             "--output", output, *more)  # fmt: skip
    if form != ".json":
        return words
    return ("paths", *words[1:])


@pytest.fixture
def finished(run, tmp_path):
    """`finished(form)`: a folder of two finished shards, in a form."""

    def score(form):
        (tmp_path / "in").mkdir()
        for name in "ab":
            rows = items(name)
            if form == ".json":
                rows = [{"id": row["id"], "question": row["context"], "paths": [["a", "in", name]]}
                        for row in rows]  # fmt: skip
            write_input(tmp_path / f"in/{name}{'.jsonl' if form == '.json' else form}", rows)
        ran = run(*scoring(tmp_path / "in", f"{tmp_path}/out/", form))
        assert ran.code == 0, ran.err
        others = (".run.json", "report.md", "report.json")
        files = sorted((tmp_path / "out").glob("[ab]*"))
        outputs = [path for path in files if not path.name.endswith(others)]
        assert len(outputs) == 2
        return outputs

    return score


def halve(path, other):
    """Cut a file to the first half of its bytes, or of its lines."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]) if path.suffix == ".jsonl"
                     else data[: len(data) // 2])  # fmt: skip


def empty(path, other):
    path.write_bytes(b"")


def swap(path, other):
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def exchange(path, other):
    """Exchange two files by name, so that each keeps its own times."""
    path.rename(path.with_name("x"))
    other.rename(path)
    path.with_name("x").rename(other)


def double(path, other):
    path.write_bytes(path.read_bytes() * 2)


def alter(path, other):
    """Change one byte, and set the times back."""
    facts, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def remove(path, other):
    path.unlink()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damage", [halve, empty, swap, exchange, double, alter])
def test_output_that_lost_records_is_not_merged_and_scored_again(
    run, tmp_path, finished, form, damage
):
    outputs = finished(form)
    before = [path.read_bytes() for path in outputs]
    damage(*outputs)
    merged = tmp_path / f"m{''.join(outputs[0].suffixes[-2:])}"
    ran = run("merge", tmp_path / "out", "--output", merged, "--no-html")
    assert ran.code == 2
    assert f"{outputs[0]}: not as its manifest describes it" in ran.err
    assert not merged.exists()
    ran = run(*[word for word in scoring(tmp_path / "in", f"{tmp_path}/out/", form)
                if word != "--quiet"])  # fmt: skip
    assert f"{outputs[0]}: not as its manifest describes it" in ran.err
    n = 2 if damage in (swap, exchange) else 1
    assert f"done     {n} of 2 files, {2 - n} were finished" in ran.out
    assert [path.read_bytes() for path in outputs] == before
    assert run("merge", tmp_path / "out", "--output", merged, "--no-html").code == 0


def test_manifest_has_the_number_and_the_digest_of_the_records(run, tmp_path, finished):
    [path, _] = finished(".jsonl")
    facts = json.loads(manifest_path(path).read_text())["outputs"][path.name]
    assert (facts["records"], facts["size"]) == (N, path.stat().st_size)
    assert len(facts["sha256"]) == 64
    assert run("merge", tmp_path / "out", "--output", tmp_path / "m.jsonl").code == 0
    outputs = json.loads((tmp_path / "m.jsonl.run.json").read_text())["outputs"]
    assert outputs["m.jsonl"]["records"] == 2 * N


def test_unchanged_output_is_not_read_to_skip_it(run, tmp_path, finished, monkeypatch):
    """Reading tens of gigabytes would take minutes; a copy of the folder is read."""
    from jaxscore.io import manifest

    finished(".jsonl")
    read = []
    digest = manifest.file_digest
    monkeypatch.setattr(
        manifest, "file_digest", lambda path: read.append(path.name) or digest(path)
    )
    words = scoring(tmp_path / "in", f"{tmp_path}/out/")
    assert "2 were finished" in run(*words).out
    assert read == []
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert "2 were finished" in run(*scoring(tmp_path / "in", f"{tmp_path}/copy/")).out
    assert sorted(read) == ["a.jsonl", "b.jsonl"]


def test_moved_manifest_and_output_are_refused(run, tmp_path, finished):
    outputs = finished(".jsonl")
    exchange(*outputs)
    exchange(*map(manifest_path, outputs))
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.jsonl")
    assert ran.code == 2
    assert f"the manifest of {outputs[1]}, expected that of a.jsonl" in ran.err


def without_digests(path):
    manifest = json.loads(manifest_path(path).read_text())
    del manifest["outputs"]
    manifest_path(path).write_text(json.dumps(manifest))


def test_manifest_of_an_earlier_version_is_accepted_and_named(run, tmp_path, finished):
    for path in finished(".jsonl"):
        without_digests(path)
    words = [word for word in scoring(tmp_path / "in", f"{tmp_path}/out/") if word != "--quiet"]
    ran = run(*words)
    assert "2 were finished" in ran.out
    assert "not verified: 2 outputs, whose manifests of an earlier version have no" in ran.err
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.jsonl")
    assert ran.code == 0
    assert "not verified: 2 outputs" in ran.err


def test_manifest_that_describes_other_files_alone_is_refused(run, tmp_path, finished):
    """A manifest with digests, but none of its own output, verifies nothing."""
    [path, _] = finished(".jsonl")
    made = json.loads(manifest_path(path).read_text())
    made["outputs"] = {"x.jsonl": made["outputs"][path.name]}
    manifest_path(path).write_text(json.dumps(made))
    ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.jsonl")
    assert ran.code == 2
    assert "found facts of x.jsonl, expected those of this file" in ran.err
    ran = run(*scoring(tmp_path / "in", f"{tmp_path}/out/"))
    assert ran.code == 0
    assert path.name in json.loads(manifest_path(path).read_text())["outputs"]


@pytest.mark.parametrize("damage", [halve, empty, double, alter])
def test_changed_output_is_not_compared(run, tmp_path, finished, damage):
    [a, b] = finished(".jsonl")
    damage(a, b)
    ran = run("compare", a, b, "--output", tmp_path / "c.json")
    assert (ran.code, f"{a}: not as its manifest describes it" in ran.err) == (2, True)
    renamed = a.rename(tmp_path / "r.jsonl")
    manifest_path(a).rename(manifest_path(renamed))
    ran = run("compare", renamed, b, "--output", tmp_path / "c.json")
    assert (ran.code, f"{renamed}: not as its manifest describes it" in ran.err) == (2, True)


@pytest.mark.parametrize("damage", [halve, empty, double, alter, remove])
def test_output_in_a_store_that_lost_records_is_scored_again(
    run,
    tmp_path,
    store,
    damage,
):
    text = "".join(json.dumps(row) + "\n" for row in items("a"))
    store.pipe_file("/b/in/a.jsonl", text.encode())
    words = scoring("faulty://b/in/", "faulty://b/out/")
    assert run(*words).code == 0
    assert "1 were finished" in run(*words).out
    before = store.cat_file("/b/out/a.jsonl")
    local = tmp_path / "a.jsonl"
    local.write_bytes(before)
    damage(local, local)
    store.rm_file("/b/out/a.jsonl")
    if local.exists():
        store.pipe_file("/b/out/a.jsonl", local.read_bytes())
        ran = run("merge", "faulty://b/out/", "--output", tmp_path / "m.jsonl")
        assert (ran.code, "faulty://b/out/a.jsonl: not as its manifest" in ran.err) == (2, True)
    ran = run(*[word for word in words if word != "--quiet"])
    assert "faulty://b/out/a.jsonl: not as its manifest describes it" in ran.err
    assert "done     1 of 1 file, 0 were finished" in ran.out
    assert store.cat_file("/b/out/a.jsonl") == before


def test_copied_store_is_verified_by_its_bytes(run, tmp_path, store):
    store.pipe_file("/b/in/a.jsonl", b'{"continuation": "The cat"}\n')
    words = scoring("faulty://b/in/", "faulty://b/out/")
    assert run(*words).code == 0
    store.pipe_file("/b/out/a.jsonl", store.cat_file("/b/out/a.jsonl"))  # another time
    assert "1 were finished" in run(*words).out


def test_finished_array_whose_numbers_changed_is_not_continued(run, tmp_path):
    path, output = tmp_path / "in.json", tmp_path / "out.json"
    path.write_text(json.dumps([{"id": "a", "input": "Say it.", "output": ["One.", "Two."]}]))
    words = ("self-certainty", "--model", QWEN, "--input", path, "--output", output, "--quiet")
    assert run(*words).code == 0
    before = output.read_bytes()
    [record] = json.loads(before)
    changed = json.dumps([{**record, "confidence_list": [9.0, 9.0]}])
    output.write_text(changed)
    ran = run(*words)
    assert (ran.code, f"{output}: not as its manifest describes it" in ran.err) == (2, True)
    assert output.read_text() == changed
    assert run(*words, "--force").code == 0
    assert output.read_bytes() == before


NOT_MANIFESTS = {
    "empty": b"",
    "cut": b'{"command": "score",\n "flags": {',
    "list": b"[]",
    "null": b"null",
    "text": b'"score"',
    "number": b"5",
    "no fields": b"{}",
    "UTF-16": '{"command": "score", "flags": {}}'.encode("utf-16"),
    "Latin-1": '{"command": "sc\u00f6re", "flags": {}}'.encode("latin-1"),
    "binary": bytes(range(256)),
    "two": b"{}\n{}",
    "deep": b'{"command": "score", "flags": ' + b"[" * 100_000,
    "nested": b'{"command": "score", "flags": {"a": ' + b"[" * 200 + b"]" * 200 + b"}}",
    "NaN": b'{"command": "score", "flags": {},\n "seconds": NaN}',
    "infinite": b'{"command": "score", "flags": {}, "seconds": 1e999}',
    "thousands of digits": b'{"command": "score", "flags": {}, "failed": 1' + b"0" * 5000 + b"}",
}
WRONG = (None, "x", 1.5, -1, [], {}, True, [[]], {"a": None}, 10**30)
# Field -> values that it may have among `WRONG`.
FIELDS = {
    "command": ("x",),
    "flags": ({}, {"a": None}),
    "outputs": ({},),
    "input_identity": (None, {}, {"a": None}),
    "model": (None, {}, {"a": None}),
    "versions": ({}, {"a": None}),
    "counts": (None, {}),
    "failed": (-1,),
    "seconds": (1.5, -1),
    "made": (),
    "facts": (),
    "about": ({}, {"a": None}),
    "vocabulary": (None, -1),
    "is_empty": (True,),
}


def commands(tmp_path, outputs):
    [a, _] = outputs
    other = tmp_path / "other" / a.name
    other.parent.mkdir()
    for path, copy in ((a, other), (manifest_path(a), manifest_path(other))):
        copy.write_bytes(path.read_bytes())
    return {
        "merge": ("merge", tmp_path / "out", "--output", tmp_path / "m.jsonl", "--quiet"),
        "compare": ("compare", a, other, "--output", tmp_path / "c.json", "--quiet"),
        "skip": scoring(tmp_path / "in", f"{tmp_path}/out/"),
    }


@pytest.mark.parametrize("consumer", ["merge", "compare", "skip"])
def test_manifest_of_another_shape_is_one_message(run, tmp_path, finished, consumer):
    outputs = finished(".jsonl")
    path = manifest_path(outputs[0])
    words, original = commands(tmp_path, outputs)[consumer], path.read_bytes()

    def refused(data, what):
        path.write_bytes(data)
        ran = run(*words)
        assert ran.code == 2, what
        assert f"{path}:" in ran.err, (what, ran.err)
        assert ran.err.count("\n") == 1, what

    for what, data in NOT_MANIFESTS.items():
        refused(data, what)
    made = json.loads(original)
    for field, allowed in FIELDS.items():
        for value in WRONG:
            if not any(value == one and type(value) is type(one) for one in allowed):
                refused(json.dumps({**made, field: value}).encode(), (field, value))
    for field in ("command", "flags"):
        refused(json.dumps({k: v for k, v in made.items() if k != field}).encode(), field)
    lines = json.dumps({**made, "failed": "x"}, indent=2).splitlines()
    path.write_text("\n".join(lines))
    line = 1 + next(k for k, text in enumerate(lines) if text.startswith('  "failed"'))
    assert f"{path}:{line}: field 'failed' is a string, expected a whole number" in run(*words).err
    path.write_bytes(b"[")
    if consumer == "skip":
        assert run(*words, "--force").code == 0


@pytest.mark.parametrize("consumer", ["merge", "compare", "skip"])
def test_any_value_anywhere_in_a_manifest_ends_without_a_traceback(
    run, tmp_path, finished, consumer
):
    outputs = finished(".jsonl")
    words = commands(tmp_path, outputs)[consumer]
    made = [json.loads(manifest_path(path).read_text()) for path in outputs]
    places = [place for place in sorted(places_in(made[0]), key=str) if "flags" not in place[:1]]
    for k, place in enumerate(places):
        for value in (WRONG[k % len(WRONG)], WRONG[(k + 3) % len(WRONG)], "DELETED"):
            for path, manifest in zip(outputs[: 1 + k % 2], made, strict=False):
                manifest_path(path).write_text(json.dumps(edited(manifest, place, value)))
            before = [path.read_bytes() for path in outputs]
            assert run(*words).code in (0, 1, 2)
            assert [path.read_bytes() for path in outputs] == before
            for path, manifest in zip(outputs, made, strict=True):
                manifest_path(path).write_text(json.dumps(manifest))


def places_in(value, place=()):
    """The names of all fields of nested objects."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield (*place, name)
            yield from places_in(part, (*place, name))


def edited(value, place, new):
    """A copy with another value at a place, or without it; unchanged if it has no such place."""
    copy = part = json.loads(json.dumps(value))
    for name in place[:-1]:
        part = part.get(name, {})
    if new == "DELETED":
        part.pop(place[-1], None)
    elif place[-1] in part:
        part[place[-1]] = new
    return copy


LISTINGS = (b"", b"[]", b"null", b"{", b'{"a.jsonl": null}', b'{"a.jsonl": {}}', b"\xff",
            b'{"a.jsonl": "a.jsonl", "b.jsonl": "a.jsonl"}', b'{"a.jsonl": ""}', b'{"": "a.jsonl"}',
            b"[" * 100_000, b'{"a.jsonl": "\\ud83d"}', b'{"a.jsonl": 1e999}')  # fmt: skip


def test_listing_of_another_shape_is_one_message(run, tmp_path, finished):
    finished(".jsonl")
    [listing] = (tmp_path / "out").glob("_shards-*.json")
    original = listing.read_bytes()
    for data in LISTINGS:
        listing.write_bytes(data)
        ran = run("merge", tmp_path / "out", "--output", tmp_path / "m.jsonl")
        assert (ran.code, str(tmp_path / "out") in ran.err) == (2, True), data
        assert ran.err.count("\n") == 1
    assert run(*scoring(tmp_path / "in", f"{tmp_path}/out/")).code == 0  # which writes it again
    assert listing.read_bytes() == original


@pytest.mark.parametrize("consumer", ["merge", "compare"])
def test_records_of_another_shape_are_one_message(run, tmp_path, finished, consumer):
    """Where a manifest of an earlier version has no digest that would show the change."""
    outputs = finished(".jsonl")
    for path in outputs:
        without_digests(path)
    words = commands(tmp_path, outputs)[consumer]
    first, *rest = outputs[0].read_text().splitlines()
    record, n_refused = json.loads(first), 0
    for k, name in enumerate(record):
        for value in (*WRONG[k % 3 :: 3], "DELETED"):
            line = json.dumps(edited(record, (name,), value))
            outputs[0].write_text("\n".join([line, *rest]) + "\n")
            ran = run(*words)
            assert ran.code in (0, 1, 2), (name, value)
            n_refused += ran.code != 0  # compare leaves such a record out, with code 1
    assert n_refused
    for data in ("5", "[]", "{", '"x"', "[" * 100_000):
        outputs[0].write_text("\n".join([data, *rest]) + "\n")
        ran = run(*words)
        assert (ran.code, str(outputs[0]) in ran.err) == (2, True), data
    outputs[0].write_text("\n".join([json.dumps({**record, "sum_logprob": "x"}), *rest]) + "\n")
    ran = run(*words)
    assert "record 1 is not as score writes it" in ran.err or "line 1" in ran.err


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b'{"command": 5}'])
def test_damaged_manifest_in_a_store_is_one_message(run, tmp_path, store, data):
    store.pipe_file("/b/in/a.jsonl", b'{"continuation": "The cat"}\n')
    words = scoring("faulty://b/in/", "faulty://b/out/")
    assert run(*words).code == 0
    store.pipe_file("/b/out/a.jsonl.run.json", data)
    for command in (words, ("merge", "faulty://b/out/", "--output", tmp_path / "m.jsonl")):
        ran = run(*command)
        assert ran.code == 2
        assert "faulty://b/out/a.jsonl.run.json:1: " in ran.err
    assert run(*words, "--force").code == 0

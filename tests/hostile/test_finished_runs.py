"""Finished outputs that lost records, and manifests, listings and records of another shape."""

import gzip
import json
import os
import shutil

import pytest
import zstandard

from jaxscore.io.records import csv_line
from jaxscore.io.run_files import manifest_path
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
        others = (".run.json", "_report.md", "_report.json")
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
    [(name, facts)] = json.loads(manifest_path(path).read_text())["outputs"].items()
    assert (name, facts["records"], facts["size"]) == (path.name, N, path.stat().st_size)
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
    assert "done     1 of 1 files, 0 were finished" in ran.out
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

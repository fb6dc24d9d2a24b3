"""Many input files: shards, workers, and what is finished."""

import argparse
import contextlib
import gzip
import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from jaxscore.cli import (
    distributed_flags,
    execute,
    finished_shards,
    model_flags,
    shard_files,
    shards,
)
from jaxscore.cli.made import MADE, made_of
from jaxscore.errors import InputError
from jaxscore.io import processes, remote, upload
from jaxscore.io.manifest import file_digest
from jaxscore.journal.files import default_path, open_database
from jaxscore.text import tokenizer_files
from tests.cli.conftest import QWEN

NAMES = ("a.jsonl", "b.jsonl.gz", "sub/c.csv")
SLURM = ("ID", "COUNT", "STEP")


@pytest.fixture(autouse=True)
def without_scheduler(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "JOB_COMPLETION"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def data(tmp_path):
    """A folder with three shards of two lines."""
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    lines = [{"context": f"The cat {k}", "continuation": " sat down"} for k in range(4)]
    texts = ["".join(json.dumps(line) + "\n" for line in lines[k : k + 2]) for k in (0, 2)]
    (folder / "a.jsonl").write_text(texts[0])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(texts[1].encode()))
    (folder / "sub/c.csv").write_text("id,context,continuation\nx,The dog, ran\n")
    (folder / ".hidden.jsonl").write_text("not read")
    (folder / "notes.md").write_text("not read")
    return folder


def words(source, output, *more):
    sources = source if isinstance(source, list) else [source]
    return ("score", "--model", QWEN, "--batch-tokens", 256, "--quiet", "--no-html",
            "--input", *sources, "--output", f"{output}/", *more)  # fmt: skip


def written(output):
    """The shards' outputs, without what lies beside them."""
    files = [file.relative_to(output) for file in output.rglob("*") if file.is_file()]
    return sorted(
        str(file)
        for file in files
        if not file.name.endswith((".run.json", ".report.md", ".report.json"))
        and not file.name.startswith("_")
        and ".jaxscore" not in file.parts
    )


def test_repeated_input_adds_to_the_first(run, data, tmp_path):
    output = tmp_path / "out"
    more = ["--input", data / "b.jsonl.gz"]
    assert run(*words(data / "a.jsonl", output, *more)).code == 0
    assert written(output) == ["a.jsonl", "b.jsonl.gz"]
    flags = ["--model", QWEN, "--output", tmp_path / "o.jsonl"]
    ran = run("score", "--input", data / "a.jsonl", *flags, *more)
    assert (ran.code, "found several files" in ran.err) == (2, True)


def listed(output):
    return [json.loads(path.read_text()) for path in sorted(output.glob("_shards*.json"))]


def change_manifest(path, entry, *where):
    manifest = part = json.loads(path.read_text())
    for name in where:
        part = part[name]
    part |= entry
    path.write_text(json.dumps(manifest))


@contextlib.contextmanager
def without_model(monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a model is loaded")

    with monkeypatch.context() as patch:
        patch.setattr(model_flags, "load_scorer", fail)
        yield


def test_folder_gives_one_output_per_file_and_a_rerun_loads_no_model(
    run, data, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    ran = run(*words(data, out))
    assert (ran.code, ran.err) == (0, "")
    assert "done     3 of 3 files, 0 were finished, 0 failed" in ran.out
    assert written(out) == list(NAMES)
    assert listed(out) == [{name: name for name in NAMES}]
    text = gzip.decompress((out / "b.jsonl.gz").read_bytes())
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["id"] for line in lines] == ["b.jsonl.gz:1", "b.jsonl.gz:2"]
    manifest = json.loads((out / "a.jsonl.run.json").read_text())
    assert manifest["flags"]["input"] == str(data / "a.jsonl")
    assert manifest["counts"]["texts"] == 2
    assert manifest["input_identity"]["size"] == (data / "a.jsonl").stat().st_size
    before = {name: (out / name).read_bytes() for name in NAMES}
    with without_model(monkeypatch):
        again = run(*words(data, out))
    assert again.code == 0
    assert "done     0 of 3 files, 3 were finished" in again.out
    assert {name: (out / name).read_bytes() for name in NAMES} == before
    other = run(*words(data, out, "--summary-only"))
    assert other.code == 2
    assert f"{out / 'a.jsonl'}: finished by another run, with --summary-only False" in other.err
    assert "--force" in other.err
    assert {name: (out / name).read_bytes() for name in NAMES} == before
    assert run(*words(data, out, "--summary-only", "--force")).code == 0
    assert b"token_ids" not in (out / "a.jsonl").read_bytes()


def test_changed_input_is_scored_again_and_a_touched_one_is_not(run, data, tmp_path):
    out = tmp_path / "out"
    assert run(*words([data / "a.jsonl", data / "b.jsonl.gz"], out)).code == 0
    os.utime(data / "b.jsonl.gz", (1, 1))
    (data / "a.jsonl").write_text('{"context": "A", "continuation": " new line"}\n')
    ran = run(*[word for word in words(data / "*.jsonl*", out) if word != "--quiet"])
    assert "a.jsonl has changed since" in ran.err
    assert "b.jsonl.gz has changed" not in ran.err
    assert "done     1 of 2 files, 1 were finished" in ran.out
    assert len((out / "a.jsonl").read_text().splitlines()) == 1


def test_output_of_another_input_of_that_name_is_not_replaced(run, data, tmp_path, monkeypatch):
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    assert run(*words(data / "a.jsonl", out)).code == 0
    (other / "a.jsonl").write_text('{"continuation": "another"}')
    before = (out / "a.jsonl").read_bytes()
    ran = run(*words(other, out))
    assert (ran.code, "finished with another input" in ran.err) == (2, True), ran.err
    assert (out / "a.jsonl").read_bytes() == before
    (other / "a.jsonl").write_bytes((data / "a.jsonl").read_bytes())  # moved, not changed
    with without_model(monkeypatch):
        assert run(*words(other, out)).code == 0


def test_shard_replaced_while_it_is_scored_is_refused(run, data, tmp_path, monkeypatch):
    source, out = data / "a.jsonl", tmp_path / "out"
    load = model_flags.load_scorer

    def replace(*args: object, **options: object) -> object:
        source.write_text(source.read_text().replace("cat", "dog"))
        return load(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(model_flags, "load_scorer", replace)
        ran = run(*words(source, out))
        assert (ran.code, f"{source}: changed while this run read it" in ran.err) == (2, True)
    assert not written(out)
    assert not list(out.rglob("*.run.json"))
    assert "done     1 of 1 file, 0 were finished" in run(*words(source, out)).out


@pytest.mark.parametrize(
    ("where", "entry", "message"),
    [
        ([MADE, "weights"], {"model": "0" * 64}, "with weights (--model) 0000"),
        ([MADE], {"numbers": 4}, "with version of jaxscore's numerics (numbers) 4, this one has"),
        ([MADE], {"records": 2}, "with version of the records 2, this one has 1"),
    ],
)
def test_finished_run_of_another_model_or_version_is_refused(
    run, data, tmp_path, where, entry, message
):
    assert run(*words(data / "a.jsonl", tmp_path / "out")).code == 0
    change_manifest(tmp_path / "out/a.jsonl.run.json", entry, *where)
    ran = run(*words(data / "a.jsonl", tmp_path / "out"))
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_finished_run_of_an_earlier_version_is_refused(run, data, tmp_path):
    assert run(*words(data / "a.jsonl", tmp_path / "out")).code == 0
    path = tmp_path / "out/a.jsonl.run.json"
    manifest = json.loads(path.read_text())
    del manifest[MADE]
    path.write_text(json.dumps(manifest))
    ran = run(*words(data / "a.jsonl", tmp_path / "out"))
    message = "finished by another run, of an earlier version of jaxscore; give another --output"
    assert (ran.code, message in ran.err) == (2, True), ran.err


def test_shards_of_another_tokenizer_are_neither_finished_nor_merged(
    run, data, tmp_path, monkeypatch
):
    """Its ids are of other texts, whatever the weights; README and state of training are not."""
    model, out = tmp_path / "model", tmp_path / "out"
    shutil.copytree(QWEN, model)
    command = [*words(data / "a.jsonl", out), "--model", model]
    assert run(*command).code == 0
    (model / "trainer_state.json").write_text("{}")
    assert run(*words(data / "b.jsonl.gz", out), "--model", model).code == 0
    with monkeypatch.context() as patch:  # all shards of a run ask once
        found = [tokenizer_files.digest(model), pytest.fail]
        patch.setattr(tokenizer_files, "digest", lambda _: found.pop(0))
        both = [data / "a.jsonl", data / "b.jsonl.gz"]
        assert "2 were finished" in run(*words(both, out), "--model", model).out
        assert found == [pytest.fail]
    (model / "chat_template.jinja").write_text("{{ messages }}")
    ran = run(*command)
    assert ran.code == 2
    changed = "with tokenizer, chat template or generation_config.json "
    assert f"finished by another run, {changed}" in ran.err
    change_manifest(out / "a.jsonl.run.json", {"tokenizer": "0" * 64}, MADE)
    merged = run("merge", out, "--output", tmp_path / "merged.jsonl")
    assert (merged.code, f"made {changed}" in merged.err) == (2, True), merged.err


def test_two_precisions_of_one_flag_are_not_mixed(run, data, tmp_path):
    out = tmp_path / "out"
    assert run(*words(data / "a.jsonl", out)).code == 0
    change_manifest(out / "a.jsonl.run.json", {"dtype": "bfloat16"}, "model")
    ran = run(*words(data, out))
    assert ran.code == 1
    assert "weights in bfloat16, and --dtype auto is float32" in ran.err
    assert written(out) == ["a.jsonl"]


def test_other_weights_of_the_reference_are_refused(run, data, tmp_path):
    command = ("divergence", "--model", QWEN, "--reference", QWEN, "--reference-dtype", "bfloat16",
               "--quiet", "--no-html", "--input", data / "a.jsonl", "--output",
               f"{tmp_path}/out/")  # fmt: skip
    assert run(*command).code == 0
    assert "1 were finished" in run(*command).out
    change_manifest(tmp_path / "out/a.jsonl.run.json", {"reference": "0" * 64}, MADE, "weights")
    ran = run(*command)
    assert (ran.code, "with weights (--reference) 0000" in ran.err) == (2, True)


@pytest.mark.parametrize("flag", ["--fewshot", "--system-file"])
def test_other_content_of_a_file_that_a_flag_names_is_refused(run, data, tmp_path, flag):
    file = tmp_path / "file"
    example = '{"context": "The dog", "continuation": " ran"}\n'
    file.write_text(example if flag == "--fewshot" else "Be brief.")
    command = words(data / "a.jsonl", tmp_path / "out", flag, file)
    assert run(*command).code == 0
    assert "1 were finished" in run(*command).out
    file.write_text(example.replace("dog", "cow") if flag == "--fewshot" else "Be long.")
    ran = run(*command)
    assert (ran.code, f"with content of {flag} " in ran.err) == (2, True), ran.err


def test_folder_of_a_data_set_is_scored_again_if_one_file_changes(run, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("1")
    before = shard_files.identity_of(folder)
    assert shard_files.identity_of(folder) == before
    newest = (folder / "b").stat().st_mtime_ns
    (folder / "a").write_text("2")
    os.utime(folder / "a", ns=(1, newest - 1))
    assert shard_files.identity_of(folder) != before


def finished(identity, manifest):
    """Whether a finished output of this manifest holds for an input of this identity."""
    args = argparse.Namespace(force=False, quiet=True, command="score")
    shard = shard_files.Shard(Path("none"), "x", Path("x"), identity)
    manifest = {"command": "score", "flags": {"quiet": True}, MADE: made_of(args, {}), **manifest}
    return finished_shards.is_finished(args, shard, manifest)


def test_input_without_a_version_is_never_finished():
    assert finished({"size": 3, "ETag": "x"}, {"input_identity": {"size": 3, "ETag": "x"}})
    assert not finished({"size": 3}, {"input_identity": {"size": 3}})
    assert not finished({"size": 3, "ETag": ""}, {"input_identity": {"size": 3, "ETag": ""}})


def test_files_of_one_size_and_time_in_two_folders_differ_by_their_bytes(tmp_path):
    """An archive may give all files one time; the same relative words may mean two folders."""
    for name in "ab":
        (tmp_path / name).write_text(name)
    identity = {"size": 1, "mtime_ns": "5"}
    digest = file_digest(tmp_path / "a")
    args = argparse.Namespace(force=False, quiet=True, command="score")
    manifest = {"input_identity": identity, "input_sha256": digest, MADE: made_of(args, {})}
    manifest |= {"command": "score", "flags": {"input": "in"}, "input_path": str(tmp_path / "a")}

    def is_finished(name):
        shard = shard_files.Shard(tmp_path / name, "x", Path("x"), identity)
        return finished_shards.is_finished(args, shard, manifest)

    args.input = "in"
    assert is_finished("a")
    with pytest.raises(InputError, match="another input"):
        is_finished("b")


def test_missing_digests_are_not_equal():
    before, now = {"size": 3, "mtime_ns": "1"}, {"size": 3, "mtime_ns": "2"}
    assert not finished(now, {"input_identity": before, "input_sha256": None})


@pytest.mark.parametrize(
    ("environment", "more", "expected"),
    [
        ({}, ("--shard", "1/2"), ["b.jsonl.gz"]),
        ({}, ("--shard", "2/3"), ["sub/c.csv"]),
        ({"TASK_ID": "7", "TASK_COUNT": "3", "TASK_MIN": "5"}, (), ["sub/c.csv"]),
        ({"TASK_ID": "1", "TASK_COUNT": "3", "TASK_MIN": "0"}, (), ["b.jsonl.gz"]),
        ({"TASK_ID": "12", "TASK_COUNT": "2", "TASK_MIN": "10", "TASK_STEP": "2"}, (), [NAMES[1]]),
        ({"TASK_ID": "1", "TASK_COUNT": "3"}, ("--shard", "0/3"), ["a.jsonl"]),
        ({"INDEX": "2", "COUNT": "3"}, (), ["sub/c.csv"]),
    ],
)
def test_worker_scores_its_own_shards(
    run, data, tmp_path, monkeypatch, environment, more, expected
):
    for name, value in environment.items():
        kubernetes = {"INDEX": "JOB_COMPLETION_INDEX", "COUNT": "JOB_COMPLETIONS"}
        monkeypatch.setenv(kubernetes.get(name, f"SLURM_ARRAY_{name}"), value)
    assert run(*words(data, tmp_path / "out", *more)).code == 0
    assert written(tmp_path / "out") == expected


def test_more_workers_than_shards_leave_one_without_work(run, data, tmp_path, monkeypatch):
    with without_model(monkeypatch):
        ran = run(*words(data, tmp_path / "out", "--shard", "3/4"))
    assert ran.code == 0
    assert "done     0 of 0 files, shard 3/4" in ran.out


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_COUNT"),
        ({"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "3"}, "found shard 9 of 3"),
        ({"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETIONS"),
        (
            {f"SLURM_ARRAY_TASK_{name}": text for name, text in zip(SLURM, "430", strict=True)},
            "found shard 4 of 3",
        ),
    ],
)
def test_incomplete_variables_of_a_scheduler_are_refused(
    run, data, tmp_path, monkeypatch, environment, message
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = run(*words(data, tmp_path / "out"))
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize("text", ["3/3", "-1/2", "1", "1/", "a/b", "0/0"])
def test_shard_that_does_not_exist_is_refused(run, data, tmp_path, text):
    ran = run(*words(data, tmp_path / "out"), f"--shard={text}")
    assert ran.code == 2
    assert "expected K/N" in ran.err


def test_second_worker_with_the_same_shard_is_refused_while_the_first_runs(run, data, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with contextlib.closing(open_database(default_path(out / "a.jsonl"), create=True)):
        ran = run(*words(data / "a.jsonl", out))
    assert ran.code == 2
    assert "another run holds it" in ran.err
    assert written(out) == []
    assert run(*words(data / "a.jsonl", out)).code == 0


def test_unusable_shard_does_not_stop_the_others(run, data, tmp_path):
    (data / "a.jsonl").write_text("no JSON\n")
    ran = run(*words(data, tmp_path / "out"))
    assert ran.code == 1
    assert ran.err.startswith(f"failed: a.jsonl: {data / 'a.jsonl'}:1: not JSON")
    assert ran.err.count("\n") == 1
    assert "done     2 of 3 files, 0 were finished, 1 failed" in ran.out
    assert written(tmp_path / "out") == list(NAMES[1:])


def test_failed_items_give_exit_code_1_and_a_finished_shard(run, data, tmp_path):
    line = {"context": "a", "continuation": " too long" * 10_000}
    (data / "a.jsonl").write_text(json.dumps(line) + '\n{"continuation": "x"}\n')
    ran = run(*words(data, tmp_path / "out"))
    assert ran.code == 1
    assert "shard    a.jsonl, with failed items" in ran.out
    again = run(*words(data, tmp_path / "out"))
    assert "3 were finished" in again.out
    assert "shard    a.jsonl, finished before with failed items" in again.out
    assert again.code == 1


@pytest.mark.parametrize("source", [["a.jsonl", "b.jsonl.gz"], ["*.jsonl*"]])
def test_several_inputs_need_a_folder(run, data, tmp_path, source):
    sources = [data / name for name in source]
    ran = run("score", "--model", QWEN, "--input", *sources, "--output", tmp_path / "out.jsonl")
    assert ran.code == 2
    assert "--output FOLDER/ with a slash" in ran.err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        ("in", "out.jsonl", "in: found a folder, whose files give one output each; give --output"),
        ("s3://bucket/in/", "out.jsonl", "--input s3://bucket/in: found a folder, whose files"),
        ("in/a.jsonl", "in", "in: found a folder, expected the name of a file, or "),
        ("in/a.jsonl", "https://host/x?sig=SECRET", "https://host/x?...: found an address"),
        ("in/a.jsonl", "az://c/x.jsonl", "expected a local path, or an address of gs://, s3://"),
    ],
)
def test_folder_without_a_slash_and_address_that_is_not_written(
    run, data, monkeypatch, source, output, message
):
    monkeypatch.chdir(data.parent)
    monkeypatch.setattr(remote, "_store", pytest.fail)
    ran = run("score", "--model", QWEN, "--input", source, "--output", output)
    assert ran.code == 2
    assert message in ran.err
    assert "SECRET" not in ran.err


def test_two_inputs_of_one_name_and_an_empty_folder_are_refused(run, data, tmp_path):
    (data / "sub/a.jsonl").write_text("{}")
    ran = run(*words([data / "a.jsonl", data / "sub/a.jsonl"], tmp_path / "out"))
    assert "two inputs have the name a.jsonl" in ran.err
    (tmp_path / "empty").mkdir()
    ran = run(*words(tmp_path / "empty", tmp_path / "out"))
    assert (ran.code, "found no file" in ran.err) == (2, True)


def test_systems_whose_output_is_an_array(run, data, tmp_path):
    item = {"question": "Where is Oslo?", "paths": [["Oslo", "in", "Norway"]]}
    for name in ("p.json", "q.jsonl.gz"):
        text = json.dumps([item] if name == "p.json" else item).encode()
        (data / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    out = tmp_path / "out"
    ran = run("paths", "--model", QWEN, "--quiet", "--no-html", "--input", data / "p.json",
              data / "q.jsonl.gz", "--output", f"{out}/")  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    [found] = json.loads((out / "q.jsonl.json").read_text())
    assert found["question"] == item["question"]
    assert (out / "p.json").is_file()


def test_standard_input_is_read(run, tmp_path, monkeypatch):
    lines = '{"continuation": "a b"}\n{"continuation": "c d"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    out = tmp_path / "out.jsonl"
    assert run("score", "--model", QWEN, "--quiet", "--input", "-", "--output", out).code == 0
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [1, 2]
    manifest = json.loads((tmp_path / "out.jsonl.run.json").read_text())
    assert manifest["flags"]["input"] == "-"


def test_fault_of_standard_input_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no JSON\n")))
    ran = run("score", "--model", QWEN, "--input", "-", "--output", tmp_path / "out.jsonl")
    assert ran.code == 2
    assert "error: -:1: not JSON" in ran.err


@pytest.mark.parametrize("words", [("-",), ("s3://bucket/x.json",)])
def test_copied_input_without_output_is_refused(run, words):
    for command in (["self-certainty"], ["usc-generate", "-n", 2]):
        ran = run(*command, "--model", QWEN, "--input", *words)
        assert ran.code == 2
        assert f"--input {words[0]}: the default output is next to the input" in ran.err


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("s3://bucket/x.jsonl", "s3://bucket/x.jsonl"),
        ("s3://bucket/x.jsonl", "S3://bucket//x.jsonl"),
        ("gs://bucket/x.jsonl.run.json", "gcs://bucket/x.jsonl"),
        ("s3://bucket/d/x.jsonl", "s3://bucket/d/"),
    ],
)
def test_remote_output_that_is_the_input_is_refused(run, monkeypatch, source, output):
    monkeypatch.setattr(shard_files, "identity_of", lambda _: {"size": 3, "ETag": "x"})
    monkeypatch.setattr(shards, "write_listing", pytest.fail)
    ran = run("score", "--model", QWEN, "--input", source, "--output", output)
    assert ran.code == 2
    assert "is an input of this run" in ran.err


def test_output_that_is_the_input_of_another_shard_is_refused(run, data):
    for name in ("t.txt", "t.txt.jsonl"):
        (data / name).write_text('{"continuation": "x"}')
    ran = run(*words([data / "t.txt", data / "t.txt.jsonl"], data))
    assert ran.code == 2
    assert (data / "t.txt.jsonl").read_text() == '{"continuation": "x"}'


def test_shards_that_name_different_models_are_scored_by_their_own(run, tmp_path, monkeypatch):
    source = tmp_path / "in"
    source.mkdir()
    for name, model in (("a.json", QWEN), ("b.json", "demo"), ("c.json", "demo")):
        item = {"input": "Say one.", "output": ["One."], "generator": model}
        (source / name).write_text(json.dumps([item]))
    command = ("self-certainty", "--quiet", "--input", source, "--output", f"{tmp_path}/out/")
    assert run(*command).code == 0
    manifests = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("out/*.run.json"))]
    assert [manifest["flags"]["model"] for manifest in manifests] == [None] * 3
    weights = [manifest["model"]["model"] for manifest in manifests]
    assert weights[0] != weights[1] == weights[2]
    with without_model(monkeypatch):
        again = run(*command)
    assert (again.code, "3 were finished" in again.out) == (0, True), again.err


def names_of(source, output, *, command="score"):
    """Names of the shards -> their outputs' names, without a run."""
    args = argparse.Namespace(command=command, output=remote.stage(str(output)))
    sources = source if isinstance(source, list) else [source]
    found = shard_files.shards_of(args, [remote.stage(str(path)) for path in sources])
    return {shard.name: shard.output.name for shard in found}


@pytest.mark.parametrize(
    ("names", "command"),
    [(("a.txt", "a.txt.jsonl"), "score"), (("a.json", "a.json.gz"), "select")],
)
def test_inputs_of_one_output_are_refused(tmp_path, names, command):
    for name in names:
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=f"{names[0]} and {names[1]} have one output"):
        names_of(tmp_path, tmp_path / "out", command=command)


@pytest.mark.parametrize("others", [(), ("d2/x.jsonl",)])
def test_names_do_not_depend_on_the_other_files(tmp_path, others):
    for name in ("d1/x.jsonl", *others):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("x")
    assert list(names_of(tmp_path / "*/x.jsonl", tmp_path / "out")) == ["d1/x.jsonl", *others]


def test_pattern_of_folders_in_a_store(monkeypatch):
    found = [remote.RemoteFile("s3://b/data/d1/x.jsonl", {"size": 1, "ETag": "x"})]
    monkeypatch.setattr(remote, "find", {"s3://b/data/*/x.jsonl": found}.__getitem__)
    assert list(names_of("s3://b/data/*/x.jsonl", "s3://b/out/")) == ["d1/x.jsonl"]
    assert not shard_files.is_pattern(remote.stage("https://host/x.jsonl?sign=1"))


def test_folder_leaves_out_outputs_hidden_folders_and_folders_named_as_files(tmp_path):
    for name in ("a.jsonl", "out/b.jsonl", "out2/c.jsonl", ".git/d.json", "x/_temporary/e.csv",
                 "s.parquet/part.parquet"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    expected = ["a.jsonl", "out2/c.jsonl", "s.parquet/part.parquet"]
    assert list(names_of(tmp_path, tmp_path / "out")) == expected
    assert "out/b.jsonl" not in names_of(tmp_path / "**/*.jsonl", tmp_path / "out")
    assert list(names_of(tmp_path / "out", tmp_path)) == ["b.jsonl"]


def test_folder_of_a_store_leaves_out_outputs(monkeypatch):
    names = ("a.jsonl", "out/b.jsonl", ".x/c.jsonl")
    found = [remote.RemoteFile(f"s3://b/d/{name}", {"size": 1, "ETag": "x"}) for name in names]
    monkeypatch.setattr(remote, "find", lambda _: found)
    assert list(names_of("s3://b/d/", "s3://b/d/out/")) == ["a.jsonl"]


def test_listing_has_no_deleted_input_and_keeps_those_of_other_runs(run, data, tmp_path):
    out = tmp_path / "out"
    assert run(*words(data / "*.jsonl*", out)).code == 0
    assert run(*words(data / "sub", out)).code == 0
    (data / "b.jsonl.gz").unlink()
    assert run(*words(data / "*.jsonl*", out)).code == 0
    names = {name: output for listing in listed(out) for name, output in listing.items()}
    assert names == {"a.jsonl": "a.jsonl", "c.csv": "c.csv"}
    (out / "_shards.json").write_text('{"b.jsonl.gz": "b.jsonl.gz"}')  # of an earlier version
    assert len(shard_files.listings(out)) == 2


def test_page_of_all_files_is_refused(run, data, tmp_path):
    command = [word for word in words(data, tmp_path / "out") if word != "--no-html"]
    ran = run(*command, "--html", tmp_path / "page.html")
    assert (ran.code, "each would replace this one" in ran.err) == (2, True)


ANSWERS = [{"input": f"Say {k}.", "output": ["One.", "Two."]} for k in range(3)]


def certainty(source, output, *more):
    return ("self-certainty", "--model", QWEN, "--quiet", "--input", source,
            "--output", f"{output}/", *more)  # fmt: skip


@pytest.mark.parametrize("change", ["flags", "input"])
def test_changed_array_is_computed_without_its_old_output(run, tmp_path, change):
    source, out = tmp_path / "a.json", tmp_path / "out"
    source.write_text(json.dumps(ANSWERS))
    assert run(*certainty(source, out)).code == 0
    if change == "input":
        source.write_text(json.dumps([{"input": "Another.", "output": ["Three."]}]))
    more = ("--reproducible", "--force") if change == "flags" else ()
    ran = run(*certainty(source, out, *more))
    assert (ran.code, ran.err) == (0, "")
    assert len(json.loads((out / "a.json").read_text())) == (3 if change == "flags" else 1)


@pytest.mark.parametrize("command", [words, certainty])
def test_new_output_never_lies_beside_the_old_manifest(run, tmp_path, monkeypatch, command):
    source, out = tmp_path / "a.json", tmp_path / "out"
    item = {"context": "A", "continuation": " b"} if command is words else ANSWERS[0]
    source.write_text(json.dumps([item]))
    assert run(*command(source, out)).code == 0
    [manifest] = out.glob("*.run.json")

    def stop(*_: object, **__: object) -> None:
        raise InputError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(execute, "write_manifest", stop)
        assert run(*command(source, out, "--reproducible", "--force")).code == 2
    assert not manifest.exists()
    assert run(*command(source, out, "--reproducible")).code == 0
    assert json.loads(manifest.read_text())["flags"]["reproducible"] is True


def test_processes_of_one_run_have_no_shard_of_their_own(run, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert run(*words(data / "a.jsonl", out)).code == 0
    monkeypatch.setattr(distributed_flags, "join_run", lambda _: contextlib.nullcontext())
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    monkeypatch.setenv("JOB_COMPLETIONS", "2")
    monkeypatch.setattr(processes, "is_first", lambda: False)
    first = [[True, False, False, "float32"]] * 3
    monkeypatch.setattr(processes, "broadcast_from_first", lambda _: json.dumps(first).encode())
    with without_model(monkeypatch):
        ran = run(*words(data, out, "--distributed"))
    assert "done     0 of 3 files, 3 were finished" in ran.out


def test_copy_of_a_journal_that_cannot_be_removed_fails_no_shard(run, tmp_path, monkeypatch):
    def stop(_: object) -> None:
        raise InputError("no right to delete")

    def finish(begun):
        assert begun is not None

    (tmp_path / "a.jsonl").write_text('{"continuation": "a b"}')
    monkeypatch.setenv("JAXSCORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "identity", lambda _: None)
    monkeypatch.setattr(remote, "read_bytes", lambda _: None)
    monkeypatch.setattr(remote, "remove", stop)
    monkeypatch.setattr(upload.Upload, "finish", finish)
    ran = run("score", "--model", QWEN, "--input", tmp_path / "a.jsonl", "--no-html",
              "--output", "s3://bucket/a.jsonl")  # fmt: skip
    assert ran.code == 0
    assert "the copy of the journal is left behind: no right to delete" in ran.err

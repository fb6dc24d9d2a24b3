"""Inputs without an item: finished shards without records, which replace what was there."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from jaxscore.cli import model_flags
from tests.cli.conftest import QWEN
from tests.io.test_remote import content, store  # noqa: F401

LINE = '{"id": "x", "context": "The cat", "continuation": " sat"}\n'
TABLE = pyarrow.table({"id": ["y"], "continuation": ["A dog"]})


def score(source, output, *more):
    return ("score", "--model", QWEN, "--quiet", "--reproducible", "--input", source,
            "--output", output, *more)  # fmt: skip


@pytest.fixture
def data(tmp_path):
    """A shard with a line, and one of each form without any."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text(LINE)
    (folder / "b.jsonl").write_text("\n")
    (folder / "c.jsonl.gz").write_bytes(b"")
    (folder / "d.csv").write_text("id,context,continuation\n")
    pyarrow.parquet.write_table(TABLE.slice(0, 0), folder / "e.parquet")
    return tmp_path


def test_empty_inputs_are_finished_shards(run, data, monkeypatch):
    words = [word for word in score(data / "in", f"{data}/out/") if word != "--quiet"]
    ran = run(*words, "--no-html")
    assert ran.code == 0
    assert f"{data}/in/b.jsonl: found no item; its output is empty\n" in ran.err
    assert "done     5 of 5 files, 0 were finished, 0 failed" in ran.out
    out = data / "out"
    assert (out / "b.jsonl").read_bytes() == b""
    assert (out / "d.csv").read_text().startswith("id,token_ids,tokens,logprob,")
    schema = pyarrow.parquet.read_schema(out / "e.parquet")
    assert schema.names[:3] == ["id", "continuation", "token_ids"]
    with monkeypatch.context() as patch:
        patch.setattr(model_flags, "load_scorer", pytest.fail)
        assert "5 were finished" in run(*words, "--no-html").out
    for name in ("d.csv", "e.parquet"):  # of another form than the merged one, if they had records
        (data / "in" / name).unlink()
        (out / name).unlink()
    assert run(*words, "--no-html").code == 0
    ran = run("merge", out, "--output", data / "m.jsonl")
    assert (ran.code, "input files without an item: 2\n" in ran.err) == (0, True)
    assert "done     1 request of 3 files, 0 failed" in ran.out
    assert run(*score(data / "in/a.jsonl", data / "one.jsonl")).code == 0
    assert (data / "m.jsonl").read_bytes() == (data / "one.jsonl").read_bytes()
    manifest = json.loads((data / "m.jsonl.run.json").read_text())
    assert (manifest["empty"], list(manifest["shards"])) == (
        ["b.jsonl", "c.jsonl.gz"],
        ["a.jsonl", "b.jsonl", "c.jsonl.gz"],
    )


def test_folder_of_empty_inputs_is_not_merged(run, data):
    assert run(*score(data / "in/b.jsonl", f"{data}/out/")).code == 0
    ran = run("merge", data / "out", "--output", data / "m.jsonl")
    assert (ran.code, "found 1 empty and 0 unfinished shards" in ran.err) == (2, True)
    assert not (data / "m.jsonl").exists()
    (data / "in/a.jsonl").rename(data / "in/z.jsonl")
    assert run(*score(data / "in", f"{data}/out/", "--shard", "0/5")).code == 0  # b.jsonl
    ran = run("merge", data / "out", "--output", data / "m.jsonl")
    message = "found 1 empty and 4 unfinished shards, expected one with an item; finish the run"
    assert (ran.code, message in ran.err) == (2, True)


def test_single_empty_input_is_refused(run, data):
    ran = run(*score(data / "in/b.jsonl", data / "one.jsonl"))
    assert (ran.code, "b.jsonl: the file is empty, expected one" in ran.err) == (2, True)
    assert not (data / "one.jsonl").exists()


def test_array_without_items(run, tmp_path):
    (tmp_path / "a.json").write_text("[]")
    ran = run("self-certainty", "--model", QWEN, "--quiet", "--input", tmp_path / "a.json",
              "--output", f"{tmp_path}/out/")  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert json.loads((tmp_path / "out/a.json").read_text()) == []


def test_empty_documents_are_finished_whatever_their_ending(run, tmp_path):
    (tmp_path / "a.ndjson").write_text("")
    ran = run("perplexity", "--model", QWEN, "--quiet", "--input", tmp_path / "a.ndjson",
              "--output", f"{tmp_path}/out/")  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "out/a.ndjson").read_bytes() == b""


@pytest.mark.parametrize("is_remote", [False, True])
def test_outputs_of_an_input_that_became_empty_are_replaced(run, tmp_path, store, is_remote):  # noqa: F811
    source, out = tmp_path / "a.jsonl", tmp_path / "out"

    def files():
        if not is_remote:
            return {path.name: path.read_bytes() for path in out.glob("a.*")}
        return {name[5:]: data for name, data in content(store).items() if "/o/a." in name}

    def scored(text):
        source.write_text(text)
        if is_remote:
            store.pipe_file("/in/a.jsonl", text.encode())
        words = ("faulty://in/a.jsonl", "faulty://b/o/") if is_remote else (source, f"{out}/")
        assert run(*score(*words)).code == 0
        return files()

    reports = {f"a.jsonl.report.{kind}" for kind in ("html", "json", "md")}
    names = {"a.jsonl", "a.jsonl.run.json", *reports}
    first = scored(LINE)
    assert first.keys() == names
    empty = scored("")
    assert empty.keys() == names - reports
    assert empty["a.jsonl"] == b""
    again = scored(LINE + LINE.replace("x", "z"))
    assert again.keys() == names
    assert again["a.jsonl"].startswith(first["a.jsonl"])
    assert again["a.jsonl"].count(b"\n") == 2


@pytest.mark.parametrize("is_remote", [False, True])
def test_shard_whose_input_became_unusable_is_not_finished(run, tmp_path, store, is_remote):  # noqa: F811
    place = "faulty://b" if is_remote else tmp_path

    def scored(name, text, *more):
        (tmp_path / f"in-{name}").mkdir(exist_ok=True)
        (tmp_path / f"in-{name}/{name}.jsonl").write_text(text)
        if is_remote:
            store.pipe_file(f"/b/in-{name}/{name}.jsonl", text.encode())
        words = score(f"{place}/in-{name}/{name}.jsonl", f"{place}/o/", "--no-html", *more)
        return run(*words).code

    assert (scored("a", LINE), scored("b", LINE.replace("x", "y"))) == (0, 0)
    merge = ("merge", f"{place}/o/", "--output", tmp_path / "m.jsonl", "--no-html")
    assert run(*merge).code == 0
    for more in ((), ("--force",)):
        assert scored("a", "{broken", *more) == 2
        ran = run(*merge)
        assert (ran.code, "failed: a.jsonl: is not finished" in ran.err) == (1, True)
        assert scored("a", LINE) == 0
        assert run(*merge).code == 0


def test_array_whose_input_became_unusable_is_made_again(run, tmp_path):
    source = tmp_path / "a.jsonl"

    def scored(text):
        source.write_text(text)
        words = ("self-certainty", "--model", QWEN, "--quiet", "--input", source)
        return run(*words, "--output", f"{tmp_path}/out/", "--no-html").code

    items = [json.dumps({"input": f"Say {k}.", "output": ["One."]}) for k in range(3)]
    assert [scored(text) for text in ("\n".join(items[:2]), "{broken", items[2])] == [0, 2, 0]
    [record] = json.loads((tmp_path / "out/a.jsonl.json").read_text())
    assert record["input"] == "Say 2."

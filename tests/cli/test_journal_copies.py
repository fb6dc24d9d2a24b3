"""Journals of remote outputs: a worker on another machine goes on from the copy in the store."""

import json
import shutil
import threading
import time
from types import SimpleNamespace

import numpy as np

from jaxscore.cli import execute
from jaxscore.errors import InputError
from jaxscore.io import remote, upload
from jaxscore.journal import Journal
from jaxscore.journal.files import add_rows, default_path, list_models
from jaxscore.plan.requests import GeneratedTokens, TokenRequest
from tests.cli.conftest import QWEN
from tests.io.test_remote import Faulty, content, store  # noqa: F401

LINES = '{"continuation": "one two"}\n{"continuation": "three four five"}\n'
COPY = "/b/.jaxscore/out.jsonl.journal"


def test_worker_on_another_machine_goes_on_from_the_copy(run, store, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "in.jsonl").write_text(LINES)
    words = ("score", "--model", QWEN, "--quiet", "--no-html", "--input", tmp_path / "in.jsonl",
             "--output", "faulty://b/out.jsonl")  # fmt: skip
    finished = execute.run_system

    def interrupted(*args, **options):
        finished(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(execute, "run_system", interrupted)
        assert run(*words).code == 130
    assert list(content(store)) == [COPY]
    shutil.rmtree(tmp_path / "cache/remote")
    assert run(*words).code == 0
    written = ("", ".run.json", ".report.md", ".report.json")
    assert set(content(store)) == {f"/b/out.jsonl{ending}" for ending in written}
    manifest = json.loads(store.cat_file("/b/out.jsonl.run.json"))
    assert manifest["counts"]["texts_from_journal"] == manifest["counts"]["texts"] == 2


def test_journal_is_copied_while_it_grows_and_faults_of_the_store_pass(store, tmp_path):  # noqa: F811
    path = default_path(remote.stage("faulty://b/out.jsonl"))
    journal = Journal(path, {"model": "m"})
    request = TokenRequest(np.array([1, 2], np.int32), 5, 0.0, 1.0, 0, (), ())
    copies = upload._Copies(path, lambda: SimpleNamespace(journal=journal))
    copies.copy()
    assert content(store) == {}
    journal.write_texts([(request, GeneratedTokens(np.array([3], np.int32), "length"))])
    Faulty.faults[:] = [InputError("refused")]
    copies.copy()
    assert content(store) == {}
    copies.copy()
    assert list(content(store)) == [COPY]
    Faulty.faults[:] = [AssertionError("copied again, and nothing is new")]
    copies.copy()
    journal.close()
    (tmp_path / "copy").write_bytes(content(store)[COPY])
    [found] = list_models(tmp_path / "copy")
    assert found.n_texts == 1
    assert not list(path.parent.glob("*.part"))


def test_journal_is_in_the_store_before_the_run_ends(store, monkeypatch):  # noqa: F811
    """A worker that is killed, and loses its machine, has left this copy."""
    monkeypatch.setattr(upload, "PERIOD", 0.01)
    path = default_path(remote.stage("faulty://b/out.jsonl"))
    with upload.copied_journal(path, lambda: SimpleNamespace(journal=journal), add_rows):
        journal = Journal(path, {"model": "m"})
        request = TokenRequest(np.array([1, 2], np.int32), 5, 0.0, 1.0, 0, (), ())
        journal.write_texts([(request, GeneratedTokens(np.array([3], np.int32), "length"))])
        deadline = time.monotonic() + 30
        while COPY not in content(store):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    journal.close()


def test_worker_on_its_first_machine_again_has_the_rows_of_both(store):  # noqa: F811
    """A machine that was away still has its journal, which the other one's copy goes beyond."""
    path = default_path(remote.stage("faulty://b/out.jsonl"))

    def write(*ids):
        with upload.copied_journal(path, lambda: None, add_rows):
            journal = Journal(path, {"model": "m"})
        for id in ids:
            request = TokenRequest(np.array([1, id], np.int32), 5, 0.0, 1.0, 0, (), ())
            journal.write_texts([(request, GeneratedTokens(np.array([id], np.int32), "length"))])
        upload._Copies(path, lambda: SimpleNamespace(journal=journal)).copy()
        journal.close()
        return list_models(path)[0].n_texts

    assert write(1) == 1
    first = path.read_bytes()
    path.unlink()
    assert write(2, 3) == 3
    path.write_bytes(first)
    assert write(4) == 4
    store.pipe_file(COPY, b"no journal")
    assert write(5) == 5
    path.unlink()
    assert write() == 5


def test_copy_of_the_second_of_two_workers_is_removed(run, store, tmp_path, monkeypatch):  # noqa: F811
    (tmp_path / "in.jsonl").write_text(LINES)
    words = ("score", "--model", QWEN, "--quiet", "--no-html", "--input", tmp_path / "in.jsonl",
             "--output", "faulty://b/out.jsonl")  # fmt: skip
    finish = upload.Upload.finish

    def finish_second(own):
        for name in ("out.jsonl", "out.jsonl.run.json"):
            store.pipe_file(f"/b/{name}", b"of the first worker")
        store.pipe_file(COPY, b"of this one")
        finish(own)

    monkeypatch.setattr(upload.Upload, "finish", finish_second)
    ran = run(*words)
    assert (ran.code, "another worker wrote it" in ran.err) == (2, True)
    assert set(content(store).values()) == {b"of the first worker"}


def test_thread_ends_with_the_block(store):  # noqa: F811
    path = default_path(remote.stage("faulty://b/out.jsonl"))
    with upload.copied_journal(path, lambda: None, add_rows):
        assert "journal-copies" in {thread.name for thread in threading.enumerate()}
    assert "journal-copies" not in {thread.name for thread in threading.enumerate()}

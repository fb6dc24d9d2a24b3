"""One run holds a journal, by a lock that ends with it and leaves no file."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxscore.errors import InputError
from jaxscore.journal import Journal, files
from tests.conftest import CASES
from tests.journal.test_database import ABOUT, scores_of, sequences

HOLD = """
import sys
from pathlib import Path
from jaxscore.journal.files import open_database
database = open_database(Path(sys.argv[1]), create=sys.argv[2] == "create")
print("held", flush=True)
sys.stdin.read()
database.close()
"""


@contextlib.contextmanager
def another_process(path: Path, how: str = "look"):
    """Holds the journal, without having written to it."""
    command = [sys.executable, "-c", HOLD, str(path), how]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.stdin.close()
            assert process.wait(60) == 0


@pytest.fixture
def path(tmp_path):
    """A journal with one row."""
    path = tmp_path / ".jaxscore/run.journal"
    with contextlib.closing(Journal(path, ABOUT)) as journal:
        journal.write_scores([(sequences(1)[0], scores_of(sequences(1)[0], 1))])
    return path


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("how", ["look", "create"])
def test_an_open_journal_is_locked(path, how):
    if how == "create":
        path.unlink()
    with another_process(path, how):
        for read in (lambda: files.list_models(path), lambda: files.prune(path, 0)):
            with pytest.raises(InputError, match="another run holds it; try again"):
                read()
        with pytest.raises(InputError, match=r"another run holds it; wait .* --journal PATH"):
            Journal(path, ABOUT).read_scores([])
    assert [one.name for one in path.parent.iterdir()] == ["run.journal"]
    assert len(files.list_models(path)) == (how == "look")


def test_a_killed_process_releases_the_lock(path):
    with another_process(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert files.list_models(path)[0].n_sequences == 1
    assert [one.name for one in path.parent.iterdir()] == ["run.journal"]


@pytest.mark.slow
def test_checking_the_path_drops_no_lock(path):
    """POSIX drops all locks of a process on a file when it closes the file, however opened."""
    with contextlib.closing(Journal(path, ABOUT)) as journal:
        journal.read_scores([])
        files.check_path(path)
        assert files.find_journal(path) == path
        with pytest.raises(InputError, match="another run holds it"):
            Journal(path, ABOUT).read_scores([])
        command = [sys.executable, "-m", "jaxscore", "journal", "info", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "another run holds it; try again when that run has ended" in done.stderr


def test_a_file_replaced_before_it_is_locked_is_not_used(path, monkeypatch):
    real, moved = files._check_or_create, []

    def removed(database, create):
        real(database, create)
        if not moved:  # as `prune --keep 0` of another process does, and then a run begins
            moved.append(path.rename(path.with_name("removed")))
            with contextlib.closing(files.open_database(path, create=True)):
                pass

    monkeypatch.setattr(files, "_check_or_create", removed)
    with contextlib.closing(Journal(path, ABOUT)) as journal:
        assert journal.read_scores(sequences(1)[:1]) == {}
        journal.write_scores([(sequences(1)[0], scores_of(sequences(1)[0], 1))])
    assert files.list_models(path)[0].n_sequences == 1
    assert files.list_models(path.with_name("removed"))[0].n_sequences == 1


def test_prune_leaves_the_log_of_another_run(path, monkeypatch):
    """A run that begins as soon as the name is free keeps what it writes."""
    real, begun = files.remove_emptied, []

    def begins(folder):
        begun.append(Journal(path, ABOUT))
        begun[0].write_scores([(one, scores_of(one, 1)) for one in sequences(3)[:3]])
        real(folder)

    monkeypatch.setattr(files, "remove_emptied", begins)
    files.prune(path, 0)
    log = path.with_name(f"{path.name}-wal")
    assert log.exists()
    begun[0].close()
    assert files.list_models(path)[0].n_sequences == 3


@pytest.mark.parametrize(
    ("output", "journal"),
    [
        ("out.jsonl", ".jaxscore/out.jsonl.journal"),
        ("new/out.jsonl", "new/.jaxscore/out.jsonl.journal"),
        ("folder", "folder/.jaxscore/jaxscore.journal"),
    ],
)
def test_default_path_is_beside_the_output(tmp_path, output, journal):
    (tmp_path / "folder").mkdir()
    assert files.default_path(tmp_path / output) == tmp_path / journal


def test_a_name_that_is_too_long_is_refused():
    for use in (files.check_path, files.find_journal):
        with pytest.raises(InputError, match="File name too long"):
            use(Path("x" * 300))


def test_a_file_in_place_of_the_folder_is_refused_before_the_model_loads(tmp_path):
    (tmp_path / ".jaxscore").write_text("mine")
    (tmp_path / "in.jsonl").write_text('{"context": "a", "continuation": " b"}\n')
    words = ("score", "--model", CASES / "models/tiny-gpt2", "--input", tmp_path / "in.jsonl")
    command = [sys.executable, "-m", "jaxscore", *words, "--output", tmp_path / "out.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{tmp_path / '.jaxscore'} is a file, expected a folder" in done.stderr
    assert (tmp_path / ".jaxscore").read_text() == "mine"


def test_a_file_system_without_locks_is_refused_as_such(path, monkeypatch):
    """SQLite answers `busy` in both cases."""

    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with another_process(path):
        monkeypatch.setattr(files.fcntl, "lockf", unsupported)
        with pytest.raises(InputError) as problem:
            Journal(path, ABOUT).read_scores([])
        with pytest.raises(InputError, match="its file system does not support locks"):
            files.list_models(path)
    said = str(problem.value)
    assert "its file system does not support locks (No locks available)" in said
    assert "--journal PATH, or --journal off" in said
    assert "another run" not in said


@pytest.mark.parametrize("replaced", [False, True])
def test_a_journal_removed_during_a_run_is_lost(path, replaced):
    with contextlib.closing(Journal(path, ABOUT)) as journal:
        assert not journal.is_lost
        journal.read_scores([])
        assert not journal.is_lost
        path.unlink()
        if replaced:
            path.touch()
        journal.write_scores(
            [(sequences(1)[0], scores_of(sequences(1)[0], 1))]
        )  # which SQLite allows
        assert journal.is_lost

"""What killed runs leave beside an output goes with the next run of it, and nothing else does."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from jaxscore.io import temporary
from jaxscore.io.atomic import atomic

WRITE = """
import sys, time
from pathlib import Path
from jaxscore.io import temporary
from jaxscore.io.atomic import atomic
with atomic(Path(sys.argv[1])) as file, temporary.folder_beside(Path(sys.argv[1])) as folder:
    file.write("half")
    file.flush()
    (folder / "part").write_text("half")
    print("ready", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def running(tmp_path):
    """A process that is writing `out`, as a file and as a folder."""
    command = [sys.executable, "-c", WRITE, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def write(path, text="whole"):
    with atomic(path) as file:
        file.write(text)


def names(folder):
    return sorted(one.name for one in folder.iterdir())


def test_the_next_run_of_the_output_removes_what_a_killed_run_left(tmp_path, running):
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert len(names(tmp_path)) == 2
    write(tmp_path / "other")
    assert len(names(tmp_path)) == 3
    write(tmp_path / "out")
    assert names(tmp_path) == ["other", "out"]
    assert (tmp_path / "out").read_text() == "whole"


def test_what_a_running_process_writes_stays(tmp_path, running):
    before = names(tmp_path)
    write(tmp_path / "out")
    assert names(tmp_path) == [*before, "out"]
    assert running.poll() is None


def test_so_does_what_this_process_writes(tmp_path):
    with atomic(tmp_path / "out") as outer:
        outer.write("outer")
        write(tmp_path / "out", "inner")
        assert len(names(tmp_path)) == 2
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "outer"


def test_files_of_other_hosts_and_of_users_stay(tmp_path, running, monkeypatch):
    """A host that shares the folder may not see the lock of a run on another one."""
    running.kill()
    running.wait()
    left = names(tmp_path)
    monkeypatch.setattr(temporary.socket, "gethostname", lambda: "another")
    for name in (".out.tmp", ".out.mine.tmp", "out.tmp", ".out.12345678.notes"):
        (tmp_path / name).write_text("mine")
    before = names(tmp_path)
    write(tmp_path / "out")
    assert names(tmp_path) == sorted([*before, "out"])
    assert set(left) <= set(before)


def test_files_of_another_boot_stay(tmp_path, running, monkeypatch):
    """Two machines may have one name, and neither may see the other's locks."""
    running.kill()
    running.wait()
    left = names(tmp_path)
    (tmp_path / "boot_id").write_text("another")
    monkeypatch.setattr(temporary, "BOOT", tmp_path / "boot_id")
    write(tmp_path / "out")
    assert names(tmp_path) == sorted([*left, "boot_id", "out"])


def test_without_a_boot_id_the_host_name_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(temporary, "BOOT", tmp_path / "none")
    abandoned = tmp_path / f"{temporary._prefix(tmp_path / 'out')}01234567.tmp"
    abandoned.touch()
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_only_names_that_we_give_are_removed(tmp_path):
    prefix = temporary._prefix(tmp_path / "out")
    kept = [f"{prefix}{rest}.tmp" for rest in ("mine", "0123456", "012345678", "0123456g", "a.b")]
    for name in kept:
        (tmp_path / name).touch()
    write(tmp_path / "out")
    assert names(tmp_path) == sorted([*(os.path.basename(name) for name in kept), "out"])


def test_a_file_on_nfs_is_locked_as_one_that_is_open_for_writing(tmp_path, running, monkeypatch):
    """The folder cannot be opened so, and stays."""
    running.kill()
    running.wait()
    real = temporary.fcntl.flock

    def flock(handle, how):
        if temporary.fcntl.fcntl(handle, temporary.fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(handle, how)

    monkeypatch.setattr(temporary.fcntl, "flock", flock)
    write(tmp_path / "out")
    left = [one for one in tmp_path.iterdir() if one.name != "out"]
    assert [one.is_dir() for one in left] == [True]


def test_without_locks_nothing_is_removed_and_outputs_are_written(tmp_path, running, monkeypatch):
    running.kill()
    running.wait()
    left = names(tmp_path)

    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(temporary.fcntl, "flock", unsupported)
    write(tmp_path / "out")
    assert names(tmp_path) == [*left, "out"]


def test_a_file_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, taken = temporary._lock, []

    def lock(handle):
        if not taken:  # another run finds it unlocked
            [name] = names(tmp_path)
            (tmp_path / name).unlink()
            taken.append(name)
        return real(handle)

    monkeypatch.setattr(temporary, "_lock", lock)
    write(tmp_path / "out")
    assert taken
    assert names(tmp_path) == ["out"]


def test_names_as_long_as_the_file_system_takes(tmp_path):
    for name in ("x" * 255, "é" * 127):
        write(tmp_path / name)
        assert (tmp_path / name).read_text() == "whole"


def test_a_process_that_ends_at_once_can_remove_what_it_writes(tmp_path):
    with temporary.file_beside(tmp_path / "out") as (handle, _):
        with temporary.folder_beside(tmp_path / "folder") as folder:
            (folder / "part").touch()
            temporary.remove_open()
            assert names(tmp_path) == []
        os.close(handle)

"""Results appear whole or not at all, and what killed runs leave goes with the next run."""

import contextlib
import errno
import json
import math
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jaxscore.errors import Held, InputError
from jaxscore.io import atomic as atomic_module
from jaxscore.io.atomic import atomic, remove_unfinished, temporary_folder
from jaxscore.io.json_output import json_number, to_json_value


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "folder" / "out.jsonl"
    with atomic(path) as file:
        file.write("é\n")
        assert not path.exists()
    assert path.read_bytes() == "é\n".encode()
    assert [one.name for one in path.parent.iterdir()] == ["out.jsonl"]


def test_an_existing_file_is_replaced_whole(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old, and longer than the new", encoding="utf-8")
    with atomic(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text(encoding="utf-8").startswith("old")
    assert path.read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, SystemExit, InputError])
def test_a_failure_leaves_nothing_and_keeps_the_old_file(tmp_path, problem):
    def fail(name):
        with atomic(tmp_path / name) as file:
            file.write("half")
            raise problem

    (tmp_path / "old").write_text("kept", encoding="utf-8")
    for name in ("old", "new"):
        with pytest.raises(problem):
            fail(name)
    assert [one.name for one in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_mode_is_what_open_would_give(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic(tmp_path / "out") as file:
            file.write("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == mode


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "out").mkdir()
    with (
        pytest.raises(InputError, match=r"out: found a folder, expected the name of a file"),
        atomic(tmp_path / "out"),
    ):
        pass
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_a_device_is_written_and_not_replaced(tmp_path):
    (tmp_path / "link").symlink_to(os.devnull)
    for path in (tmp_path / "link", Path(os.devnull)):
        with atomic(path) as file:
            file.write("x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert [one.name for one in tmp_path.iterdir()] == ["link"]


def test_a_socket_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket has 108 bytes at most
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("out")
        with (
            pytest.raises(InputError, match=r"found a device or a socket, expected the name"),
            atomic(Path("out")),
        ):
            pass
    assert stat.S_ISSOCK((tmp_path / "out").stat().st_mode)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for place, reason in (
        (tmp_path / "file" / "out", "file is not a folder"),
        (tmp_path / "file" / "deeper" / "out", "Not a directory"),
    ):
        with (
            pytest.raises(InputError, match=rf"out: cannot be written \(.*{reason}\); give"),
            atomic(place),
        ):
            pass
    with (
        pytest.raises(InputError, match=r"cannot be written \(File name too long\)"),
        atomic(tmp_path / ("x" * 300)),
    ):
        pass


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="a folder that even root cannot write")
def test_a_folder_of_the_kernel():
    with (
        pytest.raises(InputError, match=r"^/proc/out: cannot be written"),
        atomic(Path("/proc/out")),
    ):
        pass


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_module.os, "fsync", full)
    with (
        pytest.raises(InputError, match=r"out: cannot be written \(No space left on device\)"),
        atomic(tmp_path / "out") as file,
    ):
        file.write("x")
    assert list(tmp_path.iterdir()) == []


def test_another_operating_system_error_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(FileNotFoundError), atomic(tmp_path / "out"):
        (tmp_path / "absent").read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == []


def test_json_has_neither_nan_nor_infinity():
    assert json_number(None) is None
    assert json_number(math.nan) is None
    assert json_number(math.inf) == "Infinity"
    assert json_number(-math.inf) == "-Infinity"
    assert json_number(0.1) == 0.1

    value = {"a": [math.nan, {"b": -math.inf}], "n": 3, "t": True, "s": "NaN", "z": None, "l": []}
    safe = {"a": [None, {"b": "-Infinity"}], "n": 3, "t": True, "s": "NaN", "z": None, "l": []}
    assert to_json_value(value) == safe
    assert to_json_value(value)["t"] is True
    assert json.loads(json.dumps(to_json_value(value), allow_nan=False)) == safe
    assert math.isnan(value["a"][0])


def test_a_link_stays_and_its_file_keeps_its_mode(tmp_path):
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o640)
    link.symlink_to(target)
    with atomic(link) as file:
        file.write("new")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "new"
    assert target.stat().st_mode & 0o777 == 0o640


WRITE = """
import sys, time
from pathlib import Path
from jaxscore.io.atomic import atomic, temporary_folder
with atomic(Path(sys.argv[1])) as file, temporary_folder(Path(sys.argv[2])) as folder:
    file.write("half")
    file.flush()
    (folder / "part").write_text("half")
    print("ready", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def running(tmp_path):
    """A process that is writing the file `out` and the folder `model`."""
    command = [sys.executable, "-c", WRITE, str(tmp_path / "out"), str(tmp_path / "model")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def write(path, text="whole"):
    with atomic(path) as file:
        file.write(text)


def convert(path):
    with temporary_folder(path) as folder:
        folder.rename(path)


UNFINISHED = [".model.part", ".out.part"]


def names(folder):
    return sorted(one.name for one in folder.iterdir())


def test_the_next_run_of_the_output_removes_what_a_killed_run_left(tmp_path, running):
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert names(tmp_path) == UNFINISHED
    write(tmp_path / "other")
    assert names(tmp_path) == [*UNFINISHED, "other"]
    write(tmp_path / "out")
    convert(tmp_path / "model")
    assert names(tmp_path) == ["model", "other", "out"]
    assert (tmp_path / "out").read_text() == "whole"
    assert names(tmp_path / "model") == []


def test_second_run_of_an_output_is_refused_while_the_first_writes(tmp_path, running):
    for name, run in (("out", write), ("model", convert)):
        with pytest.raises(
            Held, match=rf"{name}: another run is writing it; wait .*\.{name}\.part"
        ):
            run(tmp_path / name)
    assert names(tmp_path) == UNFINISHED
    assert running.poll() is None


def test_so_is_a_second_file_of_one_name_in_a_run(tmp_path):
    with atomic(tmp_path / "out") as outer:
        outer.write("outer")
        with pytest.raises(Held):
            write(tmp_path / "out", "inner")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "outer"


def test_file_that_another_run_needs_for_a_moment_is_awaited(tmp_path, monkeypatch):
    with contextlib.ExitStack() as other:
        other.enter_context(atomic(tmp_path / "out")).write("first")
        monkeypatch.setattr(atomic_module.time, "sleep", lambda _: other.close())
        write(tmp_path / "out", "second")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "second"


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_a_run_does_not_leave_is_not_removed(tmp_path, kind):
    (tmp_path / "mine").write_text("mine")
    if kind == "link":
        (tmp_path / ".out.part").symlink_to(tmp_path / "mine")
    else:
        (tmp_path / ".out.part").mkdir()
    with pytest.raises(Held, match="remove "):
        write(tmp_path / "out")
    assert names(tmp_path) == [".out.part", "mine"]
    assert (tmp_path / "mine").read_text() == "mine"


def test_file_on_nfs_is_locked_as_one_that_is_open_for_writing(tmp_path, running, monkeypatch):
    """The folder cannot be opened so: it stays, and the message names it."""
    running.kill()
    running.wait()
    real = atomic_module.fcntl.flock

    def flock(handle, how):
        if (
            atomic_module.fcntl.fcntl(handle, atomic_module.fcntl.F_GETFL) & os.O_ACCMODE
            == os.O_RDONLY
        ):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(handle, how)

    monkeypatch.setattr(atomic_module.fcntl, "flock", flock)
    write(tmp_path / "out")
    assert names(tmp_path) == [".model.part", "out"]
    with pytest.raises(Held, match=r"remove .*\.model\.part"):
        convert(tmp_path / "model")
    convert(tmp_path / "other")
    assert names(tmp_path) == [".model.part", "other", "out"]


@pytest.fixture
def without_locks(monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(atomic_module.fcntl, "flock", unsupported)


def test_without_locks_what_a_killed_run_left_is_removed(tmp_path, running, without_locks):
    running.kill()
    running.wait()
    write(tmp_path / "out")
    assert names(tmp_path) == [".model.part", "out"]


def test_without_locks_the_later_of_two_runs_is_written_and_the_earlier_one_refused(
    tmp_path, without_locks
):
    with pytest.raises(Held), contextlib.ExitStack() as earlier:  # noqa: PT012
        file = earlier.enter_context(atomic(tmp_path / "out"))
        file.write("earlier" * 1000)
        write(tmp_path / "out", "later")
        file.flush()
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "later"


def test_run_whose_file_was_taken_leaves_that_of_the_other(tmp_path, without_locks):
    with contextlib.ExitStack() as later:
        with pytest.raises(Held), atomic(tmp_path / "out"):
            later.enter_context(atomic(tmp_path / "out")).write("later")
        assert names(tmp_path) == [".out.part"]
    assert (tmp_path / "out").read_text() == "later"


def test_file_that_is_removed_before_it_is_locked_is_created_again(tmp_path, monkeypatch):
    real, taken = atomic_module._lock, []

    def lock(handle):
        if not taken:  # another run finds it unlocked
            [name] = names(tmp_path)
            (tmp_path / name).unlink()
            taken.append(name)
        return real(handle)

    monkeypatch.setattr(atomic_module, "_lock", lock)
    write(tmp_path / "out")
    assert taken
    assert names(tmp_path) == ["out"]


def test_names_as_long_as_the_file_system_takes(tmp_path):
    for name in ("x" * 255, "é" * 127):
        write(tmp_path / name)
        assert (tmp_path / name).read_text() == "whole"
    with atomic(tmp_path / ("x" * 251 + ".a")), atomic(tmp_path / ("x" * 251 + ".b")):
        assert len(names(tmp_path)) == 4


def test_process_that_ends_at_once_can_remove_what_it_writes(tmp_path):
    with temporary_folder(tmp_path / "folder") as folder:
        (folder / "one").touch()
        with contextlib.suppress(Held), atomic(tmp_path / "out"):
            remove_unfinished()
            assert names(tmp_path) == []

"""Results appear whole or not at all, and as JSON that any parser takes."""

import errno
import json
import math
import os
import socket
import stat

import pytest

from jaxscore.errors import InputError
from jaxscore.io import atomic as atomic_module
from jaxscore.io.atomic import atomic, json_number, json_safe


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
    for path in (tmp_path / "link", atomic_module.Path(os.devnull)):
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
            atomic(atomic_module.Path("out")),
        ):
            pass
    assert stat.S_ISSOCK((tmp_path / "out").stat().st_mode)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for place, reason in (
        (tmp_path / "file" / "out", "file is no folder"),
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
        atomic(atomic_module.Path("/proc/out")),
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
    assert json_safe(value) == safe
    assert json_safe(value)["t"] is True
    assert json.loads(json.dumps(json_safe(value), allow_nan=False)) == safe
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

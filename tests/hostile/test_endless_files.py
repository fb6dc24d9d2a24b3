"""Files without end and files of terabytes: refused by name, in bounded memory."""

import gzip
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from jaxscore.cli.main import main
from jaxscore.errors import InputError
from jaxscore.io import json_input
from jaxscore.io.json_input import read_array, read_jsonl, read_text
from jaxscore.io.manifest import read_manifest
from tests.conftest import CASES

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices to read here")

MODEL = str(CASES / "models/tiny-gpt2")
TERABYTE = 1 << 40
MOST = 100 << 20  # bytes that a refusal may have taken
DEVICES = ("/dev/zero", "/dev/urandom")


def sparse(path):
    """A file that takes no disk and reads as a terabyte of zeros."""
    with open(path, "wb") as file:
        file.truncate(TERABYTE)
    return path


@pytest.fixture(autouse=True)
def short_line(monkeypatch):
    monkeypatch.setattr(json_input, "MOST_LINE", 1 << 22)


@pytest.fixture
def bounded():
    """Fails a test that has taken more than `MOST` bytes."""
    tracemalloc.start()
    yield
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MOST


def command(tmp_path, *words):
    """Words of a run whose input is one good item, unless they say otherwise."""
    (tmp_path / "good.jsonl").write_text('{"context": "a", "continuation": " b"}\n')
    required = {"--model": MODEL, "--input": tmp_path / "good.jsonl", "--output": tmp_path / "out"}
    required |= dict(zip(words[::2], words[1::2], strict=True))
    return ["score", *(str(word) for pair in required.items() for word in pair)]


@pytest.mark.parametrize("path", DEVICES)
@pytest.mark.parametrize("flag", ["--config", "--input", "--system-file", "--fewshot"])
def test_device_without_end_is_refused_by_every_flag_of_a_file(
    tmp_path, capsys, bounded, flag, path
):
    words = ["--config", path] if flag == "--config" else command(tmp_path, flag, path)
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert f"{path}: found a device, expected a file or a pipe" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["in.jsonl", "in.json", "in.csv", "in.tsv", "in", "config.yaml"])
@pytest.mark.parametrize("flag", ["--config", "--input", "--system-file", "--fewshot"])
def test_file_of_a_terabyte_is_refused_by_every_flag_of_a_file(
    tmp_path, capsys, bounded, flag, name
):
    path = str(sparse(tmp_path / name))
    words = ["--config", path] if flag == "--config" else command(tmp_path, flag, path)
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    assert code == 2
    message = capsys.readouterr().err
    assert path in message
    assert "found a line of more than" in message or "found more than" in message


def test_pipe_without_end_is_refused(tmp_path, bounded):
    os.mkfifo(tmp_path / "pipe")

    def feed():
        with open(tmp_path / "pipe", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except BrokenPipeError:
                pass

    for read in (
        lambda path: list(read_jsonl(path)),
        lambda path: read_text(path, max_bytes=1 << 20),
    ):
        writer = threading.Thread(target=feed)
        writer.start()
        with pytest.raises(InputError, match=r"pipe(:1)?: found (a line of )?more than [\d,]+ byt"):
            read(tmp_path / "pipe")
        writer.join()


def test_compressed_zeros_are_refused_in_the_size_that_they_become(tmp_path, bounded):
    with gzip.open(tmp_path / "in.jsonl.gz", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    with pytest.raises(InputError, match=r"in.jsonl.gz:1: found a line of more than"):
        list(read_jsonl(tmp_path / "in.jsonl.gz"))


def test_array_of_one_long_line_is_read(tmp_path):
    item = {"text": "x" * (1 << 23)}
    path = tmp_path / "in.json"
    path.write_text(json.dumps([item]))
    assert read_array(path) == [item]
    with pytest.raises(InputError, match="found a line of more than"):
        list(read_jsonl(path))


def test_manifest_of_a_terabyte_is_not_read(tmp_path, bounded):
    sparse(tmp_path / "out.jsonl.run.json")
    with pytest.raises(InputError, match="expected at most"):
        read_manifest(tmp_path / "out.jsonl")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("zero", "found a device"),
        pytest.param("zeros in a pipe", "found a line of more than", marks=pytest.mark.slow),
        ("noise in a pipe", "is not UTF-8"),
    ],
)
def test_standard_input_without_end_is_refused(tmp_path, source, reason):
    with open("/dev/urandom" if "noise" in source else "/dev/zero", "rb") as file:
        feeder = None
        stdin = file
        if "pipe" in source:
            feeder = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
            stdin = feeder.stdout
        ended = subprocess.run(
            [sys.executable, "-m", "jaxscore", *command(tmp_path, "--input", "-")],
            stdin=stdin,
            capture_output=True,
            text=True,
            env=os.environ | {"JAXSCORE_CACHE": str(tmp_path / "cache")},
        )
        if feeder is not None:
            feeder.stdout.close()
            feeder.wait()
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list((tmp_path / "cache").rglob("stdin.json"))


def test_the_empty_device_is_read_as_an_empty_file():
    assert list(json_input.read_lines(Path("/dev/null"))) == []

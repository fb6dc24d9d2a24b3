"""The fuzzer runs every target, and finds a defect that is planted."""

import importlib.util
import random
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tools import fuzz, fuzz_targets

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: pip install -e '.[fuzz]'",
)
FUZZ = Path(fuzz.__file__)


def mutated(seed: bytes, draw: random.Random) -> bytes:
    """The seed with a slice replaced by another one, by bytes or by a word of the formats."""
    start = draw.randrange(len(seed) + 1)
    end = min(len(seed), start + draw.choice([0, 0, 1, 4, 100]))
    other = draw.randrange(len(seed) + 1)
    new = draw.choice(
        [draw.randbytes(3), draw.choice(fuzz_targets.WORDS).encode(), seed[other : other + 20]]
    )
    return seed[:start] + new + seed[end:]


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_every_target_runs(name, tmp_path):
    """Its seeds, and 60 inputs that are mutated at random, the same ones each time."""
    draw = random.Random(name)
    seeds = list(fuzz_targets.seeds(name))
    assert len(seeds) > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in seeds:
            fuzz.run_one(fuzz_targets.TARGETS[name], seed, tmp_path / "place")
        for _ in range(60):
            data = mutated(draw.choice(seeds), draw)
            fuzz.run_one(fuzz_targets.TARGETS[name], data, tmp_path / "place")


def test_unprintable_message_is_a_finding(monkeypatch):
    for good in ("one line", "\x1b[31m"):  # escaped by the error itself
        with fuzz_targets.refusing():
            raise fuzz_targets.InputError(good)
    monkeypatch.setattr(fuzz_targets.InputError, "__str__", lambda self: self.args[0])
    for bad in ("two\nlines", "\x1b[31m", "x" * 10_000):
        with pytest.raises(AssertionError, match="not printable"), fuzz_targets.refusing():
            raise fuzz_targets.InputError(bad)


def fuzzed(target, folder, *flags):
    words = ["--target", f"tests.tools.planted:{target}", "--findings", str(folder), *flags]
    return subprocess.run(
        [sys.executable, FUZZ, *words], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.slow_after(1)
@needs_atheris
@pytest.mark.parametrize(
    ("target", "kind", "first", "reported", "flags"),
    [
        ("raises", "crash", b"fuzz", "ValueError: planted", ()),
        ("warns", "crash", b"w", "UserWarning: planted", ()),
        ("hangs", "timeout", b"h", "in hangs", ("--most-seconds", "2")),
        ("eats", "oom", b"e", "out-of-memory", ("--most-mb", "200", "--most-seconds", "60")),
    ],
)
def test_a_planted_defect_is_found(tmp_path, target, kind, first, reported, flags):
    ended = fuzzed(target, tmp_path, "--seconds", "120", *flags)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    [found] = [path for path in tmp_path.iterdir() if path.suffix != ".txt"]
    assert found.name.startswith(f"tests.tools.planted.{target}-{kind}-")
    assert found.read_bytes().startswith(first)
    note = found.with_name(f"{found.name}.txt").read_text(encoding="utf-8")
    command = note.splitlines()[0]
    assert reported in note
    assert command in ended.stdout
    if kind == "crash":  # the command shows it again
        again = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
        assert again.returncode == 1
        assert reported in again.stderr


@pytest.mark.slow
@needs_atheris
def test_a_sound_target_ends_well(tmp_path):
    ended = fuzzed("is_sound", tmp_path / "found", "--runs", "300")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Done 300 runs" in ended.stdout
    assert list((tmp_path / "found").iterdir()) == []


def test_flags_that_cannot_be_used(tmp_path):
    for words, why in (
        (["--target", "nonesuch", "--input", __file__], "there are json, jsonl, tables, yaml"),
        (["--target", "json"], "--findings: where"),
    ):
        ended = subprocess.run(
            [sys.executable, FUZZ, *words], capture_output=True, text=True, check=False
        )
        assert ended.returncode == 1
        assert why in ended.stderr

"""`journal`: what a run has kept, told and dropped."""

import json

import pytest

from tests.commands.conftest import QWEN


@pytest.fixture
def kept(run, tmp_path):
    """The journal of two runs, in float32 and in bfloat16."""
    lines = [{"context": "The cat ", "continuation": f"sat {k}"} for k in range(5)]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    words = ("score", "--model", QWEN, "--input", source, "--output", tmp_path / "out.jsonl")
    for dtype in ("float32", "bfloat16"):
        assert run(*words, "--dtype", dtype, "--quiet").code == 0
    return tmp_path / "out.jsonl.journal"


def test_info_and_prune(run, kept):
    code, out, _ = run("journal", "info", kept)
    lines = out.splitlines()
    assert code == 0
    assert [line.split(",")[0] for line in lines] == ["1: 5 texts", "2: 5 texts"]
    assert "dtype=bfloat16" in lines[0]  # the last used first
    assert "dtype=float32" in lines[1]
    code, out, _ = run("journal", "prune", kept)
    assert (code, out.splitlines()[0].split(",")[0]) == (0, "1 models dropped")
    assert "dtype=bfloat16" in out.splitlines()[1]
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize("words", [("prune", "--keep", -1), ("info", "--keep", 2)], ids=str)
def test_a_keep_that_means_nothing_drops_nothing(run, kept, words):
    action, *flags = words
    code, _, err = run("journal", action, kept, *flags)
    assert code == 2
    assert "expected a number of at least 0, with prune" in err
    assert len(run("journal", "info", kept).out.splitlines()) == 2


def test_a_file_that_is_no_journal(run, tmp_path):
    for path in (tmp_path / "none", tmp_path):
        code, _, err = run("journal", "info", path)
        assert code == 2
        assert f"journal {path}: " in err

"""`journal`: what a run has kept, told and dropped."""

import json
import re
import shutil

import pytest

from jaxscore import Scorer
from jaxscore.errors import InputError
from jaxscore.generator import Generator
from jaxscore.tasks.rag.evaluator_file import find
from tests.commands.conftest import QWEN, strict
from tests.conftest import CASES


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
    assert [line.split(",")[0] for line in lines] == [f"{k}: 5 texts scored" for k in (1, 2)]
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


EVALUATOR = find("default_qa").read_text(encoding="utf-8").replace("logits: true", "logits: false")


def usc_generate(folder):
    items = [{"chat_history": [f"How old is {name}?"], "output": ["3"]} for name in ("A", "B")]
    (folder / "in.json").write_text(json.dumps(items), encoding="utf-8")
    output = folder / "out.json"
    words = ("usc-generate", "--input-file", folder / "in.json", "--output-file", output, "-n", 1)
    return (*words, "--model", QWEN, "--max-new-tokens", 5), output, "out.json.journal"


def judge(folder):
    ours = shutil.copytree(CASES / "judge/ours", folder / "ours")
    (folder / "text.yaml").write_text(EVALUATOR, encoding="utf-8")
    words = ("judge", "--folder", ours, "--llm", QWEN, "j", "--llm-prompt", folder / "text.yaml")
    return (*words, "--sample", 3), ours / "eval_dev_out_3.json", "ours/jaxscore.journal"


def judge_pairwise(folder):
    ours, theirs = (shutil.copytree(CASES / "judge" / k, folder / k) for k in ("ours", "theirs"))
    words = ("judge", "--folder", ours, "--opponent-folder", theirs, "--opponent-name", "them")
    words = (*words, "--llm", QWEN, "j", "--sample", 3)
    return words, ours / "eval_dev_out_3.json", "ours/jaxscore.journal"


def chronologic(folder):
    questions = folder / "in.jsonl"
    text = (CASES / "chronologic/questions.jsonl").read_text(encoding="utf-8")
    questions.write_text("".join(text.splitlines(keepends=True)[:3]), encoding="utf-8")
    return ("chronologic", QWEN, questions, "--mcq"), folder, "jaxscore.journal"


@pytest.mark.parametrize("command", [usc_generate, judge, judge_pairwise, chronologic])
def test_commands_that_write_keep_it_beside_their_output(run, tmp_path, monkeypatch, command):
    words, output, name = command(tmp_path)

    def outputs():
        if output.is_file():
            return output.read_bytes()
        [found] = output.glob("eval_results_mcq_*[0-9].json")  # the time is in name and settings
        record = strict(found.read_text(encoding="utf-8"))
        found.unlink()
        return record["questions"], record["summary"]

    code, _, err = run(*words)
    first = outputs()
    assert "\n0 of " in err
    info = run("journal", "info", tmp_path / name).out
    n_scored, n_written = map(int, re.match(r"1: (\d+) texts scored, (\d+) written", info).groups())
    assert n_written > 0
    assert (n_scored > 0) == (command is chronologic)  # the letters' probabilities

    if command is usc_generate:
        output.unlink()

    def written(*args):
        raise AssertionError

    monkeypatch.setattr(Generator, "_write_group", written)
    again = run(*words, *(("--force",) if words[0] == "judge" else ()))
    assert again.code == code
    assert outputs() == first
    restored, total = re.search(r"(\d+) of (\d+) \w+ were in the journal", again.err).groups()
    assert restored == total
    assert run("journal", "prune", tmp_path / name, "--keep", 0).out.startswith("1 models dropped")
    assert run("journal", "info", tmp_path / name).out == ""


def test_a_command_that_begins_anew_says_that_it_keeps_nothing(run, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise InputError(f"journal {options['journal']}")

    monkeypatch.setattr(Scorer, "from_pretrained", stop)
    code, _, err = run("demo", "--output-dir", tmp_path / "d", "--journal", tmp_path / "j")
    assert code == 2
    assert "begins anew each time and keeps nothing\n" in err
    assert "error: journal None" in err

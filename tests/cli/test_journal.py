"""`journal`: what a run has journaled, listed and dropped."""

import json
import re
import shutil

import pytest

from jaxscore import Scorer
from jaxscore.cli import demo
from jaxscore.engine.generation.slots import SlotTable
from jaxscore.errors import InputError
from jaxscore.systems.rag.evaluator_file import find
from tests.cli.conftest import QWEN, strict
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
    return tmp_path / ".jaxscore/out.jsonl.journal"


def table(out):
    """The cells of the table, by row."""
    return [re.split(r"  +", line.strip()) for line in out.split("done ")[0].splitlines()[1:]]


def test_info_and_prune(run, kept):
    code, out, _ = run("journal", "info", kept)
    size = kept.stat().st_size / 1000
    head, columns, *lines, closing = out.splitlines()
    assert closing == "done     2 models listed, 0 failed"
    assert code == 0
    assert head == f"journal {kept}: 2 models, {size:.1f} kB on disk"
    assert table(out)[0] == ["scored", "written", "size", "last used", "computed by"]
    assert [row[:3] for row in table(out)[1:]] == [["1", "5", "0"], ["2", "5", "0"]]
    assert "dtype=bfloat16" in lines[0]  # the last used first
    assert "dtype=float32" in lines[1]
    # Numbers end below their heading, and texts start below it.
    assert {line[columns.index("scored") + 5] for line in lines} == {"5"}
    assert {line[columns.index("computed") - 2 :][:3] for line in lines} == {"  d"}
    code, out, _ = run("journal", "prune", kept)
    head, _, line, dropped, freed, files = out.splitlines()
    assert code == 0
    assert dropped == "done     1 model dropped, 0 failed"
    assert freed.startswith("result   freed ")
    assert files == f"files    {kept}"
    assert ": 1 model, " in head
    assert "dtype=bfloat16" in line


def test_the_file_is_given_once_by_its_place_or_by_its_flag(run, kept):
    want = run("journal", "info", kept)
    assert run("journal", "info", "--input", kept) == want
    assert run("journal", "--input", kept, "info") == want
    code, out, err = run("journal", "info")
    assert (code, out) == (2, "")
    assert "FILE is missing; give it once, by its place or by --input" in err
    code, out, err = run("journal", "info", kept, "--input", kept)
    assert (code, out, f"FILE is {kept} by its place already" in err) == (2, "", True)
    code, _, err = run("journal", "info", "--input", kept, "--keep", 1)
    assert (code, f"use `journal prune {kept} --keep 1`" in err) == (2, True)


def test_the_output_or_its_folder_names_its_journal(run, kept, monkeypatch):
    want = run("journal", "info", kept).out
    assert want
    assert run("journal", "info", kept.parents[1] / "out.jsonl").out == want
    (kept.parents[1] / "out.jsonl").unlink()
    assert run("journal", "info", kept.parents[1] / "out.jsonl").out == want
    kept.rename(kept.with_name("jaxscore.journal"))
    assert run("journal", "info", kept.parents[1]).out.splitlines()[1:] == want.splitlines()[1:]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("given", ["other.jsonl", "in.jsonl", ".", ".jaxscore", ".jaxscore/x"])
def test_a_hint_names_the_journals_that_exist(run, kept, given):
    path = kept.parents[1] / given
    code, out, err = run("journal", "info", path)
    assert (code, out) == (2, "")
    assert f"journal {path}: " in err
    if given != ".jaxscore/x":
        assert f"give one of {kept}\n" in err
    if given in ("other.jsonl", "in.jsonl"):
        assert f"an output whose journal is {kept.with_name(given)}.journal;" in err


def test_a_journal_with_nothing_left_is_removed(run, kept):
    code, out, _ = run("journal", "prune", kept, "--keep", 0)
    assert code == 0
    removed, dropped, freed = out.splitlines()
    assert removed == f"journal {kept}: removed"
    assert dropped == "done     2 models dropped, 0 failed"
    assert freed.startswith("result   freed ")
    assert not kept.parent.exists()
    assert (kept.parents[1] / "out.jsonl").exists()


def test_only_an_empty_folder_of_ours_is_removed(run, kept):
    other = kept.with_name("notes")
    other.write_text("mine")
    assert run("journal", "prune", kept, "--keep", 0).code == 0
    assert [path.name for path in kept.parent.iterdir()] == ["notes"]


def test_off_keeps_none(run, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"context": "a", "continuation": " b"}\n')
    words = ("score", "--model", QWEN, "--input", source, "--output", tmp_path / "out.jsonl")
    assert run(*words, "--journal", "off", "--quiet").code == 0
    reports = {f"out.jsonl.report.{kind}" for kind in ("html", "json", "md")}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"in.jsonl", "out.jsonl", "out.jsonl.run.json", *reports}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("prune", "--keep", -1), "--keep -1: expected the number of models to keep, 0 or more"),
        (("info", "--keep", 2), "--keep 2: `journal info` drops nothing; leave --keep out"),
    ],
)
def test_a_keep_that_means_nothing_drops_nothing(run, kept, words, message):
    action, *flags = words
    code, _, err = run("journal", action, kept, *flags)
    assert code == 2
    assert message in err
    assert len(table(run("journal", "info", kept).out)) == 3


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
    return (*words, "--model", QWEN, "--max-new-tokens", 5), output, ".jaxscore/out.json.journal"


def judge(folder):
    ours = shutil.copytree(CASES / "judge/ours", folder / "ours")
    (folder / "text.yaml").write_text(EVALUATOR, encoding="utf-8")
    words = ("judge", "--folder", ours, "--llm", QWEN, "j", "--llm-prompt", folder / "text.yaml")
    return (*words, "--sample", 3), ours / "eval_dev_out_3.json", "ours/.jaxscore/jaxscore.journal"


def judge_pairwise(folder):
    ours, theirs = (shutil.copytree(CASES / "judge" / k, folder / k) for k in ("ours", "theirs"))
    words = ("judge", "--folder", ours, "--opponent-folder", theirs, "--opponent-name", "them")
    words = (*words, "--llm", QWEN, "j", "--sample", 3)
    return words, ours / "eval_dev_out_3.json", "ours/.jaxscore/jaxscore.journal"


def chronologic(folder):
    questions = folder / "in.jsonl"
    text = (CASES / "chronologic/questions.jsonl").read_text(encoding="utf-8")
    questions.write_text("".join(text.splitlines(keepends=True)[:3]), encoding="utf-8")
    return ("chronologic", QWEN, questions, "--mcq"), folder, ".jaxscore/jaxscore.journal"


@pytest.mark.slow_after(1)
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

    code, out, _ = run(*words)
    first = outputs()
    assert re.search(r"^journal .*, 0 of \d+ texts come from it$", out, re.M)
    info = run("journal", "info", tmp_path / name).out
    n_scored, n_written = map(int, info.splitlines()[2].split()[1:3])
    assert n_written > 0
    assert (n_scored > 0) == (command is chronologic)  # the letters' probabilities

    if command is usc_generate:
        output.unlink()

    def written(*args):
        raise AssertionError

    monkeypatch.setattr(SlotTable, "generate", written)
    again = run(*words, *(("--force",) if words[0] == "judge" else ()))
    assert again.code == code
    assert outputs() == first
    restored, total = re.search(r", (\d+) of (\d+) texts come from it", again.out).groups()
    assert restored == total
    pruned = run("journal", "prune", tmp_path / name, "--keep", 0)
    assert "\ndone     1 model dropped, 0 failed\n" in pruned.out
    assert not (tmp_path / name).parent.exists()


@pytest.mark.parametrize(
    "name", ["y.json", "y.json.run.json", "y_report.md", "y_report.json", "in.jsonl"]
)
def test_no_file_of_a_run_is_its_journal(run, tmp_path, name):
    source = tmp_path / "in.jsonl"
    source.write_text('{"question": "?", "paths": [["a"]]}\n', encoding="utf-8")
    words = ("paths", "--model", QWEN, "--input", source, "--output", tmp_path / "y.json")
    code, out, err = run(*words, "--journal", tmp_path / name)
    assert (code, out) == (2, "")
    problem = "another file of this run has this name, expected a separate file"
    assert f"--journal {tmp_path / name}: {problem}" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("name", ["eval_dev_out_3.json", "eval_dev_judge_LLMeval_j_logits_3.md"])
def test_no_file_of_a_folder_is_the_journal_of_judge(run, tmp_path, name):
    ours = shutil.copytree(CASES / "judge/ours", tmp_path / "ours")
    words = ("judge", "--folder", ours, "--llm", QWEN, "j", "--sample", 3)
    code, _, err = run(*words, "--journal", ours / name)
    assert code == 2
    assert f"--journal {ours / name}: another file of this run has this name" in err


def test_probsem_has_no_report_as_its_journal(run, tmp_path):
    inputs = demo.INPUTS / "probsem"
    where = ("--input-dir", inputs, "--output-dir", tmp_path, "--model", "demo")
    page = tmp_path / "demo_truth_demo_report.md"
    code, _, err = run("probsem", "--prompt", "demo", "--test", "truth", *where, "--journal", page)
    assert code == 2
    assert f"--journal {page}: another file of this run has this name" in err


def test_a_command_that_starts_again_says_that_it_keeps_nothing(run, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise InputError(f"journal {options['journal']}")

    monkeypatch.setattr(Scorer, "from_pretrained", stop)
    code, _, err = run("demo", "--output-dir", tmp_path / "d", "--journal", tmp_path / "j")
    assert code == 2
    assert "this command keeps no journal\n" in err
    assert "error: journal None" in err

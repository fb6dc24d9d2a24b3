"""Every file of a run lies in its output folder, whatever ids, models and tests are called."""

import json
import re

import pytest
from hypothesis import given

from jaxscore.cli import probsem
from jaxscore.io import run_files
from tests.conftest import CASES
from tests.hostile.conftest import paths_below
from tests.hostile.inputs import HOSTILE, TEXTS, any_texts, put
from tests.hostile.test_reports import COMMANDS

NAMES = (
    *TEXTS,
    "..",
    ".",
    "...",
    "a/../../b",
    "~",
    "-",
    "--quiet",
    "CON.txt",
    "a" * 300,
    "é" * 200,
)
# what no system's file may be called; the endings that are added make CON and the like harmless
FORBIDDEN = re.compile('[<>:"/\\\\|?*\x00-\x1f\x7f]')


def assert_one_name(name: str) -> None:
    assert not FORBIDDEN.search(name)
    assert len(name.encode()) <= 200  # of 255, which leaves room for an ending and a draft's
    assert name.strip(".") or not name


@HOSTILE
@given(any_texts)
def test_names_of_files(name):
    for text in (name, *NAMES):
        assert_one_name(f"eval_{run_files.model_file_name(text)}")
        assert_one_name(f"eval_{run_files.distinct_file_name(text)}")
        assert_one_name(probsem.run_name(text, text, text))
        assert_one_name(probsem.run_name("p", "t", text))
        [path] = [run_files.RunFile(run_files.model_file_name(text), ".md", "x")]
        assert_one_name(f"eval_{path.stem}{path.suffix}")


def test_names_that_differ_stay_apart():
    kept = {run_files.distinct_file_name(name) for name in NAMES}
    assert len(kept) == len(NAMES)


def outside(before, after, *allowed):
    """What has appeared, and is in none of these folders."""
    return {
        one for one in after - before if not f"{one}/".startswith(tuple(f"{a}/" for a in allowed))
    }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_writes_into_its_folder_only(run, tmp_path, monkeypatch, command, hostile_model):
    folder = tmp_path / "up" / "run"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = [name for name in NAMES if name.strip() and "\0" not in name]
    words = [name for name in words if len(name) < 1000]
    _, *flags = COMMANDS[command](folder, words)
    (folder / "out").mkdir(exist_ok=True)
    before = paths_below(tmp_path)
    for name in ("../../x", "/tmp/x", "\x1b[31m\u202e", "a" * 300) if command == "judge" else ("",):
        named = {"chronologic": [hostile_model], "judge": ["--llm", hostile_model, name]}
        code, _, err = run(
            command, *named.get(command, ["--model", hostile_model]), *flags, "--quiet"
        )
        assert code in (0, 1), err  # some are longer than the model's positions
    appeared = paths_below(tmp_path) - before
    assert appeared
    assert not outside(before, paths_below(tmp_path), "up/run/out")
    for name in appeared:
        assert_one_name(name.removeprefix("up/run/out/"))


@pytest.mark.parametrize("name", ["../q", "../../q", "sub/../../q"])
def test_a_prompt_from_elsewhere_is_written_here(run, tmp_path, name, hostile_model):
    """What `--prompt` and `--test` name is read where they say; the results stay in the folder."""
    place = tmp_path / "a" / "b" / "in"
    (place / "sub").mkdir(parents=True)
    suite = json.dumps({"queries": ["x", "y"], "context": [{"text": "z", "expected": 0}]}).encode()
    put(place / f"{name}.txt", b"prompt")
    put(place / f"{name}_t.json", suite)
    before = paths_below(tmp_path)
    words = ("--prompt", name, "--test", "t", "--input-dir", place, "--model", hostile_model)
    code, _, err = run("probsem", *words, "--output-dir", place / "out", "--quiet")
    assert code == 0, err
    appeared = paths_below(tmp_path) - before
    assert len(appeared) >= 4
    assert all(re.fullmatch("a/b/in/out(/[^/]+)?", one) for one in appeared)


def test_ids_of_samples_name_no_file(run, tmp_path):
    """Four commands that write one file each, beside the input, whatever the items are called."""
    folder = tmp_path / "up" / "run"
    folder.mkdir(parents=True)
    items = [
        {
            "id": name,
            "question_id": name,
            "session_id": name,
            "generator": name,
            "dataset": name,
            "task": name,
            "output": ['{"answer": "1"}', "Response 1"],
            "responses": ["a", "b"],
            "confidence_list": [0.5, 0.25],
        }
        for name in NAMES
    ]
    path = put(folder / "in.json", json.dumps(items).encode())
    before = paths_below(tmp_path)
    words = ("--input-file", path)
    assert run("select", *words, "--best-N", 2).code == 0
    assert run("vote", *words, "--best-N", 2, "--power", 1).code == 0
    assert run("livecode-select", *words, "--best-N", 2).code == 0
    assert run("livecode-parse", *words).code == 0
    assert run("usc-select", *words, "--dataset-type", "open").code == 0
    appeared = paths_below(tmp_path) - before
    assert len([one for one in appeared if one.endswith(".json")]) >= 5
    assert all(re.fullmatch(r"up/run/in-[\w.-]+", one) for one in appeared)


@pytest.mark.parametrize("name", ["a\n\x1b[31m", "<b>|x", "\u202e", "a" * 200, "..a", "CON"])
def test_folders_of_experiments(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments" / name
    folder.mkdir(parents=True)
    put(folder / "eval_dev_out.json", (CASES / "judge/ours/eval_dev_out.json").read_bytes())
    before = paths_below(tmp_path)
    for words in (("metrics",), ("results",), ("results", "--experiments-folder", ".")):
        code, out, err = run(*words)
        said = (out + err).replace("\n", "")
        assert code in (0, 2), err
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", said)
    assert not outside(before, paths_below(tmp_path), f"experiments/{name}", "results")

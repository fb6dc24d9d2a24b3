"""What cannot be used: exit code 2, one message with file, line and remedy, no output left."""

import json
import shutil

import pytest

from jaxscore.cli import model_flags
from tests.cli.conftest import QWEN, with_input
from tests.conftest import CASES

GOOD = {"continuation": "The cat"}


def command(folder, name, *more):
    return (
        name, "--model", QWEN, "--input", folder / "in.jsonl", "--output", folder / "out",
        "--quiet", *more,
    )  # fmt: skip


def assert_refused(ran, folder, *parts, kept=("in.jsonl",)):
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err
    for part in parts:
        assert part in ran.err
    assert sorted(one.name for one in folder.iterdir()) == sorted(kept)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"continuation": "x"', ["in.jsonl:2: not JSON at column 21", "expected one object"]),
        ('{"text": "x"}', ['in.jsonl:2: no field "continuation", expected a string', "'text'"]),
        ('{"continuation": ["x"]}', ['in.jsonl:2: field "continuation" is a list, expected a str']),
        ('{"continuation": "\\ud83d"}', ["in.jsonl:2: ", "surrogate", "write the character"]),
        ("[]", ["in.jsonl:2: found a list, expected an object"]),
    ],
)
def test_score_names_a_bad_line_before_it_loads_a_model(run, place, monkeypatch, line, parts):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place(GOOD, line)
    assert_refused(run(*command(folder, "score")), folder, "jaxscore score: error: ", *parts)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("{", ["in.jsonl:2: not JSON"]),
        ('{"question": "?"}', ['in.jsonl:2: no field "paths", expected a list', "'question'"]),
        ('{"question": "?", "paths": [3]}', ['in.jsonl:2: field "paths", entry 1', "found 3"]),
    ],
)
def test_paths_names_a_bad_line_before_it_loads_a_model(run, place, monkeypatch, line, parts):
    monkeypatch.setattr(model_flags, "load_scorer", None)
    folder = place({"question": "?", "paths": [["a"]]}, line)
    assert_refused(run(*command(folder, "paths")), folder, "jaxscore paths: error: ", *parts)


@pytest.mark.parametrize("name", ["score", "paths"])
def test_unusable_input_files(run, place, name):
    folder = place()
    assert_refused(run(*command(folder, name)), folder, "in.jsonl: the file is empty, expected one")
    absent = run(*with_input(command(folder, name), folder / "absent"))
    assert_refused(absent, folder, f"{folder / 'absent'}: No such file or directory; expected a")
    given = with_input(command(folder, name), folder)
    assert_refused(run(*given), folder, "found a folder, whose files give one output each")
    (folder / "in.jsonl").write_bytes(b'{"a": "\xff"}')
    assert_refused(run(*command(folder, name)), folder, "in.jsonl:1: byte 8 is not UTF-8; save")


def test_an_unusable_system_prompts_file(run, place):
    folder = place({"question": "?", "paths": [["a"]]})
    for flag in ("--system-prompts-file", "--system_prompts_file"):
        ran = run(*command(folder, "paths", flag, folder / "absent"))
        assert_refused(ran, folder, f"{folder / 'absent'}: No such file")


def test_the_output_may_not_be_an_input(run, place):
    folder = place(GOOD)
    (folder / "sub").mkdir()
    before = (folder / "in.jsonl").read_bytes()
    kept = ("in.jsonl", "sub")
    for other in (folder / "in.jsonl", folder / "sub" / ".." / "in.jsonl"):
        ran = run(*command(folder, "score", "--output", other))
        assert_refused(ran, folder, "is an input of this run; give another name", kept=kept)
    ran = run(
        *command(folder, "paths", "--system-prompts-file", folder / "s", "--output", folder / "s")
    )
    assert_refused(ran, folder, "is an input of this run", kept=kept)
    assert (folder / "in.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["score", "paths"])
def test_an_output_that_cannot_be_written(run, place, monkeypatch, name):
    monkeypatch.setattr(model_flags, "load_scorer", None)  # known before the model is loaded
    folder = place({**GOOD, "question": "?", "paths": [["a"]]})
    ran = run(*command(folder, name, "--output", folder))
    assert_refused(ran, folder, f"{folder}: found a folder, expected the name of a file")
    for no_file in (".", "..", "/"):
        ran = run(*command(folder, name, "--output", no_file))
        assert_refused(ran, folder, "found a folder, expected the name of a file")
    ran = run(*command(folder, name, "--output", folder / "in.jsonl" / "out"))
    assert_refused(ran, folder, "in.jsonl is not a folder); give a path that can")


def copied(folder, *names):
    """A checkpoint folder with some files of tiny-qwen2."""
    model = folder / "model"
    model.mkdir()
    for name in names:
        shutil.copy(CASES / "models/tiny-qwen2" / name, model)
    return model


def test_models_that_are_not_there(run, place):
    folder = place(GOOD)
    ran = run(*command(folder, "score", "--model", folder / "absent"))
    assert_refused(ran, folder, f"model {folder / 'absent'}: no such folder")
    ran = run(*command(folder, "score", "--model", "nobody/absent"))
    assert_refused(ran, folder, "model nobody/absent: no such folder, not", "give a local folder")
    ran = run(*command(folder, "score", "--model", folder / "in.jsonl"))
    assert_refused(ran, folder, "found a file, expected a folder with config.json")


def test_a_model_without_config(run, place):
    folder = place(GOOD)
    model = copied(folder, "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    ran = run(*command(folder, "score", "--model", model))
    parts = (f"{model / 'config.json'}: No such file", "expected a Hugging Face checkpoint folder")
    assert_refused(ran, folder, *parts, kept=("in.jsonl", "model"))


def test_a_model_without_weights_or_tokenizer(run, place):
    folder = place(GOOD)
    model = copied(folder, "config.json", "tokenizer.json", "tokenizer_config.json")
    ran = run(*command(folder, "score", "--model", model))
    assert_refused(ran, folder, "no model.safetensors", kept=("in.jsonl", "model"))
    shutil.copy(CASES / "models/tiny-qwen2/model.safetensors", model)
    (model / "tokenizer.json").unlink()
    ran = run(*command(folder, "score", "--model", model))
    assert_refused(ran, folder, "no usable tokenizer", kept=("in.jsonl", "model"))


@pytest.mark.parametrize("size", [0, 5, 1000, 400_000])
def test_a_truncated_checkpoint(run, place, size):
    folder = place(GOOD)
    model = copied(folder, "config.json", "tokenizer.json", "tokenizer_config.json")
    whole = (CASES / "models/tiny-qwen2/model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[:size])
    ran = run(*command(folder, "score", "--model", model))
    parts = (str(model / "model.safetensors"), "truncated")
    assert_refused(ran, folder, *parts, kept=("in.jsonl", "model"))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"model_type": "nonesuch"}, "nonesuch"),
        ({"model_type": "t5"}, "t5"),
        ({"model_type": None}, "expected an object with a string `model_type`"),
        ({"clever_new_scaling": 2.0}, "clever_new_scaling=2.0"),
    ],
)
def test_a_config_that_is_not_understood(run, place, change, part):
    folder = place(GOOD)
    model = copied(folder, "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    config = json.loads((CASES / "models/tiny-qwen2/config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
    ran = run(*command(folder, "score", "--model", model))
    assert_refused(ran, folder, str(model / "config.json"), part, kept=("in.jsonl", "model"))


def test_an_interrupt_leaves_nothing(run, place, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(model_flags, "load_scorer", interrupted)
    folder = place({**GOOD, "question": "?", "paths": [["a"]]})
    (folder / "out").write_text("old", encoding="utf-8")
    for name in ("score", "paths"):
        ran = run(*command(folder, name))
        assert ran == (
            130,
            "",
            f"jaxscore {name}: interrupted; unfinished files are left as they were\n",
        )
        assert (folder / "out").read_text(encoding="utf-8") == "old"
    assert sorted(one.name for one in folder.iterdir()) == ["in.jsonl", "out"]

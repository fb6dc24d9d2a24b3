"""A text on which the tokenizer panics fails alone, in every command that reads texts."""

import json
import shutil

import pytest

from tests.cli.conftest import strict
from tests.conftest import CASES
from tests.text.test_bounded_tokenizer import PANICS


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A checkpoint with a pattern on which the regex library gives up."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copytree(CASES / "models/tiny-qwen2", folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": "(a|aa)+$"}, "behavior": "Isolated"}
    found["pre_tokenizer"]["pretokenizers"].insert(0, {**split, "invert": False})
    path.write_text(json.dumps(found), encoding="utf-8")
    return folder


def records(path):
    return [strict(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_score_keeps_the_others_and_exits_1(run, place, model):
    folder = place(
        {"id": 1, "context": "The cat", "continuation": " sat"},
        {"id": 2, "context": "The cat", "continuation": PANICS},
        {"id": 3, "context": "The dog", "continuation": " ran"},
    )
    words = ("score", "--model", model, "--input", folder / "in.jsonl", "--quiet")
    ran = run(*words, "--output", folder / "out.jsonl")
    assert ran.code == 1
    assert "cannot read the text (Onig: Regex search error" in ran.err
    assert "1 failed, the others are kept" in ran.err
    found = records(folder / "out.jsonl")
    assert ["error" in one for one in found] == [False, True, False]


def test_perplexity_keeps_the_other_documents(run, place, model):
    folder = place({"text": "The cat sat down"}, {"text": f"x {PANICS}"}, {"text": "The dog ran"})
    words = ("perplexity", "--model", model, "--input", folder / "in.jsonl", "--quiet")
    ran = run(*words, "--output", folder / "out.jsonl")
    assert ran.code == 1
    assert "cannot read the text" in ran.err
    found = records(folder / "out.jsonl")
    assert ["error" in one for one in found] == [False, True, False]


def test_sample_keeps_the_other_prompts(run, place, model):
    folder = place({"prompt": "The cat"}, {"prompt": f"x {PANICS}"})
    words = ("sample", "--model", model, "--input", folder / "in.jsonl", "--quiet", "-n", 1)
    ran = run(*words, "--max-new-tokens", 2, "--temperature", 0, "--output", folder / "out.json")
    assert ran.code == 1
    assert "cannot read the text" in ran.err
    assert "1 failed, the others are kept" in ran.err


def test_a_tokenizer_that_panics_while_it_is_read_ends_with_its_name(run, place, model, tmp_path):
    folder = place({"continuation": "a"})
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    found = json.loads((broken / "tokenizer.json").read_text(encoding="utf-8"))
    found["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (broken / "tokenizer.json").write_text(json.dumps(found), encoding="utf-8")
    words = ("score", "--model", broken, "--input", folder / "in.jsonl")
    ran = run(*words, "--output", folder / "out.jsonl")
    assert ran.code == 2
    assert "broken" in ran.err
    assert "Precompiled" in ran.err
    assert len(ran.err.splitlines()) == 1

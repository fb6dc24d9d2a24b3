"""A manifest says what made a result, and the same for the same run."""

import json
from pathlib import Path

import jax
import pytest

from jaxscore.cli.main import main
from jaxscore.io.manifest import manifest_path, publish_manifest
from tests.conftest import CASES

GPT2 = str(CASES / "models/tiny-gpt2")


def score(folder: Path, name: str, lines: list[dict], *words: str) -> dict:
    given, output = folder / f"{name}.in.jsonl", folder / f"{name}.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    flags = ["--input", str(given), "--output", str(output), "--quiet", "--dtype", "float32"]
    assert main(["score", "--model", GPT2, *flags, *words]) == 0
    return json.loads(manifest_path(output).read_text("utf-8"))


LINES = [{"id": k, "context": "the cat", "continuation": f" sat {k} times"} for k in range(30)]


def test_what_it_says(tmp_path):
    found = score(tmp_path, "a", LINES, "--batch-tokens", "256")
    assert (found["command"], found["flags"]["batch_tokens"]) == ("score", 256)
    assert found["output"].endswith("a.jsonl")
    assert found["versions"]["jax"] == jax.__version__
    assert found["machine"]["platform"] == "cpu"
    assert found["machine"]["devices"] == len(jax.devices())
    assert found["model"]["dtype"] == "float32"
    assert len(found["model"]["model"]) == len(found["plan"]) == 64
    counts = found["counts"]
    assert (counts["texts"], counts["texts_from_journal"]) == (30, 0)
    assert counts["tokens_given"] > counts["tokens_unique"] > 0
    assert found["seconds"] > 0
    assert found["programs"]
    assert not {"run", "loaded", "scorer"} & set(found["flags"])


@pytest.mark.slow
def test_the_plan_is_that_of_the_requests_and_not_of_their_order(tmp_path):
    one = score(tmp_path, "a", LINES)
    again = score(tmp_path, "b", LINES[::-1])
    other = score(tmp_path, "c", LINES[:-1])
    alone = score(tmp_path, "d", LINES, "--reproducible")
    assert one["plan"] == again["plan"]
    assert len({one["plan"], other["plan"], alone["plan"]}) == 3
    assert one["model"] == other["model"]
    assert alone["model"] == one["model"] | {"reproducible": True}


def test_it_counts_what_a_journal_had(tmp_path):
    score(tmp_path, "a", LINES)
    again = score(tmp_path, "a", LINES)
    assert again["counts"]["texts_from_journal"] == 30


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path):
    publish_manifest(
        tmp_path / "out", {"command": "score", "input": Path("a\udcff"), "n": float("nan")}, {}
    )
    found = json.loads((tmp_path / "out.run.json").read_text("utf-8"))
    assert found["flags"] == {"input": "a\\udcff", "n": None}


@pytest.mark.parametrize("name", ["in.jsonl", "out.jsonl.run.json"])
def test_an_input_is_not_written_over(tmp_path, capsys, name):
    given = tmp_path / name
    given.write_text('{"context": "a", "continuation": " b"}\n', encoding="utf-8")
    output = tmp_path / name.removesuffix(".run.json")
    words = ["score", "--model", GPT2, "--input", str(given), "--output", str(output)]
    assert main(words) == 2
    assert "is an input of this run" in capsys.readouterr().err
    assert given.read_text("utf-8").startswith("{")

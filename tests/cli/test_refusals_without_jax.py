"""Refusals that need no model import no JAX, which takes a second."""

import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import QWEN, with_input

# Runs the command lines that stand on stdin, and says of each what it has imported.
PROBE = """
import contextlib, io, json, sys
from jaxscore.cli.main import main
for words in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    modules = [name for name in ("jax", "transformers", "torch") if name in sys.modules]
    print(json.dumps([code, err.getvalue(), modules]))
"""
GIVEN = ["--model", QWEN, "--input", "in.jsonl", "--output", "out.jsonl"]
REFUSED = {  # name -> words of the command line, and what the message says
    "mistyped command": (["scor"], "is it score?"),
    "missing input": (with_input(["score", *GIVEN], "none.jsonl"), "none.jsonl: No such file"),
    "missing folder": (with_input(["score", *GIVEN], "none/a.jsonl"), "the folder none is missing"),
    "bad first line": (with_input(["score", *GIVEN], "bad.jsonl"), "bad.jsonl:1: not JSON"),
    "UTF-16": (with_input(["score", *GIVEN], "wide.jsonl"), "found UTF-16, expected UTF-8"),
    "output in a file": (["score", *GIVEN, "--output", "bad.jsonl/out"], "bad.jsonl is not"),
    "output is an input": (["score", *GIVEN, "--output", "in.jsonl"], "is an input of this run"),
    "batch tokens": (["score", *GIVEN, "--batch-tokens", "-5"], "-5, expected a whole number"),
    "mesh": (["score", *GIVEN, "--mesh", "data=0"], "mesh 'data=0'"),
    "measure": (["score", *GIVEN, "--measures", "rnk"], "'rnk'"),
    "model folder": (["score", *GIVEN, "--model", "./none"], "model ./none: no such folder"),
    "hub id": (["score", *GIVEN, "--model", "no/such"], "no/such: no such folder, not in"),
    "no config.json": (["score", *GIVEN, "--model", "empty"], "empty/config.json: No such file"),
    "refused family": (["score", *GIVEN, "--model", "rwkv"], "rwkv"),
    "adapter": (["score", *GIVEN, "--lora", "none"], "adapter none: no such folder"),
    "journal": (["score", *GIVEN, "--journal", "in.jsonl"], "in.jsonl"),
    "reference": (["divergence", *GIVEN, "--reference", "./none"], "model ./none: no such folder"),
    "paths": (["paths", *GIVEN[:-1], "out.json"], 'in.jsonl:1: no field "question"'),
    "probsem folder": (
        ["probsem", "--model", QWEN, "--prompt", "p", "--test", "t", "--input-dir", "none"],
        "none: no such folder, expected prompts and tests",
    ),
    "judge folder": (["judge", "--llm", QWEN, "--folder", "none"], "the folder none is missing"),
    "experiments": (["judge", "--llm", QWEN, "--experiments-folder", "none"], "no such folder"),
    "metrics folder": (["metrics", "--folder", "none"], "the folder none is missing"),
    "lm-eval": (
        ["lm-eval", "--model_args", "pretrained=./none", "--tasks", "x"],
        "model ./none: no such folder",
    ),
    "families": (["families", "--model", "none"], "--model none: neither a folder"),
    "plan": (["plan", "--model", "none"], "--model none: neither a folder"),
    "convert": (["convert", "--model", "./none", "--output", "new"], "model ./none: no such"),
    "serve": (["serve", "--model", "./none"], "model ./none: no such folder"),
    "compare": (["compare", "none.json", "in.jsonl"], "none.json: No such file"),
}  # fmt: skip


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """name -> (exit code, stderr, modules), all from one process: an import would stay."""
    folder = tmp_path_factory.mktemp("refusals")
    line = '{"context": "a", "continuation": " b"}\n'
    (folder / "in.jsonl").write_text(line, encoding="utf-8")
    (folder / "bad.jsonl").write_text("{", encoding="utf-8")
    (folder / "wide.jsonl").write_text(line, encoding="utf-16")
    (folder / "empty").mkdir()
    (folder / "rwkv").mkdir()
    (folder / "rwkv/config.json").write_text('{"model_type": "rwkv"}', encoding="utf-8")
    commands = [list(map(str, words)) for words, _ in REFUSED.values()]
    ran = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=folder, input=json.dumps(commands),
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return dict(zip(REFUSED, map(json.loads, ran.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_does_not_import_jax(refused, name):
    code, err, modules = refused[name]
    assert (code, modules) == (2, [])
    assert REFUSED[name][1] in err
    assert err.count("\n") == 1


def test_an_unknown_model_offline_takes_two_lines_of_a_terminal(refused):
    """What was looked for, where, and what to do, without the hub's own paragraph."""
    _, err, _ = refused["hub id"]
    assert "not in the hub's cache, and HF_HUB_OFFLINE is set" in err
    assert "give a local folder" in err
    assert len(err) <= 2 * 80

"""Runs the command line in this process, on files of a fresh folder."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jaxscore.cli.main import main
from tests.conftest import CASES

QWEN = str(CASES / "models/tiny-qwen2")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys):
    """`run(words...)`: exit code, stdout and stderr. A traceback would be an exception here."""

    def call(*words: object) -> Ran:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as stop:  # argparse's own way out
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def place(tmp_path):
    """A folder with `in.jsonl`, written from `place(*lines)`: objects, or text as it stands."""

    def write(*lines: Any) -> Path:
        text = [one if isinstance(one, str) else json.dumps(one) for one in lines]
        (tmp_path / "in.jsonl").write_text("".join(f"{one}\n" for one in text), encoding="utf-8")
        return tmp_path

    return write


def with_text_prompts(scorer, requests):
    """Generation requests whose prompts are the texts of their ids."""
    decode = scorer.encoder.tokenizer.decode
    return [dataclasses.replace(request, prompt=decode(request.prompt)) for request in requests]


def with_input(words, path):
    """Words of a command line with another --input; a repeated one would be a second file."""
    words = list(words)
    words[words.index("--input") + 1] = path
    return words


def strict(text: str) -> Any:
    """JSON as the standard has it: no NaN and no Infinity."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)

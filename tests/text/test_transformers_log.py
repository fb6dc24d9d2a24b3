"""Loading leaves the verbosity of transformers as its user has chosen it."""

import subprocess
import sys

import pytest
from transformers.utils import logging

from jaxscore.errors import InputError
from jaxscore.models.load import load
from jaxscore.text.tokenizer import load_tokenizer
from jaxscore.text.transformers_log import errors_only
from tests.conftest import CASES, ROOT
from tests.releases import flax_classes

GPT2 = CASES / "models/tiny-gpt2"


@pytest.fixture(params=[logging.DEBUG, logging.CRITICAL])
def level(request):
    before = logging.get_verbosity()
    logging.set_verbosity(request.param)
    yield request.param
    logging.set_verbosity(before)


def test_only_errors_inside(level):
    with errors_only():
        assert logging.get_verbosity() == logging.ERROR
    assert logging.get_verbosity() == level


def test_a_tokenizer(level):
    load_tokenizer(GPT2)
    assert logging.get_verbosity() == level
    with pytest.raises(InputError):
        load_tokenizer(CASES)
    assert logging.get_verbosity() == level


WITHOUT_TORCH = """
import os, sys
sys.modules["torch"] = None
from pathlib import Path
from jaxscore.text.tokenizer import load_tokenizer
load_tokenizer(Path(sys.argv[1]))
print(os.environ.get("TRANSFORMERS_NO_ADVISORY_WARNINGS"))
"""


@pytest.mark.parametrize("told", [None, "0"])
def test_nothing_is_said_of_a_missing_pytorch(told, monkeypatch):
    monkeypatch.delenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", raising=False)
    if told is not None:
        monkeypatch.setenv("TRANSFORMERS_NO_ADVISORY_WARNINGS", told)
    command = [sys.executable, "-c", WITHOUT_TORCH, GPT2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stderr, done.stdout.strip()) == ("", str(told))


@flax_classes
def test_a_flax_class(level):
    load(GPT2, dtype="float32", implementation="transformers")
    assert logging.get_verbosity() == level

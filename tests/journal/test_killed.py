"""A run that is killed again and again ends with the bytes of one that was left alone."""

import contextlib
import functools
import json
import random
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.journal import unpack_scores
from jaxscore.journal.files import JournaledModel, list_models
from tests.conftest import CASES
from tests.journal.fork_server import Command

pytestmark = pytest.mark.slow

KILLS, A_CHAIN = 10, 5
N_REQUESTS = 1500


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Inputs whose contexts are shared by some and whose texts are of many lengths."""
    draw, folder = random.Random(5), tmp_path_factory.mktemp("killed")
    words = [f"w{draw.randrange(10**4)}" for _ in range(300)]
    with open(folder / "in.jsonl", "w", encoding="utf-8") as file:
        for k in range(N_REQUESTS):
            context = " ".join(words[k % 50 : k % 50 + draw.randrange(1, 25)])
            text = " " + " ".join(draw.choices(words, k=draw.randrange(1, 12)))
            file.write(json.dumps({"id": k, "context": context, "continuation": text}) + "\n")
    return folder


def start(folder: Path, output: str) -> Command:
    words = ["score", "--model", CASES / "models/tiny-gpt2", "--input", folder / "in.jsonl"]
    words += ["--output", folder / output, "--batch-tokens", "256"]
    return Command(words, folder / f"log-{output}")


def finish(command: Command) -> str:
    """Output of a run that ends well."""
    code, said = command.finish()
    assert code == 0, said
    return said


def models_in_copy(journal: Path) -> list[JournaledModel]:
    """Models of a journal, read from a copy, since a run locks it; [] if the copy is torn."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(InputError, OSError):
        for path in (journal, journal.with_name(f"{journal.name}-wal")):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(path, folder)
        return list_models(Path(folder) / journal.name)
    return []


def kept(journal: Path) -> int:
    """Texts of which it holds something; 0 before a run has created it."""
    return sum(one.n_sequences for one in models_in_copy(journal))


def complete(journal: Path) -> int:
    """Texts of which it holds every token."""
    with contextlib.closing(sqlite3.connect(journal)) as database:
        rows = database.execute("SELECT value FROM scores").fetchall()
    return sum(bool(np.isfinite(unpack_scores(value).logprob).all()) for (value,) in rows)


def killed(command: Command, n_kept: Callable[[], int], before: int, draw: random.Random) -> int:
    """What is kept by a run that is killed at some moment after it kept more than before."""
    while command.is_running() and n_kept() <= before:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.25))
    command.kill()
    now = n_kept()
    assert now >= before  # nothing that was kept is lost
    return now


def test_killed_at_random_moments(place):
    finish(start(place, "whole.jsonl"))
    want = (place / "whole.jsonl").read_bytes()
    n_texts = kept(place / ".jaxscore/whole.jsonl.journal")
    assert n_texts > N_REQUESTS / 2
    draw, partial = random.Random(11), 0
    for chain in range(KILLS // A_CHAIN):
        name = f"out{chain}.jsonl"
        journal = place / f".jaxscore/{name}.journal"
        before = 0
        for _ in range(A_CHAIN):
            now = killed(start(place, name), functools.partial(kept, journal), before, draw)
            partial += before < now < n_texts
            before = now
        whole = complete(journal)
        said = finish(start(place, name))
        assert (place / name).read_bytes() == want
        restored = int(re.search(r"(\d+) of \d+ texts come from it", said)[1])
        assert restored >= whole > 0
        leftovers = {path.name for path in place.rglob(f"{name}*")}
        reports = (".report.html", ".report.json", ".report.md")
        endings = ("", ".journal", ".run.json", *reports)
        assert leftovers == {name + end for end in endings}
    assert partial >= KILLS // 4  # most kills were in the middle of the work

"""A run that writes and is killed again and again ends with the bytes of one left alone."""

import functools
import json
import random
import re
from pathlib import Path

import pytest

from tests.conftest import CASES
from tests.journal.fork_server import Command
from tests.journal.test_killed import killed, models_in_copy

pytestmark = pytest.mark.slow

KILLS = 3
N_ITEMS = 192


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Questions and responses of many lengths, and one item that cannot be used."""
    draw, folder = random.Random(5), tmp_path_factory.mktemp("killed")
    names = ("Arlen", "Ines", "Tova", "Marek", "Sana")

    def text(n):
        return " ".join(f"{draw.choice(names)} {draw.randrange(99)}" for _ in range(n))

    items = [
        {"chat_history": [text(draw.randrange(1, 6))], "output": [text(draw.randrange(1, 9)), "4"]}
        for _ in range(N_ITEMS)
    ]
    items[7] = {"output": ["3"]}
    (folder / "usc-generate.json").write_text(json.dumps(items), encoding="utf-8")
    asked = [{"prompt": " ".join(one.get("chat_history", []))} for one in items]
    asked[7] = {"prompt": None}
    lines = "".join(f"{json.dumps(one)}\n" for one in asked)
    (folder / "sample.jsonl").write_text(lines, encoding="utf-8")
    return folder


def start(folder: Path, given: str, output: str) -> Command:
    name = Path(given).stem
    words = [name, "--model", CASES / "models/tiny-qwen2", "--temperature", "0.9"]
    words += ["--input", folder / given, "--output", folder / output, "-n", "2"]
    return Command([*words, "--max-new-tokens", 32], folder / f"log-{output}")


def finish(command: Command) -> int | None:
    """How many texts were in the journal; or None if the output had all of them."""
    code, said = command.finish()
    assert code == 1, said  # one item cannot be used
    if "nothing was left to do" in said:
        return None
    return int(re.search(r"(\d+) of \d+ texts come from it", said)[1])


def kept(journal: Path) -> int:
    """Texts that it holds; 0 before a run has created it."""
    return sum(one.n_texts for one in models_in_copy(journal))


@pytest.mark.parametrize("given", ["usc-generate.json", "sample.jsonl"])
def test_killed_at_random_moments(place, given):
    whole, out = f"whole-{given}.json", f"out-{given}.json"
    assert finish(start(place, given, whole)) == 0
    want = (place / whole).read_bytes()
    n_texts = kept(place / f".jaxscore/{whole}.journal")
    assert n_texts > N_ITEMS * 0.9  # as many as there are different ones
    journal, draw = place / f".jaxscore/{out}.journal", random.Random(11)
    before, partial = 0, 0
    for _ in range(KILLS):
        now = killed(start(place, given, out), functools.partial(kept, journal), before, draw)
        partial += before < now < n_texts
        before = now
    found = finish(start(place, given, out))
    assert before > 0
    assert before == n_texts if found is None else found >= before
    assert (place / out).read_bytes() == want
    assert kept(journal) == n_texts
    assert partial >= KILLS - 1  # kills were in the middle of the work

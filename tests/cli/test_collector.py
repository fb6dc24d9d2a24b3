"""The collector of cycles around a command."""

import gc

from jaxscore.engine import stages
from tests.cli.conftest import QWEN


def test_a_command_that_loads_a_model_leaves_it_as_it_was(run, place, monkeypatch):
    before, seen = gc.get_threshold(), []
    passed = stages.freeze_existing
    monkeypatch.setattr(
        stages, "freeze_existing", lambda: (passed(), seen.append(gc.get_freeze_count()))
    )
    folder = place({"continuation": "one two"})
    words = ("score", "--model", QWEN, "--input", folder / "in.jsonl", "--quiet")
    assert run(*words, "--output", folder / "out.jsonl", "--journal", "off").code == 0
    assert seen[0] > 10_000
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)

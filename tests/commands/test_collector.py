"""The collector of cycles: seldom while a command runs, and as before after it."""

import gc
import weakref

import pytest

from jaxscore.commands import collector
from tests.commands.conftest import QWEN


class Cycle:
    def __init__(self):
        self.own = self


def test_it_looks_seldom_and_is_as_before_after_it():
    before = gc.get_threshold()

    def run():
        with collector.calm():
            assert gc.get_threshold() == collector.SELDOM
            raise ValueError("ends")

    with pytest.raises(ValueError, match="ends"):
        run()
    assert gc.get_threshold() == before


def test_what_existed_is_passed_over_until_the_end():
    old = Cycle()
    one = weakref.ref(old)
    with collector.calm():
        collector.pass_over()
        del old
        new = weakref.ref(Cycle())
        gc.collect()
        assert one() is not None
        assert new() is None
    gc.collect()
    assert one() is None


def test_a_command_that_loads_a_model_leaves_it_as_it_was(run, place, monkeypatch):
    before, seen = gc.get_threshold(), []
    passed = collector.pass_over
    monkeypatch.setattr(
        collector, "pass_over", lambda: (passed(), seen.append(gc.get_freeze_count()))
    )
    folder = place({"continuation": "one two"})
    words = ("score", "--model", QWEN, "--input", folder / "in.jsonl", "--quiet")
    assert run(*words, "--output", folder / "out.jsonl", "--journal", "off").code == 0
    assert seen[0] > 10_000
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)

"""Stages hand on items in order, and whatever ends one ends the others."""

import gc
import itertools
import sys
import threading
import time
import weakref

import pytest

from jaxscore.engine import stages
from jaxscore.engine.stages import Stage


def until(true, seconds=10.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def threads():
    return [one for one in threading.enumerate() if one.name.startswith("jaxscore ")]


def test_items_come_in_order_through_several_stages():
    doubled = Stage("double", (2 * k for k in range(100)), 3)
    assert list(Stage("more", (k + 1 for k in doubled), 1)) == [2 * k + 1 for k in range(100)]
    until(lambda: not threads())


def test_no_more_items_are_made_than_there_is_room_for():
    made = []

    def source():
        for k in itertools.count():
            made.append(k)
            yield k

    stage = Stage("source", source(), 2)
    until(lambda: len(made) == 3)  # two that wait, and one that is held
    time.sleep(0.05)
    assert len(made) == 3
    assert next(stage) == 0
    until(lambda: len(made) == 4)
    stage.stop()
    until(lambda: not threads())


def test_what_ends_the_source_comes_after_its_items():
    def source():
        yield 1
        raise ValueError("broken")

    stage = Stage("second", Stage("first", source(), 1), 1)
    assert next(stage) == 1
    until(lambda: stage.failed)
    for _ in range(2):  # and again to whoever asks again
        with pytest.raises(ValueError, match="broken"):
            next(stage)


def test_a_stage_that_waits_for_a_stopped_one_ends(monkeypatch):
    monkeypatch.setattr(stages, "MOMENT", 10.0)
    forever = threading.Event()

    def source():
        yield 1
        forever.wait()

    first = Stage("first", source(), 1)
    second = Stage("second", first, 1)
    assert next(second) == 1
    assert not second.ready
    stopping = threading.Thread(target=first.stop)
    stopping.start()
    with pytest.raises(StopIteration):
        next(second)
    forever.set()
    stopping.join()
    until(lambda: not threads())


def test_one_that_is_stopped_while_its_end_is_taken(monkeypatch):
    """Nobody waits for room for the end, whichever of the threads comes first."""
    monkeypatch.setattr(stages, "MOMENT", 10.0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            stage = Stage("nothing", iter(()), 1)
            taking = threading.Thread(target=list, args=(stage,), daemon=True)
            stopping = threading.Thread(target=stage.stop, daemon=True)
            taking.start()
            stopping.start()
            for one in (taking, stopping):
                one.join(10)
                assert not one.is_alive()
    finally:
        sys.setswitchinterval(before)
    until(lambda: not threads())


class Cycle:
    def __init__(self):
        self.own = self


def test_it_looks_seldom_and_is_as_before_after_it():
    before = gc.get_threshold()

    def run():
        with stages.rare_collection():
            assert gc.get_threshold() == stages.SELDOM
            raise ValueError("ends")

    with pytest.raises(ValueError, match="ends"):
        run()
    assert gc.get_threshold() == before


def test_what_a_user_has_asked_for_meanwhile_stays():
    before = gc.get_threshold()
    try:
        with stages.rare_collection():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


def test_what_existed_is_passed_over_until_the_end():
    old = Cycle()
    one = weakref.ref(old)
    with stages.rare_collection():
        stages.freeze_existing()
        del old
        new = weakref.ref(Cycle())
        gc.collect()
        assert one() is not None
        assert new() is None
    gc.collect()
    assert one() is None


def test_blocks_may_end_in_any_order():
    """As streams do that are read in turns."""
    before = gc.get_threshold()
    one, other = stages.rare_collection(), stages.rare_collection()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold() == stages.SELDOM
    other.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_what_a_user_has_frozen_stays_so():
    gc.freeze()
    try:
        with stages.rare_collection():
            pass
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_a_stream_looks_seldom_while_it_is_read(scorers):
    before = gc.get_threshold()
    found = scorers("tiny-gpt2").stream([f"text {k}" for k in range(4)], window=1)
    next(found)
    assert gc.get_threshold() == stages.SELDOM
    found.close()
    assert gc.get_threshold() == before

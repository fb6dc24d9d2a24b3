"""The collector of cycles: seldom while a run lasts, and as before after it."""

import gc
import weakref

import pytest

from jaxscore.engine import collector


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


def test_what_a_user_has_asked_for_meanwhile_stays():
    before = gc.get_threshold()
    try:
        with collector.calm():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


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


def test_blocks_may_end_in_any_order():
    """As streams do that are read in turns."""
    before = gc.get_threshold()
    one, other = collector.calm(), collector.calm()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert gc.get_threshold() == collector.SELDOM
    other.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_what_a_user_has_frozen_stays_so():
    gc.freeze()
    try:
        with collector.calm():
            pass
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_a_stream_looks_seldom_while_it_is_read(scorers):
    before = gc.get_threshold()
    found = scorers("tiny-gpt2").stream([f"text {k}" for k in range(4)], window=1)
    next(found)
    assert gc.get_threshold() == collector.SELDOM
    found.close()
    assert gc.get_threshold() == before

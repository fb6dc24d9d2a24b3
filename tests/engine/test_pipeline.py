"""The dispatch loop without a model: order, batches in flight, interruption, what is kept."""

import itertools
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from jaxscore.device.rows import Scores
from jaxscore.engine import journal_writer
from jaxscore.engine.dispatch import InFlight, PlannedBatch
from jaxscore.engine.pipeline import AHEAD, IN_FLIGHT, Pipeline
from jaxscore.engine.planner import Planner
from jaxscore.engine.progress import RunStatistics
from jaxscore.errors import InputError
from jaxscore.io import interrupts
from jaxscore.journal import pack_scores, unpack_scores
from jaxscore.plan.requests import BASE_SCORES, SequenceScores
from tests.engine.test_planner import FACTS
from tests.sequences import sequence


def score(path, target):
    """A number of (the path's ids, target) alone, in place of a model's."""
    return -float((sum(k * id for k, id in enumerate(path, 1)) * 7 + target) % 1000 + 1)


class FakeDispatch:
    """Scores each query from what its row shows of its path, as soon as it may."""

    def __init__(self):
        self.n_sent = self.n_waiting = self.most_waiting = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def prefix(self, variant, ids, progress):
        assert not len(ids)
        return ()

    def together(self, variant, batches):
        return ([PlannedBatch(batch, None)] for batch in batches)

    def send(self, variant, batches, caches, progress, top):
        self.n_sent += 1
        self.n_waiting += 1
        self.most_waiting = max(self.most_waiting, self.n_waiting)
        return InFlight(variant, batches, caches, top, None)

    def fetched(self, in_flight, progress):
        assert self.may_answer.wait(10)
        self.n_waiting -= 1
        for batch, _ in in_flight.batches:
            asked = batch.scored
            logprob = np.zeros(len(asked.answer), np.float32)
            for k in range(len(batch.edge)):
                row, column = divmod(int(asked.query[asked.slot[k]]), batch.shape[1])
                seen = np.flatnonzero(batch.subtree_end[row, : column + 1] > column)
                logprob[k] = score(batch.ids[row, seen].tolist(), int(asked.answer[k]))
            nothing = np.zeros(len(asked.query), np.float32)
            yield batch, Scores(logprob, logprob < -500, nothing, nothing, nothing.astype(int))


class FakeJournal:
    path = Path("journal")

    def __init__(self):
        self.rows = {}

    def read_scores(self, sequences, wanted):
        keys = [one.digest() for one in sequences]
        return {k: self.rows[key] for k, key in enumerate(keys) if key in self.rows}

    def write_scores(self, finished, wanted):
        self.rows |= {one.digest(): scores for one, scores in finished}


def loop(journal=None):
    planner = Planner(FACTS, batch_tokens=64, reproducible=False)
    dispatch = FakeDispatch()
    run = Pipeline(planner, dispatch, RunStatistics(), journal)
    return run, dispatch


def windows(n_windows=5, size=6, seed=0):
    draw = np.random.default_rng(seed)
    return [
        [sequence(draw.integers(1, 90, draw.integers(2, 60)).tolist(), 1) for _ in range(size)]
        for _ in range(n_windows)
    ]


def expected(one):
    ids = one.ids.tolist()
    return [score(ids[:k], ids[k]) for k in range(one.first_scored, len(ids))]


def assert_right(given, got):
    assert len(given) == len(got)
    for window, scores in zip(given, got, strict=True):
        for one, found in zip(window, scores, strict=True):
            np.testing.assert_array_equal(found.logprob, np.array(expected(one), np.float32))


def test_windows_come_back_in_order_with_few_batches_in_flight():
    run, dispatch = loop()
    given = windows()
    assert_right(given, list(run.score_windows(iter(given))))
    assert dispatch.n_sent > len(given)
    assert dispatch.most_waiting == IN_FLIGHT + 1
    assert run.statistics.sequences == sum(map(len, given))


def test_what_a_journal_has_is_not_sent_again():
    journal, given = FakeJournal(), windows()
    first, sent = loop(journal)
    assert_right(given, list(first.score_windows(iter(given))))
    assert sent.n_sent > 0
    kept = [journal.rows[one.digest()] for window in given for one in window]
    assert all(np.isfinite(scores.logprob).all() for scores in kept)
    again, unsent = loop(journal)
    assert_right(given, list(again.score_windows(iter(given))))
    assert unsent.n_sent == 0
    assert again.statistics.sequences_restored == sum(map(len, given))
    assert again.statistics.plan_hash == first.statistics.plan_hash
    lost = given[2][3]
    del journal.rows[lost.digest()]
    third, few = loop(journal)
    assert_right(given, list(third.score_windows(iter(given))))
    assert few.n_sent == 1


def test_an_interruption_keeps_what_is_in_flight(monkeypatch):
    journal, given = FakeJournal(), windows(2, 20)
    whole, every = loop()
    list(whole.score_windows(iter(given)))
    run, dispatch = loop(journal)
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "interrupt_requested", lambda: dispatch.n_sent == 4)
        with pytest.raises(KeyboardInterrupt):
            list(run.score_windows(iter(given)))
    assert (dispatch.n_sent, dispatch.n_waiting) == (4, 0)
    again, rest = loop(journal)
    assert_right(given, list(again.score_windows(iter(given))))
    assert rest.n_sent == every.n_sent - 4  # none of them again
    ended()


def test_an_error_of_the_device_keeps_what_was_fetched(monkeypatch):
    journal, given = FakeJournal(), windows(2, 20)
    whole, every = loop()
    list(whole.score_windows(iter(given)))
    run, dispatch = loop(journal)
    send = dispatch.send

    def broken(*args):
        if dispatch.n_sent == 5:
            raise InputError("does not fit")
        return send(*args)

    dispatch.send = broken
    with pytest.raises(InputError, match="does not fit"):
        list(run.score_windows(iter(given)))
    again, rest = loop(journal)
    assert_right(given, list(again.score_windows(iter(given))))
    assert rest.n_sent == every.n_sent - (5 - dispatch.n_waiting)


def test_with_a_journal_too_batches_are_in_flight_across_windows():
    given = windows(8, 1)  # a batch each, and no text twice
    run, dispatch = loop(FakeJournal())
    send = dispatch.send

    def slow(*args):
        time.sleep(0.05)  # the next window is planned meanwhile
        return send(*args)

    dispatch.send = slow
    assert_right(given, list(run.score_windows(iter(given))))
    assert dispatch.most_waiting == IN_FLIGHT + 1


def test_a_text_of_the_window_before_is_found_and_not_sent_again():
    """Though its batch may still be in flight when the second window comes."""
    [one, other] = windows(2, 1)
    run, _ = loop(FakeJournal())
    given = [one, [*one, *other], one]
    assert_right(given, list(run.score_windows(iter(given))))
    assert run.statistics.sequences_restored == 2


def test_a_journal_that_cannot_be_written_ends_the_run():
    class Full(FakeJournal):
        def write_scores(self, finished, wanted):
            raise InputError("disk is full")

    run, _ = loop(Full())
    with pytest.raises(InputError, match="disk is full"):
        list(run.score_windows(iter(windows())))
    ended()


def test_of_several_processes_the_first_one_tells_what_it_found(monkeypatch):
    """The others get the same rows, through bytes."""
    [given] = windows(1)
    journal = FakeJournal()
    known = SequenceScores(*(np.array([-1.5, np.nan], np.float32) for _ in range(3)), [True, False])
    journal.rows = {given[k].digest(): known for k in (1, 4)}
    processes, sent = journal_writer.processes, []
    monkeypatch.setattr(processes, "is_distributed", lambda: True)
    monkeypatch.setattr(
        processes, "broadcast_from_first", lambda value: sent.append(value) or sent[0]
    )

    def read(journal):
        return journal_writer.read_journal(
            journal, lambda own: own.read_scores(given, BASE_SCORES), pack_scores, unpack_scores
        )

    ours = read(journal)
    monkeypatch.setattr(processes, "is_first", lambda: False)
    theirs = read(FakeJournal())
    assert list(ours) == list(theirs) == [1, 4]
    for one in (*ours.values(), *theirs.values()):
        np.testing.assert_array_equal(one.logprob, known.logprob)
        assert one.greedy.tolist() == known.greedy


def ended():
    """Wait until no thread of a run is left."""
    until = time.monotonic() + 10
    while any(one.name.startswith("jaxscore ") for one in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_windows_that_send_nothing_hold_nobody_up():
    """The first window's batches wait for no later one."""
    run, _ = loop()
    [first] = windows(1, 2)
    given = [first, [], [], [], []]
    assert_right(given, list(run.score_windows(iter(given))))


def halves(given):
    """Each window in two parts, the second of which ends it."""
    for window in given:
        yield window[:3], False
        yield window[3:], True


def joined(parts):
    """The windows of `halves`."""
    out = []
    for some, last in parts:
        out += some
        if last:
            yield out
            out = []


def test_windows_are_made_of_parts_in_a_thread_of_their_own():
    given, made_in, read_in = windows(), set(), set()

    def read():
        for part in halves(given):
            read_in.add(threading.current_thread())
            yield part

    def made(parts):
        for window in joined(parts):
            made_in.add(threading.current_thread())
            yield window

    run, _ = loop()
    assert_right(given, list(run.score_windows(read(), windows=made, chunks_ahead=2)))
    assert read_in == {threading.current_thread()}
    assert len(made_in) == 1
    assert made_in.isdisjoint(read_in)
    ended()


def test_few_parts_are_read_before_windows_are_made_of_them():
    given, n_read = windows(20), 0

    def read():
        nonlocal n_read
        for part in halves(given):
            n_read += 1
            yield part

    run, _ = loop()
    found = run.score_windows(read(), windows=joined, chunks_ahead=3)
    for k in range(10):
        next(found)
        # Windows that were taken, AHEAD + 1 that are open, and parts that wait.
        assert n_read <= 2 * (k + 1 + AHEAD + 1) + 3
    found.close()
    ended()


def test_parts_that_cannot_become_windows_end_the_run():
    def broken(parts):
        yield from itertools.islice(joined(parts), 2)
        raise ValueError("a text has no tokens")

    run, _ = loop()
    with pytest.raises(ValueError, match="a text has no tokens"):
        list(run.score_windows(itertools.cycle(halves(windows())), windows=broken, chunks_ahead=2))
    ended()


def test_what_is_computed_when_a_window_cannot_be_made_is_handed_out_and_kept():
    journal, given, failed = FakeJournal(), windows(2), threading.Event()
    run, dispatch = loop(journal)

    def broken(parts):
        yield from itertools.islice(parts, 2)
        failed.set()
        raise ValueError("a text has no tokens")

    answered = dispatch.fetched

    def fetched(*args):
        assert failed.wait(10)
        yield from answered(*args)

    dispatch.fetched, found = fetched, []
    with pytest.raises(ValueError, match="a text has no tokens"):
        found.extend(run.score_windows(iter(given), windows=broken, chunks_ahead=4))
    ended()
    assert dispatch.n_waiting == 0
    assert set(journal.rows) == {one.digest() for window in given for one in window}
    assert_right(given, found)


@pytest.mark.parametrize("made", [None, joined])
def test_a_run_that_nobody_reads_on_ends_its_threads(made):
    run, _ = loop()
    given = windows(20)
    found = run.score_windows(iter(given) if made is None else halves(given), windows=made)
    next(found)
    found.close()
    ended()


def test_an_input_that_cannot_be_read_on_ends_the_run():
    run, _ = loop()

    def given():
        yield from windows(2)
        raise ValueError("line 3")

    with pytest.raises(ValueError, match="line 3"):
        list(run.score_windows(given()))
    ended()


def test_a_slow_reader_does_not_stop_the_device():
    """While the first scores are looked at, the windows that were read are computed."""
    run, dispatch = loop()
    given = windows(4)
    dispatch.may_answer.clear()

    def read():
        yield from given[: AHEAD + 1]
        dispatch.may_answer.set()  # those are admitted, and no scores were there to look at
        yield from given[AHEAD + 1 :]

    found = run.score_windows(read())
    first = next(found)
    until = time.monotonic() + 10
    while run.statistics.sequences < sum(map(len, given[: AHEAD + 1])):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert_right(given, [first, *found])
    assert dispatch.n_waiting == 0

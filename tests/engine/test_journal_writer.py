"""What a run keeps: each text once, in time, in bounded memory, and nothing is lost in silence."""

import threading

import numpy as np
import pytest

from jaxscore.engine import journal_writer
from jaxscore.engine.journal_writer import JournalWriter
from jaxscore.engine.planner import Planner
from jaxscore.errors import InputError
from tests.engine.test_planner import FACTS
from tests.engine.test_stages import threads, until
from tests.plan.test_result_assembly import answers
from tests.sequences import sequence


class Journal:
    """Rows by key, and the transactions that brought them; it can be made to wait or to fail."""

    def __init__(self):
        self.rows, self.writes = {}, []
        self.may_write, self.problem = threading.Event(), None
        self.may_write.set()

    def write_scores(self, finished):
        rows = list(finished)
        assert self.may_write.wait(10)
        if self.problem is not None:
            raise self.problem
        self.writes.append([one.digest() for one, _ in rows])
        self.rows |= {one.digest(): scores for one, scores in rows}


@pytest.fixture
def journal():
    made = Journal()
    yield made
    made.may_write.set()
    until(lambda: not threads())


def texts(n, first=1):
    """A beginning that all share, which overflows a row: each part carries it again."""
    return [sequence([1, 2, 3, *range(first + 10 * k, first + 10 * k + 40)]) for k in range(n)]


def scored(window):
    """(work, edges) of each batch, with its answers put in place."""
    for work, part, plan in window.planned_subforests():
        for batch in plan.batches():
            yield work, work.add_scores(part, batch, answers(batch))


def planned(sequences):
    return Planner(FACTS, batch_tokens=64, reproducible=False).window(sequences)


def test_a_sequence_of_several_batches_is_written_once(journal):
    given = texts(30)
    window = planned(given)
    with JournalWriter(journal.write_scores) as writer:
        n_batches = 0
        for work, edges in scored(window):
            n_batches += 1
            writer.add_scored(window, work, edges)
        assert n_batches > 5
    written = [key for one in journal.writes for key in one]
    assert sorted(written) == sorted(one.digest() for one in given)
    for one in given:
        assert journal.rows[one.digest()].logprob.tolist() == [1.0] * one.n_scored


def test_incomplete_sequences_are_written_after_a_wait_or_at_the_end(journal, monkeypatch):
    window = planned(texts(30))
    batches = scored(window)
    with JournalWriter(journal.write_scores) as writer:
        monkeypatch.setattr(journal_writer, "PARTS_AFTER", 0.0)
        writer.add_scored(window, *next(batches))  # the shared beginning: all texts have it
        until(lambda: len(journal.rows) == 30)
        lacking = [one for one in journal.rows.values() if np.isnan(one.logprob).any()]
        assert len(lacking) > 20
        monkeypatch.undo()
        writer.add_scored(window, *next(batches))
    whole = [one for one in journal.rows.values() if np.isfinite(one.logprob).all()]
    assert len(whole) > 30 - len(lacking)
    assert len(journal.rows) == 30


def test_the_next_transaction_collects_rows_up_to_a_limit(journal, monkeypatch):
    monkeypatch.setattr(journal_writer, "TOGETHER", 8)
    journal.may_write.clear()
    given = [sequence(list(range(k, k + 60))) for k in range(1, 60, 2)]  # a batch each
    window = planned(given)
    n_noted = [0]

    def work():
        with JournalWriter(journal.write_scores) as writer:
            for forest_work, edges in scored(window):
                writer.add_scored(window, forest_work, edges)
                n_noted[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: n_noted[0] == 8)  # the ninth is noted when one of them is written
    thread.join(0.1)
    assert n_noted[0] == 8
    journal.may_write.set()
    thread.join(10)
    assert max(map(len, journal.writes)) > 1
    assert len(journal.rows) == len(given)


def test_a_window_with_unwritten_sequences_is_detected(journal):
    first, second, third = texts(3), texts(3, 500), texts(4)
    windows = [planned(one) for one in (first, second, third)]
    with JournalWriter(journal.write_scores) as writer:
        assert writer.has_written(windows[0])
        for one in scored(windows[0]):
            writer.add_scored(windows[0], *one)
        assert writer.has_written(windows[1])
        assert not writer.has_written(windows[2])  # the first one has batches to come
        windows[0].all_sent = windows[2].all_sent = True
        writer.flush()
        assert writer.has_written(planned(texts(1)))


def test_journal_errors_are_raised_by_the_next_call_and_hide_no_other(journal):
    journal.problem = InputError("disk is full")

    def run(problem=None):
        window = planned(texts(4))
        batches = scored(window)
        with JournalWriter(journal.write_scores) as writer:
            for batch in batches:
                writer.add_scored(window, *batch)
                if problem is not None:
                    raise problem

    with pytest.raises(ValueError, match="the device"):
        run(ValueError("the device"))
    for ended_by in (None, KeyboardInterrupt()):  # after which finished work is said to be kept
        with pytest.raises(InputError, match="disk is full"):
            run(ended_by)

"""Texts as they end, and those that nobody waits for."""

import itertools

import numpy as np
import pytest

from jaxscore import Scorer
from jaxscore.engine.generation import Generator, slots
from jaxscore.engine.generation.slots import SlotTable
from jaxscore.io import interrupts, processes
from jaxscore.plan import decode_slots
from tests.engine.generation.test_options import asked
from tests.io.test_interrupts import press
from tests.journal.test_texts import asked as of_all_kinds
from tests.journal.test_texts import journal, writer  # noqa: F401  fixtures
from tests.releases import native_and_transformers


@pytest.fixture
def generator(monkeypatch, scorers):
    monkeypatch.setattr(decode_slots, "GROUPS", (1, 2))
    monkeypatch.setattr(slots, "STEPS", 4)
    base = scorers("tiny-gpt2")
    return Generator(Scorer(base.model, base.encoder))


@native_and_transformers
def test_each_place_comes_once_with_its_text(writer, implementation):  # noqa: F811
    one, requests = writer(None, implementation), of_all_kinds()
    found = list(one.stream(requests))
    assert sorted(place for place, _ in found) == list(range(len(requests)))
    assert [text for _, text in sorted(found, key=lambda pair: pair[0])] == one.generate(requests)
    assert [text.id for _, text in found] == [requests[place].id for place, _ in found]


def test_results_come_before_all_are_written(generator):
    requests = [asked("word " * k + "The", 6, k) for k in range(1, 8)]
    blocks = []

    def watch(place, ids, ended):
        blocks.append(place)
        return True

    stream = generator.stream([*requests, asked("", 6, "empty")], watch=watch)
    place, one = next(stream)
    assert (place, one.id, "no tokens" in one.error, blocks) == (7, "empty", True, [])
    counts = []
    for place, one in stream:
        assert one.id == requests[place].id
        assert place in blocks
        counts.append(len(blocks))
    assert len(counts) == 7
    assert counts[0] < counts[3] < counts[-1] == len(blocks)


def test_a_short_text_comes_while_a_long_one_beside_it_is_written(generator):
    """And its row goes to the next one."""
    blocks = []

    def watch(place, ids, ended):
        blocks.append(place)
        return True

    requests = [asked("The cat", 30, 0), *(asked(f"a {k}", 24, k) for k in range(1, 4))]
    requests[1] = asked("a", 20, 1)
    stream = generator.stream(requests, watch=watch)
    found = [(place, len(blocks), len(one.token_ids)) for place, one in stream]
    assert sorted(place for place, *_ in found) == [0, 1, 2, 3]
    assert [n for place, _, n in sorted(found)] == [30, 20, 24, 24]
    # Blocks of 4 steps for two rows: 8 + 5 + 6 + 6 blocks of one text each.
    assert len(blocks) == 25
    assert [n for _, n, _ in found][-1] == 25
    assert max(n for _, n, _ in found[:2]) < 16


def test_a_watch_sees_each_block(generator):
    """All ids so far, and at the end that they are all; equal requests are each reported."""
    requests = [asked("The cat", 10, 0), asked("a", 3, 1), asked("The cat", 10, 2)]
    seen = {place: [] for place in range(3)}

    def watch(place, ids, ended):
        seen[place].append((list(ids), ended))
        ids.clear()  # a list of its own
        return True

    found = dict(generator.stream(requests, watch=watch))
    assert found == dict(enumerate(generator.generate(requests)))
    for place, one in found.items():
        ids = one.token_ids.tolist()
        assert seen[place] == [
            (ids[:n], n >= len(ids)) for n in range(4, len(ids) + 4, 4)
        ]  # blocks of four steps


def test_a_text_that_nobody_waits_for_is_not_written_further(generator):
    requests = [asked("The cat", 40, 0), asked("a", 40, 1)]
    calls = []

    def watch(place, ids, ended):
        calls.append((place, len(ids)))
        return place != 0 or len(ids) < 8

    found = dict(generator.stream(requests, watch=watch))
    assert (found[0].error, found[0].text, len(found[0].token_ids)) == ("abandoned", "", 0)
    assert found[1] == generator.generate(requests)[1]
    assert [n for place, n in calls if place == 0] == [4, 8]
    calls.clear()
    assert all(
        one.error == "abandoned"
        for _, one in generator.stream(requests, watch=lambda place, ids, ended: calls.append(1))
    )
    assert len(calls) == 2  # after the first block none is left


def test_one_of_two_that_share_a_text_may_leave(generator):
    requests = [asked("The cat", 12, k) for k in range(2)]
    calls = []

    def watch(place, ids, ended):
        calls.append(place)
        return place == 1

    left, stayed = (one for _, one in sorted(generator.stream(requests, watch=watch)))
    assert (left.id, left.error) == (0, "abandoned")
    assert stayed == generator.generate(requests)[1]
    assert calls == [0, 1, 1, 1]


def test_what_says_false_when_it_has_ended_is_kept(generator):
    requests = [asked("The cat", 4, 0)]
    [(_, one)] = generator.stream(requests, watch=lambda place, ids, ended: not ended)
    assert [one] == generator.generate(requests)


@native_and_transformers
def test_an_abandoned_text_is_not_journaled(writer, journal, implementation):  # noqa: F811
    own = journal()
    requests = [asked("The cat", 40, 0), asked("a", 40, 1)]
    one = writer(own, implementation)
    first = dict(one.stream(requests, watch=lambda place, ids, ended: place == 1))
    database, _ = own._open
    [(n_kept,)] = database.execute("SELECT COUNT(*) FROM texts").fetchall()
    # transformers' classes write a text whole, so there is nothing to leave.
    assert n_kept == (1 if implementation == "native" else 2)
    reported = itertools.count()
    again = dict(one.stream(requests, watch=lambda place, ids, ended: bool(next(reported) + 1)))
    assert again[1] == first[1]
    assert again[0].error is None
    n_blocks = -(-40 // slots.STEPS)
    assert next(reported) == (n_blocks if implementation == "native" else 0)  # of what was missing


def test_texts_are_kept_with_the_eos_that_ended_them(writer, journal):  # noqa: F811
    own = journal()
    [plain] = writer().generate([asked("Question: how many", 12)])
    ids = plain.token_ids.tolist()
    at = next(k for k in range(1, len(ids)) if ids[k] not in ids[:k])
    request = asked("Question: how many", 12, eos_ids=(ids[at], 7))
    [want] = writer(own).generate([request])
    assert (want.finish, want.eos_id) == ("eos", ids[at])
    again = writer(own)
    assert again.generate([request]) == [want]
    assert again.batches == []


def test_several_processes_cannot_watch(monkeypatch, generator):
    monkeypatch.setattr(processes, "is_distributed", lambda: True)
    with pytest.raises(ValueError, match="run of one process"):
        generator.stream([asked("a", 1)], watch=lambda place, ids, ended: True)


def test_prompts_of_ids_and_of_text_that_are_equal_are_written_once(generator):
    [ids] = generator.encoder.prompt_ids(["The cat"])
    before = generator.scorer.statistics.sequences
    seen = []
    found = dict(
        generator.stream(
            [asked("The cat", 4, 0), asked(np.array(ids), 4, 1)],
            watch=lambda place, ids, ended: not seen.append(place),
        )
    )
    assert found[0].token_ids.tolist() == found[1].token_ids.tolist()
    assert seen == [0, 1]
    assert generator.scorer.statistics.sequences == before + 2


@pytest.fixture
def blocks(monkeypatch):
    """Presses Ctrl-C in the first block of steps; counts all of them."""
    run, counted = SlotTable._decode_block, []

    def block(self, everything):
        counted.append(len(counted))
        if len(counted) == 1:
            press()
        return run(self, everything)

    monkeypatch.setattr(SlotTable, "_decode_block", block)
    return counted


def test_an_interrupt_ends_at_once_what_nothing_keeps(generator, blocks):
    with interrupts.handle_interrupts(), pytest.raises(KeyboardInterrupt):
        generator.generate([asked("The cat", 30, 0), asked("a", 20, 1)])
    assert len(blocks) == 1


@pytest.mark.parametrize("way", ["journal", "stream", "processes"])
def test_an_interrupt_lets_texts_end_that_somebody_has(
    generator,
    blocks,
    journal,  # noqa: F811
    monkeypatch,
    way,
):
    taken, requests = [], [asked("The cat", 30, 0), asked("a", 20, 1), asked("more", 9, 2)]
    monkeypatch.setattr(generator.scorer, "journal", journal() if way == "journal" else None)
    if way == "processes":
        monkeypatch.setattr(processes, "is_distributed", lambda: True)
        monkeypatch.setattr(processes, "verify_same", lambda *_: None)
        monkeypatch.setattr(processes, "broadcast_from_first", lambda value: value)

    def take():
        if way != "stream":
            generator.generate(requests)
        for place, _ in generator.stream(requests):
            taken.append(place)

    with interrupts.handle_interrupts(), pytest.raises(KeyboardInterrupt):
        take()
    assert len(blocks) == 5  # of 4 steps, for 20 tokens and 9 beside them; the third never begins
    if way == "stream":
        assert len(taken) == 2
    if way == "journal":
        assert generator.scorer.statistics.sequences_restored == 0
        generator.generate(requests)
        assert generator.scorer.statistics.sequences_restored == 2


def test_tokens_written_leave_out_what_the_journal_has(generator, journal, monkeypatch):  # noqa: F811
    monkeypatch.setattr(generator.scorer, "journal", journal())
    requests = [asked("The cat", 6, 0), asked("a", 5, 1), asked("The cat", 6, 2)]
    for more, n in ((requests[:1], 6), (requests, 5), (requests, 0)):
        before = generator.scorer.statistics.tokens_written
        generator.generate(more)
        assert generator.scorer.statistics.tokens_written - before == n

"""Rows of a cache: each text in one, once, and the same one whatever is known of the others."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.plan.decode_slots import SlotSchedule, refill_size

LENGTHS = st.lists(st.integers(1, 5), max_size=60)  # blocks of each text
ROWS = st.sampled_from([1, 2, 3, 8, 16, 24])


def played(lengths, n_rows, known=frozenset()):
    """(row, first block, blocks) of each text that is written, and the blocks with one."""
    waiting = [(k, n if k in known else None) for k, n in enumerate(lengths)]
    rows, running, found, busy = SlotSchedule(iter(waiting), n_rows), {}, {}, set()
    for block in itertools.count():
        for row, k in rows.begin():
            assert row not in running
            assert k not in found
            running[row], found[k] = k, (row, block, lengths[k])
        if len(found) == len(lengths) - len(known) and not running:
            return found, busy
        if running:
            busy.add(block)
        ended = [row for row, k in running.items() if found[k][1] + lengths[k] == block + 1]
        rows.end(ended)
        for row in ended:
            del running[row]


def by_the_rule(lengths, n_rows):
    """The slow form: a table with the text of each row, read again for each block."""
    waiting, until, found = list(enumerate(lengths)), [0] * n_rows, {}
    for block in itertools.count():
        if not waiting:
            return found
        free = [row for row in range(n_rows) if until[row] <= block]
        if len(free) >= max(1, n_rows // 8):
            for row in free[: len(waiting)]:
                k, n = waiting.pop(0)
                found[k], until[row] = (row, block, n), block + n


@given(LENGTHS, ROWS)
def test_each_text_has_a_row_of_its_own_while_it_is_written(lengths, n_rows):
    found, busy = played(lengths, n_rows)
    assert found == by_the_rule(lengths, n_rows)
    assert sorted(found) == list(range(len(lengths)))
    used = [(row, block) for row, first, n in found.values() for block in range(first, first + n)]
    assert len(used) == len(set(used))
    assert all(0 <= row < n_rows for row, _ in used)
    assert busy == {block for _, block in used}


@given(LENGTHS, ROWS)
def test_a_row_is_idle_only_where_few_are_or_nothing_waits(lengths, n_rows):
    found, busy = played(lengths, n_rows)
    last = max((first for _, first, _ in found.values()), default=0)
    assert [first for _, first, _ in found.values()] == sorted(
        first for _, first, _ in found.values()
    )  # in planned order
    for block in range(last):
        used = sum(first <= block < first + n for _, first, n in found.values())
        assert n_rows - used < refill_size(n_rows)
    assert busy == set(range(max((first + n for _, first, n in found.values()), default=0)))


@given(LENGTHS, ROWS, st.data())
def test_what_is_known_moves_nothing(lengths, n_rows, data):
    whole, _ = played(lengths, n_rows)
    known = data.draw(st.sets(st.integers(0, len(lengths) - 1))) if lengths else set()
    found, busy = played(lengths, n_rows, known)
    assert found == {k: place for k, place in whole.items() if k not in known}
    assert busy == {block for _, first, n in found.values() for block in range(first, first + n)}


@pytest.mark.parametrize(("n_rows", "width"), [(1, 1), (8, 1), (32, 4), (256, 32)])
def test_a_chunk_is_an_eighth_of_the_rows(n_rows, width):
    assert refill_size(n_rows) == width


def test_no_more_texts_are_read_than_rows_are_free():
    read = []
    waiting = ((k, None) for k in range(9) if not read.append(k))
    rows = SlotSchedule(waiting, 3)
    assert rows.begin() == [(0, 0), (1, 1), (2, 2)]
    assert read == [0, 1, 2]
    rows.end([1])
    assert rows.begin() == [(1, 3)]
    assert read == [0, 1, 2, 3]

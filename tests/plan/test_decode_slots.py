"""Each request is in one group with a cache that may exist, and each text in one slot, once."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.plan import decode_slots
from jaxscore.plan.decode_slots import SlotSchedule, refill_size
from jaxscore.plan.requests import TokenRequest

SHARED = 5


def requests(n=120, seed=0):
    """Distinct; some have the same prompt, all begin alike."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, 9, int(k)) for k in draw.integers(1, 900, 40)]
    out = []
    for k in range(n):
        ids = np.r_[np.zeros(SHARED, int), prompts[k % 40]].astype(np.int32)
        out.append(TokenRequest(ids, int(draw.integers(1, 64)), 0.5, 1.0, k, (), ()))
    return out


def within(most_slots):
    return lambda rows, slots: rows * slots <= most_slots


def keys(groups, given):
    return [(one.capacity, one.n_slots, [given[k].digest() for k in one.members]) for one in groups]


@pytest.mark.parametrize("most_rows", [8, 256])
@pytest.mark.parametrize("most_slots", [1, 8 * 512, 10**6])
def test_each_request_is_in_one_group_with_enough_capacity(most_slots, most_rows):
    given = requests()
    groups = decode_slots.group_requests(given, SHARED, within(most_slots), most_rows)
    assert sorted(k for group in groups for k in group.members) == list(range(len(given)))
    for group in groups:
        assert len(group.members) <= group.n_slots <= most_rows
        assert group.n_slots == 1 or group.n_slots * group.capacity <= most_slots
        for one in (given[k] for k in group.members):
            # The last prompt token is fed as the first step, the last one written never.
            assert len(one.ids) - SHARED - 1 + one.n_new - 1 <= group.capacity
    turned = given[::-1]
    again = decode_slots.group_requests(turned, SHARED, within(most_slots), most_rows)
    assert keys(groups, given) == keys(again, turned)


def test_consecutive_groups_of_one_cache_shape_are_joined():
    groups = decode_slots.group_requests(requests(), SHARED, within(8 * 512), 8)
    shared = decode_slots.group_by_cache_shape(groups)
    assert [group for own in shared for group in own] == groups
    shapes = [{(group.capacity, group.n_slots) for group in own} for own in shared]
    assert all(len(shape) == 1 for shape in shapes)
    assert all(a != b for a, b in itertools.pairwise(shapes))
    assert max(map(len, shared)) > 1


def test_one_group_each_depends_on_its_request_alone():
    given = requests()
    each = decode_slots.one_group_each(given)
    assert [one.members for one in each] == [[k] for k in range(len(given))]
    for one, request in zip(each, given, strict=True):
        [group] = decode_slots.one_group_each([request])
        assert keys([group], [request]) == keys([one], given)
        assert (group.n_slots, len(group.members)) == (1, 1)
        assert group.capacity >= len(request.ids) + request.n_new - 2


def test_shared_prefix_needs_enough_tokens_and_several_groups(monkeypatch):
    given = requests()
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", SHARED)
    assert decode_slots.shared_prefix_length(given, 32) == SHARED
    assert decode_slots.shared_prefix_length(given[:32], 32) == 0
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", SHARED + 1)
    assert decode_slots.shared_prefix_length(given, 32) == 0
    assert decode_slots.shared_prefix_length([], 32) == 0


def test_last_token_of_a_prompt_is_not_part_of_the_shared_prefix(monkeypatch):
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", 1)
    prompts = [np.arange(7, dtype=np.int32), *[np.arange(9, dtype=np.int32)] * 40]
    given = [TokenRequest(ids, 4, 0.0, 1.0, 0, (), ()) for ids in prompts]
    assert decode_slots.shared_prefix_length(given, 32) == 6


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
def test_each_running_text_has_a_slot_of_its_own(lengths, n_rows):
    found, busy = played(lengths, n_rows)
    assert found == by_the_rule(lengths, n_rows)
    assert sorted(found) == list(range(len(lengths)))
    used = [(row, block) for row, first, n in found.values() for block in range(first, first + n)]
    assert len(used) == len(set(used))
    assert all(0 <= row < n_rows for row, _ in used)
    assert busy == {block for _, block in used}


@given(LENGTHS, ROWS)
def test_slots_are_idle_only_if_few_are_free_or_no_text_waits(lengths, n_rows):
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
def test_known_texts_do_not_change_the_slots_of_others(lengths, n_rows, data):
    whole, _ = played(lengths, n_rows)
    known = data.draw(st.sets(st.integers(0, len(lengths) - 1))) if lengths else set()
    found, busy = played(lengths, n_rows, known)
    assert found == {k: place for k, place in whole.items() if k not in known}
    assert busy == {block for _, first, n in found.values() for block in range(first, first + n)}


@pytest.mark.parametrize(("n_rows", "width"), [(1, 1), (8, 1), (32, 4), (256, 32)])
def test_refill_size_is_an_eighth_of_the_slots(n_rows, width):
    assert refill_size(n_rows) == width


def test_no_more_texts_are_read_than_slots_are_free():
    read = []
    waiting = ((k, None) for k in range(9) if not read.append(k))
    rows = SlotSchedule(waiting, 3)
    assert rows.begin() == [(0, 0), (1, 1), (2, 2)]
    assert read == [0, 1, 2]
    rows.end([1])
    assert rows.begin() == [(1, 3)]
    assert read == [0, 1, 2, 3]

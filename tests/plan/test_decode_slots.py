"""Groups of texts: each request in one, the same ones in any order, in caches that may be."""

import itertools

import numpy as np
import pytest

from jaxscore.plan import decode_slots
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
def test_each_request_is_in_one_group_that_holds_it(most_slots, most_rows):
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


def test_a_lane_is_of_neighbours_with_caches_of_one_shape():
    groups = decode_slots.group_requests(requests(), SHARED, within(8 * 512), 8)
    lanes = decode_slots.group_by_cache_shape(groups)
    assert [group for lane in lanes for group in lane] == groups
    shapes = [{(group.capacity, group.n_slots) for group in lane} for lane in lanes]
    assert all(len(shape) == 1 for shape in shapes)
    assert all(a != b for a, b in itertools.pairwise(shapes))
    assert max(map(len, lanes)) > 1


def test_one_each_has_a_cache_that_depends_on_the_request_alone():
    given = requests()
    each = decode_slots.one_group_each(given)
    assert [one.members for one in each] == [[k] for k in range(len(given))]
    for one, request in zip(each, given, strict=True):
        [group] = decode_slots.one_group_each([request])
        assert keys([group], [request]) == keys([one], given)
        assert (group.n_slots, len(group.members)) == (1, 1)
        assert group.capacity >= len(request.ids) + request.n_new - 2


def test_a_prefix_is_what_all_begin_with_where_it_is_long_and_there_are_groups(monkeypatch):
    given = requests()
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", SHARED)
    assert decode_slots.shared_prefix_length(given, 32) == SHARED
    assert decode_slots.shared_prefix_length(given[:32], 32) == 0
    monkeypatch.setattr(decode_slots, "SHORTEST_PREFIX", SHARED + 1)
    assert decode_slots.shared_prefix_length(given, 32) == 0
    assert decode_slots.shared_prefix_length([], 32) == 0

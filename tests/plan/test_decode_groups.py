"""Groups of texts: each request in one, the same ones in any order, in caches that may be."""

import numpy as np
import pytest

from jaxscore.engine.writing import TokenRequest, Writing
from jaxscore.journal.row_format import text_key
from jaxscore.plan import decode_groups

SHARED = 5


def waiting(n=120, seed=0):
    """Distinct requests; some have the same prompt, all begin alike."""
    draw = np.random.default_rng(seed)
    prompts = [draw.integers(0, 9, int(k)) for k in draw.integers(1, 900, 40)]
    out = []
    for k in range(n):
        ids = np.r_[np.zeros(SHARED, int), prompts[k % 40]].astype(np.int32)
        out.append(Writing(TokenRequest(ids, int(draw.integers(1, 64)), 0.5, 1.0, k, (), ())))
    return out


def keys(groups):
    return [
        (one.slots, one.rows, [text_key(text.request) for text in one.members]) for one in groups
    ]


@pytest.mark.parametrize("most_slots", [1, 8 * 512, 10**6])
def test_each_request_is_in_one_group_that_holds_it(most_slots):
    given = waiting()
    groups = decode_groups.groups(given, SHARED, most_slots)
    members = [id(one) for group in groups for one in group.members]
    assert sorted(members) == sorted(map(id, given))
    for group in groups:
        assert len(group.members) <= group.rows
        assert group.rows == 1 or group.rows * group.slots <= most_slots
        for one in group.members:
            # The last prompt token is fed as the first step, the last one written never.
            assert len(one.request.ids) - SHARED - 1 + one.request.n_new - 1 <= group.slots
    assert keys(groups) == keys(decode_groups.groups(given[::-1], SHARED, most_slots))


def test_alone_the_cache_depends_on_the_request_alone():
    given = waiting()
    alone = {one.members[0].request.seed: keys([one]) for one in decode_groups.each_alone(given)}
    assert len(alone) == len(given)
    for one in given:
        [group] = decode_groups.each_alone([one])
        assert keys([group]) == alone[one.request.seed]
        assert (group.rows, len(group.members)) == (1, 1)
        assert group.slots >= len(one.request.ids) + one.request.n_new - 2


def test_a_trunk_is_what_all_begin_with_where_it_is_long_and_there_are_groups(monkeypatch):
    given = waiting()
    monkeypatch.setattr(decode_groups, "SHORTEST_TRUNK", SHARED)
    assert decode_groups.trunk_length(given) == SHARED
    assert decode_groups.trunk_length(given[: decode_groups.GROUPS[-1]]) == 0
    monkeypatch.setattr(decode_groups, "SHORTEST_TRUNK", SHARED + 1)
    assert decode_groups.trunk_length(given) == 0
    assert decode_groups.trunk_length([]) == 0

"""Packed rows: wherever a token lies, it attends to its own prefix and nothing else."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.plan import row_batches
from jaxscore.plan.packing import TrieCutter, best_fit, pack_rows, pack_uniform_rows, rooms_left
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.row_batches import SHORTEST_ROW, TARGETS_PER_TOKEN, batch_rows, row_lengths
from jaxscore.plan.tries import Share, build_forest
from tests.sequences import paths, sequence, sequence_lists

STRICT = settings(max_examples=100, deadline=None)


def checked(made):
    """The batches of a plan, after the properties that every plan has."""
    forest, batches = made.forest, list(made.batches())
    prefixes, answered = paths(forest), Counter()
    for batch in batches:
        rows, length = batch.shape
        size = rows * length
        assert length in row_lengths(4096)
        assert size <= made.batch_tokens or rows == 1
        assert batch.ids.shape == batch.position.shape == batch.subtree_end.shape
        seen = [row_paths(batch, row) for row in range(rows)]
        assert batch.n_tokens in (0, int((batch.ids > 0).sum()))
        answered.update(checked_questions(batch, forest, prefixes, seen))
    assert answered == Counter(range(forest.n_edges))
    assert sum(batch.n_tokens for batch in batches) == made.n_tokens >= forest.n_nodes
    return batches


def checked_questions(batch, forest, prefixes, seen):
    """The edges that a batch answers, after what holds for every batch's questions."""
    asked, (rows, length) = batch.scored, batch.shape
    n, m, room = asked.n_queries, len(batch.edge), row_batches.TARGETS_PER_TOKEN * rows * length
    assert asked.query.shape == (rows * length,)
    assert asked.slot.shape == asked.answer.shape == (room,)
    assert 0 < n <= rows * length
    assert 0 < m <= room
    # Unused entries hold 0, which exists.
    assert not any(x.any() for x in (asked.query[n:], asked.slot[m:], asked.answer[m:]))
    assert set(asked.slot[:m].tolist()) <= set(range(n))
    assert (np.diff(asked.query[:n]) > 0).all()
    assert asked.answer[:m].tolist() == forest.edge_target[batch.edge].tolist()
    for slot, edge in zip(asked.slot, batch.edge, strict=False):
        row, column = divmod(int(asked.query[slot]), length)
        assert prefixes[forest.edge_node[edge]] == seen[row][column]
    return batch.edge.tolist()


def row_paths(batch, row):
    """Of each token of a row the ids that it sees by the rule; their positions must be 0 to k."""
    ids, position, ends = (x[row].tolist() for x in (batch.ids, batch.position, batch.subtree_end))
    seen = []
    for i in range(len(ids)):
        visible = [j for j in range(i + 1) if i < ends[j]]
        assert [position[j] for j in visible] == list(range(len(visible)))
        assert visible[-1] == i
        # Id 0 is padding: it sees itself alone, and so no other token sees it.
        assert ids[i] or (visible == [i] and ends[i] == i + 1)
        seen.append(tuple(ids[j] for j in visible))
    return seen


@pytest.mark.parametrize(
    ("share", "pack"), [(Share.TRIES, True), (Share.PATHS, False), (Share.TRIES, False)]
)
@given(
    sequences=sequence_lists(longest=20, most=20),
    batch_tokens=st.integers(4, 64),
    width=st.integers(1, 16),
)
@STRICT
def test_each_edge_once_after_its_own_prefix(share, pack, sequences, batch_tokens, width):
    # Short rows and few targets, so that small cases split tries and fill batches.
    with (
        mock.patch.object(row_batches, "SHORTEST_ROW", 4),
        mock.patch.object(row_batches, "TARGETS_PER_TOKEN", 2),
    ):
        forest = build_forest(sequences, share=share)
        made = pack_rows(
            forest, max_positions=20, width=width, batch_tokens=batch_tokens, pack=pack
        )
        batches = checked(made)
    assert made.lengths == sorted(set(made.lengths))
    for length in made.lengths:
        assert len({batch.shape for batch in batches if batch.shape[1] == length}) <= 2


@pytest.mark.parametrize("seed", range(8))
def test_each_edge_once_at_real_row_lengths(seed):
    random = np.random.default_rng(seed)
    asked: list[list[int]] = [[]]
    for _ in range(60):
        earlier = asked[random.integers(len(asked))]
        kept = earlier[: random.integers(len(earlier) + 1)]
        own = random.integers(1, 50, random.integers(1, 90)).tolist()
        asked.append((kept + own)[:200])
    forest = build_forest([sequence(ids, int(random.integers(len(ids) + 1))) for ids in asked])
    width = [1, 16, 64, 4096][seed % 4]
    made = pack_rows(forest, max_positions=200, width=width, batch_tokens=1024)
    checked(made)
    cut = bool((made.span > 0).any())
    assert cut or made.n_tokens == forest.n_nodes


@given(sequences=sequence_lists(longest=20, most=20))
@STRICT
def test_without_packing_a_row_holds_one_path(sequences):
    with mock.patch.object(row_batches, "SHORTEST_ROW", 4):
        forest = build_forest(sequences, share=Share.PATHS)
        made = pack_rows(forest, max_positions=20, width=4, batch_tokens=32, pack=False)
        rows = [
            (ids[ids > 0], position[ids > 0], ends[ids > 0])
            for batch in made.batches()
            if batch.n_tokens
            for ids, position, ends in zip(
                batch.ids, batch.position, batch.subtree_end, strict=True
            )
            if ids.any()
        ]
    assert len(rows) == int((forest.depth == 0).sum())
    for ids, position, ends in rows:
        assert position.tolist() == list(range(len(ids)))
        assert ends.tolist() == [len(ids)] * len(ids)
    assert made.n_tokens == forest.n_nodes


def test_a_trie_larger_than_a_row_is_split_and_its_path_repeated():
    prompt = list(range(1, 41))
    asked = [sequence([*prompt, 100 + k, *range(50, 60)], 40) for k in range(30)]
    forest = build_forest(asked)
    # A width of 1 makes longer rows not pay.
    made = pack_rows(forest, max_positions=64, width=1, batch_tokens=256)
    batches = checked(made)
    assert made.lengths == [64]
    assert forest.n_nodes == 40 + 30 * 10
    # Two continuations of ten beside a prompt of forty: fifteen rows, the prompt in each.
    rows = [row for batch in batches for row in batch.ids.tolist() if any(row)]
    assert len(rows) == 15
    assert all(row[:40] == prompt for row in rows)
    assert made.n_tokens == 15 * 60


def test_many_targets_after_one_token_are_one_scored_position():
    forest = build_forest([sequence([5, target], 1) for target in range(1, 27)])
    [batch] = checked(pack_rows(forest, max_positions=8, width=64, batch_tokens=64))
    assert (forest.n_nodes, forest.n_edges) == (1, 26)
    assert (batch.scored.n_queries, len(batch.edge)) == (1, 26)


def test_more_targets_than_room_give_another_batch_of_the_same_rows():
    path = list(range(1, SHORTEST_ROW + 1))
    asked = [
        sequence([*path[:n], 1000 + target], n)
        for n in range(1, SHORTEST_ROW + 1)
        for target in range(2 * TARGETS_PER_TOKEN + 1)
    ]
    forest = build_forest(asked)
    made = pack_rows(forest, max_positions=SHORTEST_ROW, width=64, batch_tokens=SHORTEST_ROW)
    batches = checked(made)
    room = TARGETS_PER_TOKEN * SHORTEST_ROW
    assert [len(batch.edge) for batch in batches] == [room, room, SHORTEST_ROW]
    assert [batch.n_tokens for batch in batches] == [SHORTEST_ROW, 0, 0]
    for batch in batches[1:]:
        np.testing.assert_array_equal(batch.ids, batches[0].ids)
        np.testing.assert_array_equal(batch.subtree_end, batches[0].subtree_end)


def test_an_empty_plan_has_no_batches():
    assert checked(pack_rows(build_forest([]), max_positions=1024, width=64, batch_tokens=64)) == []


def test_row_lengths_hold_the_longest_path():
    assert row_lengths(1) == [64]
    assert row_lengths(64) == [64]
    assert row_lengths(65) == [64, 96]
    assert row_lengths(1000) == [64, 96, 128, 192, 256, 384, 512, 768, 1024]


@given(
    n_rows=st.integers(0, 300),
    length=st.sampled_from([64, 128, 1024]),
    batch_tokens=st.integers(64, 8192),
)
@STRICT
def test_batch_rows_cover_all_rows_in_two_shapes(n_rows, length, batch_tokens):
    batches = batch_rows(n_rows, length, batch_tokens)
    assert sum(batches) >= n_rows
    assert len(set(batches)) <= 2
    assert all(rows * length <= batch_tokens or rows == 1 for rows in batches)
    # No batch is without a row.
    assert sum(batches[:-1]) < n_rows or not batches


@pytest.mark.parametrize(
    ("n_rows", "batches"),
    [
        (0, []),
        (1, [8]),
        (32, [8] * 4),
        (33, [8, 8, 8, 8, 8]),
        (60, [64]),  # eighths would pad no less
        (64, [64]),
        (81, [64, 8, 8, 8]),
        (100, [64, 8, 8, 8, 8, 8]),
    ],
)
def test_the_last_rows_go_in_eighths(n_rows, batches):
    assert batch_rows(n_rows, 64, 4096) == batches


@pytest.mark.parametrize(("n_texts", "shape"), [(1, (1, 64)), (6, (1, 64)), (200, (8, 64))])
def test_a_row_that_is_alone_in_its_plan_goes_without_empty_rows(n_texts, shape):
    sequences = [TokenSequence(np.arange(10) + 10 * k, 1) for k in range(n_texts)]
    plan = pack_rows(build_forest(sequences), max_positions=64, width=64, batch_tokens=4096)
    assert {batch.shape for batch in plan.batches()} == {shape}


@pytest.mark.parametrize(("n_rows", "batches"), [(8, [8]), (16, [8, 8]), (36, [32, 4])])
def test_dear_batches_are_fewer_and_pad_no_more(n_rows, batches):
    sequences = [TokenSequence(np.arange(100) + 1000 * k, 1) for k in range(n_rows)]
    forest, sizes = build_forest(sequences), {"max_positions": 128, "width": 64}
    plan = pack_rows(forest, **sizes, batch_tokens=4096, batch_cost=128)
    assert [batch.shape for batch in plan.batches()] == [(count, 128) for count in batches]
    free = pack_rows(forest, **sizes, batch_tokens=4096)
    assert sum(len(batch.ids) for batch in free.batches()) == sum(batches)
    assert plan.cost - free.cost == pytest.approx(128 * len(batches))


@pytest.mark.parametrize("longest", [40, 100])
def test_dear_batches_do_not_lengthen_rows(longest):
    sequences = [TokenSequence(np.arange(n) + 1000 * n, 1) for n in (40, 41, 42, longest)]
    forest, sizes = build_forest(sequences), {"max_positions": 1024, "width": 64}
    dear, free = (
        pack_rows(forest, **sizes, batch_tokens=64, batch_cost=cost) for cost in (1000, 0)
    )
    assert [one.shape for one in dear.batches()] == [one.shape for one in free.batches()]


def test_rows_longer_than_the_budget_go_alone():
    assert batch_rows(3, 8192, 4096) == [1, 1, 1]


@pytest.mark.slow
def test_program_cost_decides_the_number_of_shapes():
    draw = np.random.default_rng(0)
    lengths = [50] * 70 + [180] * 30 + [350] * 12 + [1000] * 3
    forest = build_forest([sequence(draw.integers(1, 900, n).tolist(), n - 1) for n in lengths])

    def shapes(cost):
        made = pack_rows(forest, max_positions=1024, width=64, batch_tokens=4096, program_cost=cost)
        return {batch.shape for batch in checked(made)}

    assert len(shapes(0.0)) > 4
    assert len(shapes(1e9)) == 1  # dearer than all padding


@given(sequences=sequence_lists(longest=20, most=20), batch_tokens=st.integers(1, 128))
@STRICT
def test_a_uniform_plan_has_one_shape(sequences, batch_tokens):
    made = pack_uniform_rows(build_forest(sequences), row_length=64, batch_tokens=batch_tokens)
    shapes = {batch.shape for batch in checked(made)}
    assert shapes <= {(max(1, batch_tokens // 64), 64)}


def test_branches_along_a_path_share_its_copies():
    """One piece a branch would lay out 520,000 tokens for these 2,000 nodes."""
    text = list(range(1, 1023))
    branches = [sequence([*text[:k], 4000, 4001], k) for k in range(len(text))]
    forest = build_forest([sequence(text, 0), *branches])
    made = pack_rows(forest, max_positions=1024, width=768, batch_tokens=4096)
    checked(made)
    assert made.n_tokens < 6 * forest.n_nodes


@settings(deadline=None)
@given(sequence_lists(), st.sampled_from([2, 4, 8, 16]))
def test_counted_sizes_equal_those_of_cut_pieces(sequences, base):
    cutter = TrieCutter(build_forest(sequences, share=Share.TRIES), [2, 4, 8, 16, 32, 64])
    found: dict[int, Counter[int]] = {}
    for length, pieces in cutter.cut(base).items():
        found[length] = Counter(piece.size for piece in pieces)
    assert cutter.count_sizes(base) == found
    cost = sum(n * sum(sizes.elements()) for n, sizes in found.items())  # longer rows cost more
    assert sum(n * tokens for n, tokens in cutter.least_tokens(base).items()) <= cost


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_best_fit_loses_nothing_and_overflows_nothing(data):
    capacity = data.draw(st.integers(1, 40))
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=40))
    bins = best_fit(sizes, capacity)
    assert sorted(k for contents in bins for k in contents) == list(range(len(sizes)))
    filled = sorted(sum(sizes[k] for k in contents) for contents in bins)
    assert all(0 < total <= capacity for total in filled)
    # A bin is opened only for what fits in no other, so no two of them could be one.
    assert len(filled) < 2 or filled[0] + filled[1] > capacity


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_counted_bins_equal_filled_bins(capacity, data):
    sizes = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    filled = best_fit(sizes, capacity)
    rooms = Counter(capacity - sum(sizes[k] for k in contents) for contents in filled)
    assert rooms_left(Counter(sizes), capacity) == rooms

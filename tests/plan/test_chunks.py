"""Chunks: each token in one, every parent in its token's chunk or the entry, exits before use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.plan.chunks import (
    NO_TOKEN,
    ChunkShape,
    PathNeeds,
    chunk_count,
    chunk_plan,
    cut_chunks,
    padding,
    parents,
)
from jaxscore.plan.packing import pack_rows
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.tries import build_forest
from tests.device.tries import paths, random_rows

STRICT = settings(max_examples=60, deadline=None)


def flat_paths(subtree_end):
    """For every token of all rows the indices of its path from the root, itself last."""
    length = subtree_end.shape[1]
    out = []
    for row, end in enumerate(subtree_end):
        position = [sum(j <= i < end[j] for j in range(length)) - 1 for i in range(length)]
        out += [[row * length + j for j in path] for path in paths(position, end)]
    return out


@given(seed=st.integers(0, 10_000), n_rows=st.integers(1, 3), length=st.sampled_from([5, 24, 64]))
@STRICT
def test_parents_end_each_path(seed, n_rows, length):
    _, _, end = random_rows(seed, n_rows, length)
    parent, no_parent = parents(end), n_rows * length
    for token, path in enumerate(flat_paths(end)):
        assert parent[token] == (path[-2] if len(path) > 1 else no_parent)


@given(
    seed=st.integers(0, 10_000),
    n_rows=st.integers(1, 3),
    length=st.sampled_from([24, 64]),
    size=st.sampled_from([1, 2, 4, 8, 16, 64]),
    width=st.sampled_from([1, 3, 8]),
)
@STRICT
def test_tokens_lie_in_one_chunk_that_starts_where_their_paths_do(
    seed, n_rows, length, size, width
):
    _, _, end = random_rows(seed, n_rows, length)
    n_tokens = end.size
    parent = parents(end)
    is_padding = padding(end, np.flatnonzero(np.random.default_rng(seed).random(n_tokens) < 0.5))
    chunks = cut_chunks(end, is_padding, size)
    assert len(chunks) <= 2 * n_tokens // size + 1
    shape = ChunkShape(chunk_count(len(chunks), n_tokens, size), size, width)
    assert len(chunks) <= shape.n_chunks
    plan = chunk_plan(chunks, n_tokens, shape)
    assert all(array.dtype == np.int32 for array in plan[:4])
    held = plan.token[plan.token < n_tokens]
    assert sorted(held.tolist()) == np.flatnonzero(~is_padding).tolist()

    exit_token = plan.token.ravel()[plan.exit]
    computed = {0}  # states in the order of the steps
    order = []
    for first in plan.step[: plan.n_steps]:
        for exit_ in range(first, first + width):
            if plan.entry[plan.exit[exit_] // size] in computed:
                order.append(1 + exit_)
        computed |= set(order)
    for n, members in enumerate(plan.token):
        own = members[members < n_tokens].tolist()
        assert own == sorted(own)
        assert members[: len(own)].tolist() == own
        entry = plan.entry[n]
        assert entry in computed
        start = n_tokens if entry == 0 else exit_token[entry - 1]
        assert {parent[token] for token in own} <= {start, *own}
        if entry:  # the exit lies in an earlier chunk
            assert plan.exit[entry - 1] // size < n


def test_entries_are_exits_of_earlier_levels_and_chunks_without_entry_come_first():
    _, _, end = random_rows(3, 2, 64)
    chunks = cut_chunks(end, np.zeros(end.size, bool), 4)
    entries = [chunk.entry for chunk in chunks]
    n_first = entries.count(NO_TOKEN)
    assert entries[:n_first] == [NO_TOKEN] * n_first
    seen = set()
    for chunk in chunks:
        assert chunk.entry in seen or chunk.entry == NO_TOKEN
        seen |= {token for start, stop in chunk.ranges for token in range(start, stop)}


def test_a_single_text_is_cut_from_its_end():
    """So that its chunks depend on its length alone."""
    end = np.full((1, 64), 40)
    end[0, 40:] = np.arange(41, 65)
    chunks = cut_chunks(end, padding(end, np.arange(39)), 16)
    assert [chunk.ranges for chunk in chunks] == [[(0, 8)], [(8, 24)], [(24, 40)]]
    assert [chunk.entry for chunk in chunks] == [NO_TOKEN, 7, 23]


def test_rows_of_padding_have_no_chunk():
    end = np.tile(np.arange(1, 65), (2, 1))
    chunks = cut_chunks(end, padding(end, np.array([64])), 16)
    assert [chunk.ranges for chunk in chunks] == [[(64, 65)]]
    plan = chunk_plan([], 128, ChunkShape(chunk_count(0, 128, 16), 16, 1))
    assert (plan.token == 128).all()
    assert plan.n_steps == 0


def forests():
    """Texts that share prefixes in different ways, by name; each gets one more token as target."""
    draw = np.random.default_rng(0)

    def text(low, high=None):
        return draw.integers(1, 50_000, low if high is None else draw.integers(low, high + 1))

    def behind(start, n, low, high):
        return [np.r_[start, text(low, high)] for _ in range(n)]

    shots = text(800)
    heads = [(text(2, 12), text(2, 8)) for _ in range(250)]
    return {
        "questions": [r for _ in range(32) for r in behind(text(100), 5, 5, 5)],
        "one prompt": behind(text(300), 400, 20, 20),
        "few-shot": [
            np.r_[question, answer]
            for question in behind(shots, 50, 30, 90)
            for answer in [text(1, 7) for _ in range(4)]
        ],
        "short texts": [text(5, 60) for _ in range(500)],
        "pairs": [np.r_[head, text(1), tail] for head, tail in heads for _ in range(2)],
        "documents": [text(2000) for _ in range(4)],
        "samples": [r for _ in range(4) for r in behind(text(400), 16, 64, 64)],
    }


@pytest.mark.parametrize("kind", forests())
def test_few_slots_are_empty(kind):
    forest = build_forest(
        [TokenSequence(np.r_[text, 1].astype(np.int32), 1) for text in forests()[kind]]
    )
    row = forest.subtree_end[None].astype(np.int64)
    chunks = cut_chunks(row, np.zeros(forest.n_nodes, bool), 64)
    assert len(chunks) * 64 < 1.08 * forest.n_nodes


@pytest.mark.parametrize("kind", forests())
def test_full_batches_have_few_empty_slots_and_one_shape(kind):
    """The last batch of a length may be nearly empty, and long rows leave room for fewer pieces."""
    sequences = [TokenSequence(np.r_[text, 1].astype(np.int32), 1) for text in forests()[kind]]
    rows = pack_rows(
        build_forest(sequences), max_positions=4096, width=2048, batch_tokens=4096, deal=True
    )
    for batch in rows.batches():
        is_padding = padding(batch.subtree_end, batch.scored.query[: batch.scored.n_queries])
        assert (~is_padding).sum() == batch.n_tokens
        chunks = cut_chunks(batch.subtree_end, is_padding, 64)
        if batch.n_tokens > 2048:
            assert len(chunks) * 64 < 1.12 * batch.n_tokens
            assert chunk_count(len(chunks), batch.ids.size, 64) < 1.15 * batch.ids.size / 64 + 1


@pytest.mark.parametrize(
    ("needed", "n_tokens", "want"),
    [(0, 4096, 64), (64, 4096, 64), (65, 4096, 72), (72, 4096, 72), (73, 4096, 130), (1, 64, 1)],
)
def test_a_batch_shape_has_three_numbers_of_chunks(needed, n_tokens, want):
    assert chunk_count(needed, n_tokens, 64) == want


@pytest.mark.parametrize(
    ("n_tokens", "want"), [(48, 1), (64, 1), (96, 3), (128, 3), (1056, 19), (4096, 72)]
)
def test_memory_is_planned_for_spare_chunks(n_tokens, want):
    assert PathNeeds(64, 1).usual_shape(n_tokens).n_chunks == want
    assert PathNeeds(0, 1).usual_shape(n_tokens).n_chunks == 0

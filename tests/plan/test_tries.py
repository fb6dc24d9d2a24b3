"""Tries by the definition: what each node sees spells the prefix that was asked about.

Parts and their prefixes are the forest again: every edge once, after its own prefix.
"""

import itertools
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.engine import planner
from jaxscore.plan import row_batches, tries
from jaxscore.plan.packing import pack_rows
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.tries import Share, as_subforest, build_forest, split_at_prefixes
from tests.sequences import asked_for, laid_out, paths, sequence, sequence_lists
from tests.test_scorer import assert_same, fresh

STRICT = settings(max_examples=100, deadline=None)


@pytest.mark.parametrize("share", list(Share))
@given(sequences=sequence_lists())
@STRICT
def test_each_scored_token_is_an_edge_from_its_prefix(share, sequences):
    forest = build_forest(sequences, share=share)
    seen = paths(forest)
    edges = [
        (seen[node], target)
        for node, target in zip(forest.edge_node.tolist(), forest.edge_target.tolist(), strict=True)
    ]
    assert [edges[k] for k in forest.edge_of] == asked_for(sequences)
    assert np.diff(forest.offsets).tolist() == [s.n_scored for s in sequences]
    assert forest.n_input_tokens == sum(len(s.ids) + len(s.choices) for s in sequences)
    pairs = list(zip(forest.edge_node.tolist(), forest.edge_target.tolist(), strict=True))
    assert pairs == sorted(set(pairs))


@pytest.mark.parametrize("share", list(Share))
@given(sequences=sequence_lists())
@STRICT
def test_depth_end_and_reach(share, sequences):
    forest = build_forest(sequences, share=share)
    seen, ends = paths(forest), forest.subtree_end.tolist()
    assert forest.depth.tolist() == [len(path) - 1 for path in seen]
    for i, end in enumerate(ends):
        assert i < end <= forest.n_nodes
        assert forest.reach[i] == max(len(path) for path in seen[i:end])
        # Intervals nest or are apart: a descendant's subtree lies within its ancestor's.
        assert all(ends[j] <= end for j in range(i, end))


@given(sequences=sequence_lists())
@STRICT
def test_one_node_per_distinct_prefix_and_one_edge_per_distinct_target(sequences):
    forest = build_forest(sequences)
    prefixes = {path[:n] for path in laid_out(sequences) for n in range(1, len(path) + 1)}
    assert sorted(paths(forest)) == sorted(prefixes)
    assert forest.n_edges == len(set(asked_for(sequences)))


@given(sequences=sequence_lists())
@STRICT
def test_duplicates_and_order_add_nothing(sequences):
    once, again = build_forest(sequences), build_forest(sequences + sequences[::-1])
    for name in ("ids", "depth", "subtree_end", "reach", "edge_node", "edge_target"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))
    bounds = again.offsets.tolist()
    parts = [again.edge_of[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    n = len(sequences)
    assert parts[:n] == parts[n:][::-1]
    assert again.n_input_tokens == 2 * once.n_input_tokens


@given(sequences=sequence_lists())
@STRICT
def test_without_sharing_every_trie_is_one_path(sequences):
    forest = build_forest(sequences, share=Share.PATHS)
    ends = forest.subtree_end.tolist()
    first, chains = 0, []
    while first < forest.n_nodes:
        stop = ends[first]
        assert ends[first:stop] == [stop] * (stop - first)
        chains.append(tuple(forest.ids[first:stop].tolist()))
        first = stop
    # A path that another one continues is part of that one; what is left has a row each.
    laid = set(laid_out(sequences))
    maximal = {p for p in laid if not any(q != p and q[: len(p)] == p for q in laid)}
    assert sorted(chains) == sorted(maximal)


def test_tries_are_those_of_the_drawing():
    the, cat, ran, sat, down, x = range(1, 7)
    forest = build_forest([sequence([the, cat, ran, x]), sequence([the, cat, sat, down, x])])
    assert forest.ids.tolist() == [the, cat, ran, sat, down]
    assert forest.depth.tolist() == [0, 1, 2, 2, 3]
    assert forest.subtree_end.tolist() == [5, 5, 3, 5, 5]
    assert forest.reach.tolist() == [4, 4, 3, 4, 4]


@pytest.mark.parametrize("share", list(Share))
def test_sequences_without_scored_tokens_add_no_node(share):
    forest = build_forest([sequence([]), sequence([7]), sequence([7, 8, 9], 3)], share=share)
    assert (forest.n_nodes, forest.n_edges, forest.n_input_tokens) == (0, 0, 4)
    assert forest.offsets.tolist() == [0, 0, 0, 0]
    assert build_forest([], share=share).offsets.tolist() == [0]


def test_ids_sort_and_separate_beyond_one_byte():
    # 256 is 00 00 01 00: a comparison of little-endian bytes would part the two 256 paths.
    ids = [[256, 1, 5], [1, 256, 5], [256, 2, 5], [257, 1, 5], [151_935, 1, 5]]
    forest = build_forest([sequence(one) for one in ids])
    assert forest.n_nodes == 9
    assert forest.ids[forest.depth == 0].tolist() == [1, 256, 257, 151_935]
    largest = TokenSequence(np.array([3, 2**31 - 1], np.int32), 1)
    assert build_forest([largest]).edge_target.tolist() == [2**31 - 1]


def checked(forest):
    """The parts of a forest, after the properties that every split has."""
    parts, prefixes, answered = split_at_prefixes(forest), paths(forest), Counter()
    for part in parts:
        before, own = tuple(part.prefix.tolist()), part.forest
        assert own.n_nodes > 0
        assert own.n_edges == len(part.edges)
        assert (np.diff(own.edge_node) >= 0).all()
        for node, path in enumerate(paths(own)):
            assert own.depth[node] == len(before) + len(path) - 1
            below = own.depth[node : own.subtree_end[node]]
            assert own.reach[node] == below.max() + 1 - len(before)
        own_prefixes = [before + path for path in paths(own)]
        for k, edge in enumerate(part.edges):
            assert own_prefixes[own.edge_node[k]] == prefixes[forest.edge_node[edge]]
            assert own.edge_target[k] == forest.edge_target[edge]
        answered.update(part.edges.tolist())
    assert answered == Counter(range(forest.n_edges))
    return parts


@given(
    sequences=sequence_lists(longest=24, alphabet=2, most=24),
    shortest=st.integers(1, 6),
)
@STRICT
def test_each_edge_is_in_one_part_after_its_own_prefix(sequences, shortest):
    with mock.patch.object(tries, "SHORTEST_PREFIX", shortest):
        parts = checked(build_forest(sequences))
    assert sum(not len(part.prefix) for part in parts) <= 1
    assert all(len(part.prefix) >= shortest for part in parts if len(part.prefix))


@given(sequences=sequence_lists(longest=24, alphabet=2, most=24))
@STRICT
def test_parts_pack_as_forests_do(sequences):
    with (
        mock.patch.object(tries, "SHORTEST_PREFIX", 2),
        mock.patch.object(row_batches, "SHORTEST_ROW", 4),
    ):
        for part in checked(build_forest(sequences)):
            n = len(part.prefix)
            made = pack_rows(part.forest, max_positions=24 - n, width=8, batch_tokens=16, prefix=n)
            answered = Counter()
            for batch in made.batches():
                answered.update(batch.edge.tolist())
                positions = batch.position[batch.ids > 0]
                assert not len(positions) or positions.min() >= n
            assert answered == Counter(range(part.forest.n_edges))


def prompts(draw, *lengths):
    return [draw.integers(5, 900, n) for n in lengths]


def questions(draw, count, *before):
    """Sequences that share `before` and end in tokens of their own, some asked for early."""
    out = []
    for _ in range(count):
        own = draw.integers(5, 900, int(draw.integers(2, 30)))
        ids = np.concatenate([*before, own]).astype(np.int32)
        out.append(TokenSequence(ids, len(ids) - len(own) + int(draw.integers(0, 2))))
    return out


def test_a_long_prompt_below_a_preamble_gets_a_prefix_and_a_short_one_none():
    draw = np.random.default_rng(0)
    preamble, long, longer, short = prompts(draw, 20, 200, 300, 30)
    asked = [
        *questions(draw, 50, preamble, long),
        *questions(draw, 50, preamble, longer),
        *questions(draw, 50, preamble, short),
    ]
    parts = checked(build_forest(asked))
    assert sorted(len(part.prefix) for part in parts) == [0, 219, 319]


def test_a_prefix_that_continues_a_prefix():
    draw = np.random.default_rng(1)
    first, second = prompts(draw, 200, 150)
    few = questions(draw, 40, first)
    parts = checked(build_forest([*few, *questions(draw, 40, first, second)]))
    assert sorted(len(part.prefix) for part in parts) == [199, 349]
    # With little else on the first one, its own part is not worth it.
    parts = checked(build_forest([*few[:2], *questions(draw, 40, first, second)]))
    assert sorted(len(part.prefix) for part in parts) == [0, 349]


def test_a_chain_without_branches_is_no_prefix():
    assert [
        len(part.prefix) for part in checked(build_forest([sequence(list(range(1, 400)), 5)]))
    ] == [0]
    assert checked(build_forest([])) == []


def test_as_subforest_is_the_complete_forest():
    forest = build_forest([sequence([1, 2, 3], 1), sequence([1, 4], 1)])
    part = as_subforest(forest)
    assert part.forest is forest
    assert part.edges.tolist() == [0, 1, 2]
    assert not len(part.prefix)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama3", "tiny-qwen2"])
def test_a_prefix_never_changes_a_score(monkeypatch, scorers, name):
    draw = np.random.default_rng(2)
    first, second, third = prompts(draw, 180, 140, 170)
    asked = [
        *questions(draw, 40, first),
        *questions(draw, 40, first, second),
        *questions(draw, 40, third),
        *questions(draw, 3, np.zeros(0, np.int32)),
        sequence([*first.tolist(), 7, 8], 0),  # asks for what is in the prefix itself
    ]
    monkeypatch.setattr(planner, "LEAST_SAVED_CPU", 0)
    with_prefixes = fresh(scorers(name))
    got = with_prefixes.score_sequences(asked)
    kinds = [program.name[0] for program in with_prefixes.engine.programs.compiled]
    assert kinds.count("prefix") == 2  # 180 and 170 tokens in one bucket, 320 in another
    monkeypatch.setattr(planner, "LEAST_SAVED_CPU", 1e30)
    without = fresh(scorers(name))
    assert_same(got, without.score_sequences(asked))
    assert {program.name[0] for program in without.engine.programs.compiled} == {"score"}
    assert with_prefixes.statistics.tokens_laid_out < without.statistics.tokens_laid_out
    assert with_prefixes.statistics.tokens_unique == without.statistics.tokens_unique

"""Tries by the definition: what each node sees spells the prefix that was asked about."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.tries import Share, build_forest
from tests.sequences import asked_for, laid_out, paths, sequence, sequence_lists

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

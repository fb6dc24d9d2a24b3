"""Parts and their prefixes are the forest again: every edge once, after its own prefix."""

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.engine import planner
from jaxscore.plan import prefixes, row_batches
from jaxscore.plan.packing import pack_rows
from jaxscore.plan.prefixes import split_at_prefixes
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.tries import as_one_part, build_forest
from tests.sequences import paths, sequence, sequence_lists
from tests.test_scorer import assert_same, fresh

STRICT = settings(max_examples=100, deadline=None)


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
    with mock.patch.object(prefixes, "SHORTEST", shortest):
        parts = checked(build_forest(sequences))
    assert sum(not len(part.prefix) for part in parts) <= 1
    assert all(len(part.prefix) >= shortest for part in parts if len(part.prefix))


@given(sequences=sequence_lists(longest=24, alphabet=2, most=24))
@STRICT
def test_parts_pack_as_forests_do(sequences):
    with (
        mock.patch.object(prefixes, "SHORTEST", 2),
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


def test_as_one_part_is_the_whole_forest():
    forest = build_forest([sequence([1, 2, 3], 1), sequence([1, 4], 1)])
    part = as_one_part(forest)
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

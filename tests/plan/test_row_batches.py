"""`--reproducible` lays out each sequence from that sequence alone."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from jaxscore.plan.row_batches import SHORTEST_ROW, TARGETS_PER_TOKEN, OnePerRow, power_of_two
from jaxscore.plan.tries import Share, build_forest
from tests.plan.test_packing import checked_questions, row_paths
from tests.sequences import paths, sequence, sequence_lists

ROOM = TARGETS_PER_TOKEN * SHORTEST_ROW  # answers of the shortest row
STRICT = settings(max_examples=100, deadline=None)


def made(sequences):
    return OnePerRow(build_forest(sequences, share=Share.WHOLE))


def given_to_the_device(batch):
    """What the program gets but for the answers, of which scores are read and nothing is made."""
    asked = batch.scored
    arrays = batch.ids, batch.position, batch.subtree_end, asked.query, asked.n_queries
    return tuple(np.asarray(array).tobytes() for array in arrays)


@given(sequences=sequence_lists(longest=20, most=20))
@STRICT
def test_each_edge_once_after_its_own_prefix(sequences):
    plan = made(sequences)
    forest, batches = plan.forest, list(plan.batches())
    prefixes, answered = paths(forest), Counter()
    for batch in batches:
        [[*ids]] = batch.ids
        seen = row_paths(batch, 0)
        assert batch.n_tokens in (0, sum(id > 0 for id in ids))
        answered.update(checked_questions(batch, forest, prefixes, [seen]))
    assert answered == Counter(range(forest.n_edges))
    assert sum(batch.n_tokens for batch in batches) == plan.n_tokens == forest.n_nodes


@pytest.mark.slow
@given(sequences=sequence_lists(longest=20, most=12))
@STRICT
def test_reproducible_batches_depend_on_their_sequence_alone(sequences):
    together = {given_to_the_device(batch) for batch in made(sequences).batches()}
    alone = {given_to_the_device(b) for one in sequences for b in made([one]).batches()}
    assert together == alone


def test_further_batches_of_a_row_differ_in_targets_alone():
    few = [sequence([3, 4, 5, 10 + k], 2) for k in range(ROOM - 1)]
    many = [sequence([3, 4, 5, 10 + k], 2) for k in range(3 * ROOM - 1)]
    [want] = map(given_to_the_device, made(few).batches())
    batches = list(made(many).batches())
    assert [given_to_the_device(batch) for batch in batches] == [want] * 3
    answered = np.concatenate([batch.edge for batch in batches])
    assert sorted(answered.tolist()) == list(range(made(many).forest.n_edges))


def test_sequences_with_different_starts_share_no_row():
    ids = [3, 4, 5, 6]
    assert len(list(made([sequence(ids, 1), sequence(ids, 2), sequence(ids, 2)]).batches())) == 2


def test_rows_are_powers_of_two():
    assert [power_of_two(n) for n in (1, SHORTEST_ROW, SHORTEST_ROW + 1, 300)] == [
        SHORTEST_ROW,
        SHORTEST_ROW,
        2 * SHORTEST_ROW,
        512,
    ]

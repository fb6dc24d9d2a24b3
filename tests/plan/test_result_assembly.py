"""Which sequences a batch answers, against looking through all of them."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxscore.engine.dispatch import halves
from jaxscore.plan import row_batches
from jaxscore.plan.packing import pack_rows
from jaxscore.plan.requests import ScoreOptions
from jaxscore.plan.result_assembly import ForestScores
from jaxscore.plan.tries import as_subforest, build_forest
from tests.sequences import sequence, sequence_lists


def answers(batch):
    """Some number for each answer and query of a batch.

    The most probable tokens of a query are its token and its depth.
    """
    of_answers, of_queries = (np.ones(len(x)) for x in (batch.scored.answer, batch.scored.query))
    query = batch.scored.query
    top = np.stack([batch.ids.ravel()[query], batch.position.ravel()[query]], axis=1)
    return SimpleNamespace(
        logprob=of_answers,
        greedy=of_answers > 0,
        entropy=of_queries,
        self_certainty=of_queries,
        top_id=top,
        top_logprob=-top,
    )


@given(sequences=sequence_lists(longest=20, most=20), batch_tokens=st.integers(8, 64))
@settings(max_examples=100, deadline=None)
def test_sequences_touched_and_completed_by_a_batch(sequences, batch_tokens):
    with (
        mock.patch.object(row_batches, "SHORTEST_ROW", 4),
        mock.patch.object(row_batches, "TARGETS_PER_TOKEN", 2),
    ):
        forest = build_forest(sequences)
        made = pack_rows(forest, max_positions=20, width=8, batch_tokens=batch_tokens)
        batches = list(made.batches())
    part = as_subforest(forest)
    work = ForestScores(0, range(len(sequences)), forest, [(part, made)], ScoreOptions(2))
    own = [
        set(forest.edge_of[a:b].tolist())
        for a, b in zip(forest.offsets, forest.offsets[1:], strict=False)
    ]
    known: set[int] = set()
    for batch in [*(half for one in batches[:2] for half in halves(one)), *batches]:
        edges = work.add_scores(part, batch, answers(batch))
        new = set(part.edges[batch.edge].tolist()) - known
        assert set(edges.tolist()) == new  # none of them twice
        known |= new
        touched, lacks_nothing = work.count_scored(edges)
        want = [k for k, edges in enumerate(own) if edges & new]
        assert touched.tolist() == want
        assert lacks_nothing.tolist() == [own[k] <= known for k in want]
    everything = work.scores_of(np.arange(len(sequences)))
    places = np.flatnonzero(np.diff(forest.offsets) > 0)[::-1]
    for k, scores in zip(places.tolist(), work.scores_of(places), strict=True):
        for some, all_ in zip(scores, everything[k], strict=True):
            np.testing.assert_array_equal(some, all_)
    for one, scores in zip(sequences, everything, strict=True):
        # the token before all choices, or before each token
        scored = range(one.start, len(one.ids)) if one.positions is None else one.positions
        before = [len(one.ids) - 1] * len(one.choices) or [k - 1 for k in scored if k]
        want = [[one.ids[at], at] for at in before]
        assert scores.top_id.tolist() == want
        np.testing.assert_array_equal(scores.top_logprob, -scores.top_id)


def test_digest_depends_on_requests_and_batches_alone():
    asked = [sequence(list(range(k, k + 70)), 3) for k in range(1, 9)]

    def digest(sequences, batch_tokens=512, **wanted):
        forest = build_forest(sequences)
        made = pack_rows(forest, max_positions=128, width=8, batch_tokens=batch_tokens)
        return ForestScores(
            0, range(9), forest, [(as_subforest(forest), made)], ScoreOptions(**wanted)
        ).digest

    assert digest(asked) == digest(asked[::-1])
    others = [digest(asked[:-1]), digest(asked, 256), digest(asked, top=1), digest(asked, top=2)]
    others += [digest(asked, measures=("rank",)), digest(asked, top=1, measures=("rank",))]
    changed = sequence([*range(1, 70), 5], 3)
    others.append(digest([changed, *asked[1:]]))
    assert len({digest(asked), *others}) == 8

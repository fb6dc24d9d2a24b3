"""A batch that does not fit in memory is cut in two, and every score is what it was."""

from collections import Counter
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.errors import JaxRuntimeError

from jaxscore.engine.dispatch import Dispatch, halves
from jaxscore.errors import InputError
from jaxscore.journal import Journal
from jaxscore.plan import row_batches
from jaxscore.plan.chunks import PathNeeds, plan_paths
from jaxscore.plan.packing import pack_rows
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.tries import build_forest
from tests.plan.test_packing import checked_questions, row_paths
from tests.sequences import paths, sequence_lists
from tests.test_scorer import COLUMNS, fresh, random_sequences

pytestmark = pytest.mark.numeric

NO_ROOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12345 bytes."


@given(
    sequences=sequence_lists(longest=20, most=20),
    batch_tokens=st.integers(8, 128),
)
@settings(max_examples=200, deadline=None)
def test_halves_ask_what_the_whole_asks(sequences, batch_tokens):
    with (
        mock.patch.object(row_batches, "SHORTEST_ROW", 4),
        mock.patch.object(row_batches, "TARGETS_PER_TOKEN", 2),
    ):
        forest = build_forest(sequences)
        made = pack_rows(forest, max_positions=20, width=8, batch_tokens=batch_tokens)
        batches = [batch for batch in made.batches() if batch.shape[0] > 1]
    prefixes = paths(forest)
    for batch in batches:
        parts, answered = list(halves(batch)), Counter()
        rows, length = batch.shape
        for part in parts:
            assert part.shape == (-(-rows // 2), length)
            seen = [row_paths(part, row) for row in range(part.shape[0])]
            answered.update(checked_questions(part, forest, prefixes, seen))
        assert answered == Counter(batch.edge.tolist())
        assert sum(part.n_tokens for part in parts) == batch.n_tokens


@pytest.mark.parametrize("n", [None, 3])
def test_batches_sent_together_take_the_program_that_each_takes_alone(n):
    needs = PathNeeds(8, 2)
    mesh = n and SimpleNamespace(shape=SimpleNamespace(data=n))
    model = SimpleNamespace(functions=SimpleNamespace(paths=needs))
    dispatch = Dispatch([SimpleNamespace(model=model)], mesh)
    forest = build_forest([one for seed in range(8) for one in random_sequences(seed)])
    batches = [*pack_rows(forest, max_positions=256, width=8, batch_tokens=128).batches()]
    groups = [*dispatch.together(0, batches)]
    shapes = [{(one.rows.shape, plan_paths(one.rows, needs).shape) for one in g} for g in groups]
    assert all(len(shape) == 1 for shape in shapes)
    assert len({one.shape for one in batches}) < len(set.union(*shapes))  # else nothing is tested
    short = [tuple(shape) for g, shape in zip(groups, shapes, strict=True) if len(g) < (n or 1)]
    assert len(short) == len({*short})
    assert sorted(id(one.rows) for g in groups for one in g) == sorted(map(id, batches))


def short_of_memory(scorer, most: int, *, late: bool):
    """Devices hold batches of so many tokens: others fail at the call, or at the fetch."""
    program = scorer.engine.dispatch._run
    refused = []

    def run(variant, batches, *rest):
        rows, length = batches[0].rows.shape
        if rows * length <= most:
            return program(variant, batches, *rest)
        refused.append((rows, length))
        if late:
            return "too large"
        raise JaxRuntimeError(NO_ROOM)

    def get(values):
        if isinstance(values, str):
            raise JaxRuntimeError(NO_ROOM)
        return fetch(values)

    fetch = jax.device_get
    return (
        refused,
        mock.patch.object(scorer.engine.dispatch, "_run", run),
        mock.patch("jax.device_get", get),
    )


@pytest.mark.parametrize("late", [False, True])
def test_scoring_goes_on_with_halves(scorers, late, capsys):
    sequences = [one for seed in range(4) for one in random_sequences(seed)]
    whole = fresh(scorers("tiny-llama3"), batch_tokens=2048)
    want = whole.score_sequences(sequences)
    scorer = fresh(scorers("tiny-llama3"), batch_tokens=2048)
    scorer.progress = True
    refused, *patches = short_of_memory(scorer, 512, late=late)
    with patches[0], patches[1]:
        got = scorer.score_sequences(sequences)
    for a, b in zip(got, want, strict=True):
        for name in COLUMNS:
            np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-5, rtol=0)
        np.testing.assert_array_equal(a.greedy, b.greedy)
    assert refused
    assert set(refused) == scorer.engine.dispatch.too_large
    if not late:
        assert len(refused) == len(set(refused))  # once a shape
    said = capsys.readouterr().err
    assert said.count("do not fit in the device's memory") == len(set(refused))
    for rows, length in set(refused):
        assert (
            f"{rows} x {length} tokens do not fit in the device's memory; continuing with" in said
        )


def test_a_row_that_does_not_fit_alone_is_an_error_that_says_what_helps(scorers):
    scorer = fresh(scorers("tiny-gpt2"), batch_tokens=256)
    _, *patches = short_of_memory(scorer, 32, late=False)
    with patches[0], patches[1], pytest.raises(InputError, match=r"1 x .* do not fit.*--quantize"):
        scorer.score_sequences(random_sequences(0))


def test_another_failure_of_the_device_is_not_taken_for_it(scorers):
    scorer = fresh(scorers("tiny-gpt2"))
    broken = mock.Mock(side_effect=JaxRuntimeError("INTERNAL: the device is gone"))
    with (
        mock.patch.object(scorer.engine.dispatch, "_run", broken),
        pytest.raises(JaxRuntimeError, match="the device is gone"),
    ):
        scorer.score_sequences(random_sequences(0))
    assert broken.call_count == 1


@pytest.mark.slow
def test_halves_go_to_the_journal_and_behind_a_prefix(scorers, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxscore.engine.planner.LEAST_SAVED_CPU", 0)
    monkeypatch.setattr("jaxscore.engine.planner.LEAST_SHARE", 0)
    draw = np.random.default_rng(4)
    prompt = draw.integers(5, 1200, 300)
    own = [draw.integers(5, 1200, int(draw.integers(3, 30))) for _ in range(60)]
    sequences = [TokenSequence(np.concatenate([prompt, ids]).astype(np.int32), 300) for ids in own]
    loaded = scorers("tiny-llama3")
    want = fresh(loaded, batch_tokens=1024).score_sequences(sequences)
    found = []
    for _ in range(2):
        scorer = fresh(loaded, batch_tokens=1024)
        scorer.journal = Journal(tmp_path / "journal", {"model": "test"})
        refused, *patches = short_of_memory(scorer, 256, late=False)
        with patches[0], patches[1]:
            found.append(scorer.score_sequences(sequences))
        scorer.close()
        assert any(
            program.name[0] == "prefix" for program in scorer.engine.programs.compiled
        ) == bool(refused)
    assert scorer.statistics.sequences_restored == len(sequences)
    assert not refused
    for a, b, c in zip(*found, want, strict=True):
        assert a.logprob.tobytes() == b.logprob.tobytes()
        np.testing.assert_allclose(a.logprob, c.logprob, atol=1e-5, rtol=0)

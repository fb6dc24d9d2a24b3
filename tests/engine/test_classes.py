"""Classes of tokens of a run: programs, journal, layouts, refusals."""

import numpy as np
import pytest

from jaxscore.journal import Journal
from jaxscore.plan.requests import ScoreOptions, TokenClasses
from tests.engine.test_top import asked, full_logprobs
from tests.test_scorer import fresh

pytestmark = pytest.mark.numeric

CLASSES = {"even": range(0, 1208, 2), "one": [7], "twice": [5, 9, 5]}


@pytest.mark.slow
def test_masses_are_those_of_full_logits(scorers):
    got = fresh(scorers("tiny-llama3")).score_sequences(asked(), classes=CLASSES)
    for sequence, scores in zip(asked(), got, strict=True):
        assert list(scores.measures) == [f"mass_{name}" for name in CLASSES]
        if not sequence.n_scored:
            continue
        logprobs = full_logprobs(scorers("tiny-llama3"), sequence.input_ids)
        n = sequence.n_scored
        at = np.full(n, -1) if len(sequence.choices) else np.arange(-n, 0)
        for name, ids in CLASSES.items():
            want = np.log(np.exp(logprobs[at][:, sorted({*ids})]).sum(axis=1))
            np.testing.assert_allclose(scores.measures[f"mass_{name}"], want, atol=1e-5)


def test_other_classes_of_the_same_number_use_the_same_program(scorers):
    scorer = fresh(scorers("tiny-llama3"))
    values = []
    for ids in ([7], [8], range(1208)):
        [scores] = scorer.score_sequences(asked()[:1], classes={"x": ids})
        values.append(scores.measures["mass_x"])
    assert len(scorer.engine.programs.compiled) == 1
    assert scorer.engine.programs.compiled[0].name[0] == "score with 1 classes"
    assert (values[0] != values[1]).all()
    np.testing.assert_allclose(values[2], 0, atol=1e-5)


def test_journal_keeps_the_masses_of_each_set_of_classes_apart(scorers, tmp_path):
    loaded = scorers("tiny-llama3")

    def run(classes):
        scorer = fresh(loaded)
        scorer.journal = Journal(tmp_path / "journal", {"model": "x"})
        scores = scorer.score_sequences(asked(), classes=classes)
        scorer.close()
        return scores, scorer.statistics.sequences_restored

    n_texts = sum(sequence.n_scored > 0 for sequence in asked())
    first, n = run({"x": [7], "y": [8]})
    assert n == 0
    others, n = run({"x": [7], "y": [9]})
    assert n == 0
    again, n = run({"x": [7], "y": [8]})
    assert n == n_texts
    _, n = run({"a": [7, 7], "b": [8]})  # names and repetitions do not matter
    assert n == n_texts
    for one, other, repeated in zip(first, others, again, strict=True):
        np.testing.assert_array_equal(one.measures["mass_x"], repeated.measures["mass_x"])
        np.testing.assert_array_equal(one.measures["mass_y"], repeated.measures["mass_y"])
        if len(one.logprob):
            assert (one.measures["mass_y"] != other.measures["mass_y"]).all()


def test_digest_tells_classes_apart():
    def key(**classes):
        return ScoreOptions(classes=TokenClasses.of(classes, 16)).key()

    assert key(x=[1]) == key(y=[1, 1])
    assert len({key(x=[1]), key(x=[2]), key(x=[1], y=[2]), key(x=[2], y=[1]), key(x=[1, 2])}) == 5
    assert ScoreOptions().key() == b""


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "class x is empty, expected at least one id"),
        ([-1], "class x has id -1, expected 0 to 1207"),
        ([3, 1208], "class x has id 1208, expected 0 to 1207: .* vocabulary of 1208"),
        ([1.5], "class x has .*1.5.*, expected token ids"),
        ([[1]], "expected token ids"),
        ([True], "expected token ids"),
    ],
)
def test_ids_that_are_refused(scorers, ids, message):
    with pytest.raises(ValueError, match=message):
        fresh(scorers("tiny-llama3")).score_sequences(asked(), classes={"x": ids})


def test_classes_of_a_run_with_top_measures_and_choices(scorers):
    options = {"classes": CLASSES, "top": 3, "measures": ("rank", "renyi2")}
    got = fresh(scorers("tiny-llama3")).score_sequences(asked(), **options)
    want = fresh(scorers("tiny-llama3")).score_sequences(asked(), classes=CLASSES)
    for one, other in zip(got, want, strict=True):
        for name, values in other.measures.items():
            np.testing.assert_allclose(one.measures[name], values, atol=1e-5)

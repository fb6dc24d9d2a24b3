"""Temperature scaling: the fit against a search, and what it does on the other half."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.systems.chronologic.temperature import (
    HIGHEST,
    LOWEST,
    cross_entropy,
    fit_loss,
    fit_temperature,
    rescale,
)

pytestmark = pytest.mark.numeric


def slow_cross_entropy(temperature, questions):
    total = 0.0
    for scores, truth in questions:
        scaled = np.array(scores, np.float64) / temperature
        logprob = scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()
        total -= float((np.array(truth) * logprob).sum())
    return total / len(questions)


def drawn(true_temperature, seed=0, n=300):
    """Questions of two to five answers whose truth is drawn at that temperature."""
    generator = np.random.default_rng(seed)
    questions = []
    for _ in range(n):
        scores = generator.normal(-4.0, 2.0, generator.integers(2, 6))
        p = np.exp((scores - scores.max()) / true_temperature)
        truth = np.eye(len(scores))[generator.choice(len(scores), p=p / p.sum())]
        questions.append((scores, truth))
    return questions


def padded(questions, filler):
    shape = len(questions), max(len(scores) for scores, _ in questions)
    scores, truth = np.full(shape, filler, np.float32), np.full(shape, filler, np.float32)
    is_answer = np.zeros(shape, bool)
    for k, (own, right) in enumerate(questions):
        scores[k, : len(own)], truth[k, : len(own)], is_answer[k, : len(own)] = own, right, True
    return scores, truth, is_answer


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("true_temperature", [0.2, 1.0, 3.0])
def test_no_other_temperature_is_better(true_temperature):
    questions = drawn(true_temperature)
    found = float(fit_temperature(*padded(questions, 0.0)))
    assert found == pytest.approx(true_temperature, rel=0.25)
    best = slow_cross_entropy(found, questions)
    for other in np.geomspace(LOWEST, HIGHEST, 400):
        assert best <= slow_cross_entropy(other, questions) + 1e-5


def test_what_pads_a_question_is_not_seen():
    questions = drawn(1.5)
    with_zeros, with_junk = padded(questions, 0.0), padded(questions, 1000.0)
    assert float(fit_temperature(*with_zeros)) == float(fit_temperature(*with_junk))
    for log_temperature in (-2.0, 0.0, 1.3):
        got = float(fit_loss(jnp.float32(log_temperature), *map(jnp.asarray, with_junk)))
        assert got == pytest.approx(
            slow_cross_entropy(np.exp(log_temperature), questions), rel=1e-5
        )


def test_the_bounds():
    scores = np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)
    is_answer = np.ones((50, 4), bool)
    right = np.eye(4, dtype=np.float32)[scores.argmax(1)]
    wrong = np.eye(4, dtype=np.float32)[scores.argmin(1)]
    assert float(fit_temperature(scores, right, is_answer)) == pytest.approx(LOWEST, rel=1e-4)
    assert float(fit_temperature(scores, wrong, is_answer)) > 0.8 * HIGHEST


def results_at(temperature, n=400, seed=0):
    """Results whose truth is drawn at a temperature, so that T = temperature is right."""
    generator = np.random.default_rng(seed)
    out = []
    for line in range(n):
        scores = generator.normal(-5.0, 2.0, generator.integers(2, 5))
        p = np.exp((scores - scores.max()) / temperature)
        truth = np.zeros(len(scores))
        truth[generator.choice(len(scores), p=p / p.sum())] = 1.0
        out.append({"line": line, "scores": scores.tolist(), "truth": truth.tolist()})
    return out


def test_it_mends_what_is_too_sure():
    results = results_at(3.0)
    found = rescale(results, seed=0)
    assert found["temperature"] == pytest.approx(3.0, rel=0.3)
    assert not found["at_bound"]
    for measure in ("brier", "cross_entropy", "ece"):
        assert found["after"][measure] < found["before"][measure]
    assert sum(one["n"] for one in found["after"]["bins"]) == sum(
        len(results[line]["scores"]) for line in found["evaluated_on"]
    )


def test_the_parts_are_of_questions_and_drawn_by_the_seed():
    results = results_at(1.0, n=21)
    one, same, other = (rescale(results, seed) for seed in (0, 0, 1))
    assert one == same
    assert one["fitted_on"] != other["fitted_on"]
    assert len(one["fitted_on"]) == 10
    assert sorted(one["fitted_on"] + one["evaluated_on"]) == list(range(21))


def test_questions_that_failed_or_have_no_truth_are_not_fitted_on():
    results = results_at(1.0, n=6)
    results[0] = {"line": 0, "error": "too long"}
    results[1]["truth"] = [0.0] * len(results[1]["truth"])
    for seed in range(20):
        found = rescale(results, seed)
        assert len(found["fitted_on"]) == 2
        assert 1 in found["evaluated_on"]
        assert 0 not in found["fitted_on"] + found["evaluated_on"]


def test_too_few():
    assert rescale([{"line": 1, "error": "x"}, *results_at(1.0, n=1)], 0) is None
    assert rescale([], 0) is None


def test_a_truth_that_is_always_the_likeliest_has_no_best_temperature():
    results = results_at(1.0, n=20)
    for result in results:
        result["truth"] = [float(s == max(result["scores"])) for s in result["scores"]]
    found = rescale(results, 0)
    assert found["at_bound"]
    assert found["after"]["brier"] == pytest.approx(0.0, abs=1e-3)


def test_cross_entropy():
    assert cross_entropy([0.5, 0.5], [1.0, 1.0]) == pytest.approx(math.log(2))
    assert cross_entropy([0.25, 0.75], [0.0, 1.0]) == pytest.approx(-math.log(0.75))
    assert cross_entropy([0.0, 1.0], [1.0, 0.0]) == math.inf

"""The fitted temperature against a search over all of them."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxscore.systems.chronologic.temperature import HIGHEST, LOWEST, cross_entropy, fit_temperature


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
    asked = np.zeros(shape, bool)
    for k, (own, right) in enumerate(questions):
        scores[k, : len(own)], truth[k, : len(own)], asked[k, : len(own)] = own, right, True
    return scores, truth, asked


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
        got = float(cross_entropy(jnp.float32(log_temperature), *map(jnp.asarray, with_junk)))
        assert got == pytest.approx(
            slow_cross_entropy(np.exp(log_temperature), questions), rel=1e-5
        )


def test_the_bounds():
    scores = np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)
    asked = np.ones((50, 4), bool)
    right = np.eye(4, dtype=np.float32)[scores.argmax(1)]
    wrong = np.eye(4, dtype=np.float32)[scores.argmin(1)]
    assert float(fit_temperature(scores, right, asked)) == pytest.approx(LOWEST, rel=1e-4)
    assert float(fit_temperature(scores, wrong, asked)) > 0.8 * HIGHEST

"""Temperature scaling on one half of the questions, and what it does on the other."""

import math

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.systems.chronologic import calibrate


def drawn(temperature, n=400, seed=0):
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
    results = drawn(3.0)
    found = calibrate.rescale(results, seed=0)
    assert found["temperature"] == pytest.approx(3.0, rel=0.3)
    assert not found["at_bound"]
    for measure in ("brier", "cross_entropy", "ece"):
        assert found["after"][measure] < found["before"][measure]
    assert sum(one["n"] for one in found["after"]["bins"]) == sum(
        len(results[line]["scores"]) for line in found["evaluated_on"]
    )


def test_the_parts_are_of_questions_and_drawn_by_the_seed():
    results = drawn(1.0, n=21)
    one, same, other = (calibrate.rescale(results, seed) for seed in (0, 0, 1))
    assert one == same
    assert one["fitted_on"] != other["fitted_on"]
    assert len(one["fitted_on"]) == 10
    assert sorted(one["fitted_on"] + one["evaluated_on"]) == list(range(21))


def test_questions_that_failed_or_have_no_truth_are_not_fitted_on():
    results = drawn(1.0, n=6)
    results[0] = {"line": 0, "error": "too long"}
    results[1]["truth"] = [0.0] * len(results[1]["truth"])
    for seed in range(20):
        found = calibrate.rescale(results, seed)
        assert len(found["fitted_on"]) == 2
        assert 1 in found["evaluated_on"]
        assert 0 not in found["fitted_on"] + found["evaluated_on"]


def test_too_few():
    with pytest.raises(InputError, match="1 question to split in two parts"):
        calibrate.check_enough(1)
    calibrate.check_enough(2)
    assert calibrate.rescale([{"line": 1, "error": "x"}, *drawn(1.0, n=1)], 0) is None
    assert calibrate.rescale([], 0) is None


def test_a_truth_that_is_always_the_likeliest_has_no_best_temperature():
    results = drawn(1.0, n=20)
    for result in results:
        result["truth"] = [float(s == max(result["scores"])) for s in result["scores"]]
    found = calibrate.rescale(results, 0)
    assert found["at_bound"]
    assert found["after"]["brier"] == pytest.approx(0.0, abs=1e-3)


def test_calibration_takes_every_answer_as_an_event():
    found = calibrate.calibration([[0.9, 0.1], [0.35, 0.65]], [[1.0, 0.0], [1.0, 0.0]])
    assert found["ece"] == pytest.approx((0.1 + 0.1 + 0.65 + 0.65) / 4)
    assert [one["n"] for one in found["bins"]] == [0, 1, 0, 1, 0, 0, 1, 0, 0, 1]
    assert calibrate.calibration([], [])["ece"] is None


def test_cross_entropy():
    assert calibrate.cross_entropy([0.5, 0.5], [1.0, 1.0]) == pytest.approx(math.log(2))
    assert calibrate.cross_entropy([0.25, 0.75], [0.0, 1.0]) == pytest.approx(-math.log(0.75))
    assert calibrate.cross_entropy([0.0, 1.0], [1.0, 0.0]) == math.inf

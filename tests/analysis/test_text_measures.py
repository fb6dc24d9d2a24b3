"""Min-K% Prob, Min-K%++ and the curvature of Fast-DetectGPT, from whole distributions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis.text_measures import bits, fast_detect, min_k, min_k_pp, perplexity


def drawn(n, V=50, seed=0):
    """ln p of all columns [n, V] and a token of each place."""
    draw = np.random.default_rng(seed)
    z = draw.normal(size=(n, V)) * 3
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True)), draw.integers(0, V, n)


def terms(logp, token):
    p = np.exp(logp)
    entropy = -(p * logp).sum(axis=1)
    deviation = np.sqrt((p * logp**2).sum(axis=1) - entropy**2)
    return logp[np.arange(len(token)), token], entropy, deviation


@pytest.mark.parametrize(
    ("n", "fraction", "taken"),
    [(1, 0.2, 1), (4, 0.2, 1), (10, 0.2, 2), (14, 0.2, 2), (15, 1.0, 15), (7, 0.5, 3)],
)
def test_the_lowest_share_rounded_down_and_at_least_one(n, fraction, taken):
    logprob = -np.random.default_rng(n).random(n)
    want = sum(sorted(logprob.tolist())[:taken]) / taken
    assert min_k(logprob, fraction) == pytest.approx(want, abs=1e-12)


@given(st.lists(st.floats(-50, 0), min_size=1, max_size=40), st.floats(0.01, 1))
def test_min_k_is_that_of_a_sort(values, fraction):
    n = max(1, int(fraction * len(values)))
    assert min_k(np.array(values), fraction) == pytest.approx(sum(sorted(values)[:n]) / n, abs=1e-9)


def test_min_k_pp_standardises_by_each_distribution():
    logp, token = drawn(20)
    scores = []
    for row, one in zip(logp, token, strict=True):  # mean and deviation of ln p under p
        p = np.exp(row)
        mean = float(np.average(row, weights=p))
        deviation = math.sqrt(float(np.average((row - mean) ** 2, weights=p)))
        scores.append((row[one] - mean) / deviation)
    assert min_k_pp(*terms(logp, token), 0.2) == pytest.approx(
        np.mean(sorted(scores)[:4]), abs=1e-9
    )


def test_fast_detect_is_the_distance_from_sampled_texts():
    """The statistic of the paper: how many deviations ln p of the text lies above that of texts
    whose tokens are drawn at each place."""
    logp, token = drawn(30)
    draw = np.random.default_rng(1)
    drawn_tokens = np.stack([draw.choice(50, 40_000, p=np.exp(row)) for row in logp])
    sums = np.take_along_axis(logp, drawn_tokens, axis=1).sum(axis=0)
    own = logp[np.arange(30), token].sum()
    want = (own - sums.mean()) / sums.std()
    assert fast_detect(*terms(logp, token)) == pytest.approx(want, rel=0.02)


def test_nothing_and_no_spread():
    none = np.zeros(0)
    assert (
        min_k(none, 0.2) is min_k_pp(none, none, none, 0.2) is fast_detect(none, none, none) is None
    )
    flat = np.array([-1.0, -2.0]), np.array([1.0, 2.0]), np.zeros(2)
    assert fast_detect(*flat) is None  # no distribution has spread
    assert min_k_pp(*flat, 0.5) == 0  # each is certain of its token, or all tokens are alike
    assert min_k_pp(np.array([-1.5, -2.0]), *flat[1:], 0.5) is None


def test_perplexity_and_bits():
    assert perplexity(None) is None
    assert perplexity(-math.log(50)) == pytest.approx(50)
    assert perplexity(-1e4) == math.inf
    assert bits(math.log(8)) == pytest.approx(3)

"""Perplexity and bits."""

import math

import pytest

from jaxscore.analysis.perplexity import bits, perplexity


def test_values():
    assert perplexity(None) is None
    assert perplexity(-math.log(50)) == pytest.approx(50)
    assert perplexity(-1e4) == math.inf
    assert bits(math.log(8)) == pytest.approx(3)

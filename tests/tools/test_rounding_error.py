"""The tool that measures rounding: its distances by hand, its texts, and PyTorch's own scores."""

import numpy as np
import pytest
import torch

from tests.conftest import CASES
from tools import rounding_error


def test_distance_by_hand():
    a = [np.array([-1.0, -2.0]), np.array([-3.0])]
    b = [np.array([-1.5, -2.0]), np.array([-2.0])]
    largest, percentile, mean, of_texts = rounding_error.distance(a, b)
    assert (largest, mean, of_texts) == (1.0, 0.5, 1.0)
    assert percentile == pytest.approx(0.99)


def test_texts_are_different_pieces_of_the_pages():
    texts = rounding_error.page_texts(5, 100)
    assert len({*texts}) == 5
    assert {len(text) for text in texts} == {100}
    assert texts == rounding_error.page_texts(5, 100)


@pytest.mark.slow
def test_the_models_of_both_programs_agree():
    folder = CASES / "models/tiny-llama3"
    texts = ["The cat sat down.", "partial sums"]
    ids, ours, noise = rounding_error.jax_scores(str(folder), texts, 1, dtype="float32")
    theirs = rounding_error.torch_scores(folder, ids, torch.float64)
    assert noise is not None
    assert [len(one) for one in ours] == [len(one) - 1 for one in ids]
    assert 0 < rounding_error.distance(ours, theirs)[0] < 1e-4

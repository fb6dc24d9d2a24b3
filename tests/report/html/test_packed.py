"""The block of a page's items against what was put in."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.report.html.frame import render
from jaxscore.report.html.shows import LARGEST, MISSING
from tests.hostile.inputs import HOSTILE, any_texts
from tests.report.html.made import block, changed, page_of, strips, text, values


@HOSTILE
@given(st.lists(any_texts, max_size=6))
def test_any_texts_come_back(words):
    header, arrays = block(render(page_of(words)))
    assert header["n"] == len(words)
    for k in (0, 2, 4):
        assert values(header, arrays, k) == words
    assert values(header, arrays, 3) == ["yes" if k % 2 else "no" for k in range(len(words))]
    assert header["noise"] == "".join("n" if k % 3 else "y" for k in range(len(words)))


def test_numbers_of_tokens():
    one = text(["a", " y"], [math.nan, -1e9], rank=[math.nan, 70_000])
    _, arrays = block(render(changed(page_of(["a"]), strips=strips([one]))))
    assert arrays["logprob"].tolist() == [MISSING, -LARGEST]
    assert arrays["rank"].tolist() == [0, 70_000]
    assert arrays["entropy"].tolist() == [0, 3000]
    bits = np.unpackbits(arrays["greedy"].astype(np.uint8), bitorder="little")
    assert bits[:2].tolist() == [0, 0]


def test_no_rank_where_none_was_asked_for():
    _, arrays = block(render(page_of(["a"])))
    assert "rank" not in arrays

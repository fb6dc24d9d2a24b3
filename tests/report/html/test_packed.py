"""The block of a page's items against what was put in, and what it leaves out of large runs."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.report import document
from jaxscore.report.html import packed as module
from jaxscore.report.html.frame import render
from jaxscore.report.html.packed import embedded
from jaxscore.report.html.strips import LARGEST, MISSING
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


def items(words):
    return page_of(words).items


def test_what_fits_stays():
    given = items(["a", "b", "\ud83d"])
    found = embedded(given)
    assert [list(one.values) for one in found.columns] == [list(c.values) for c in given.columns]
    assert found.fields[0].values == given.fields[0].values
    assert found.tables[0].items == given.tables[0].items
    assert found.strips.tokens is given.strips.tokens


def test_of_too_many_items_the_first_are_held(monkeypatch):
    monkeypatch.setattr(document, "MOST", 4)
    monkeypatch.setattr(document, "EMBEDDED", 2)
    assert embedded(items(list("abcd"))).n == 4
    given = changed(page_of(list("abcde")), errors={1: "x", 4: "y"}).items
    found = embedded(given)
    assert (found.n, found.n_all) == (2, 5)
    assert [list(one.values) for one in found.columns] == [
        list(one.values[:2]) for one in given.columns
    ]
    assert found.errors == {1: "x"}
    assert len(found.within_noise) == len(found.tables[0].items) == 2
    assert found.strips.first.tolist() == [0, 1, 2]
    assert found.strips.titles == ["a", "b"]
    assert found.strips.tokens.ids.tolist() == given.strips.tokens.ids[:4].tolist()


def test_tokens_of_the_first_items_are_held(monkeypatch):
    monkeypatch.setattr(module, "TOKENS", 5)
    texts = [text([f"{k}{j}" for j in range(2)], [-1.0, -2.0]) for k in range(4)]
    found = embedded(changed(page_of(list("abcd")), strips=strips(texts)).items).strips
    assert found.first.tolist() == [0, 1, 2, 3, 4]
    assert found.tokens.length.tolist() == [2, 2, 0, 0]
    assert found.tokens.left_out.tolist() == [0, 0, 2, 2]
    assert len(found.tokens.ids) == 4
    assert np.array_equal(found.tokens.numbers["logprob"], [-1000, -2000] * 2)


def test_long_texts_are_cut(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 10)
    found = embedded(items(["x" * 25]))
    want = f"{'x' * 10} … (15 more characters)"
    assert found.columns[0].values == [want]
    assert found.fields[0].values == [want]
    assert found.tables[0].items[0][0].cells[0] == want


def test_texts_of_later_items_are_cut_short(monkeypatch):
    monkeypatch.setattr(module, "CHARACTERS", 20)
    monkeypatch.setattr(module, "SHORT", 3)
    found = embedded(items(["a" * 12, "b" * 12]))
    assert found.fields[0].values == ["a" * 12, "bbb … (9 more characters)"]
    assert found.columns[0].values == ["a" * 12, "b" * 12]  # they name the items

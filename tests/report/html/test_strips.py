"""Arrays of tokens against a loop over each."""

import math
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.report.html import strips as module
from jaxscore.report.html.strips import (
    LARGEST,
    MISSING,
    NOT_KNOWN,
    NUMBERS,
    TokenText,
    join,
    tokens,
)
from jaxscore.types.token_texts import byte_of
from tests.hostile.inputs import HOSTILE
from tests.report.html.made import strips, text

floats = st.floats(width=32) | st.just(math.nan)
lists = st.lists(st.tuples(st.integers(0, 9), floats, floats, floats, st.booleans()), max_size=6)


def slow(value):
    """Thousandths of a nat of one number."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return LARGEST if value > 0 else -LARGEST
    return max(-LARGEST, min(LARGEST, round(float(value) * 1000)))


def made(rows):
    ids, logprob, entropy, certainty, greedy = zip(*rows, strict=True) if rows else [()] * 5
    return TokenText(
        np.array(ids, np.int32),
        [f"t{id}" for id in ids],
        *(np.array(one, np.float32) for one in (logprob, entropy, certainty)),
        np.array(greedy, bool),
    )


@HOSTILE
@given(st.lists(st.none() | lists, max_size=5))
def test_they_are_the_texts_one_behind_the_other(given_rows):
    names = {}
    texts = [None if rows is None else made(rows) for rows in given_rows]
    found = tokens(texts, names)
    flat = [row for rows in given_rows for row in rows or ()]
    assert found.length.tolist() == [len(rows or ()) for rows in given_rows]
    assert found.ids.tolist() == [row[0] for row in flat]
    for k, name in enumerate(NUMBERS, start=1):
        assert found.numbers[name].tolist() == [slow(row[k]) for row in flat]
    assert found.greedy.tolist() == [int(row[4]) for row in flat]
    assert names == {row[0]: f"t{row[0]}" for row in flat}


@HOSTILE
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_texts_are_taken_in_any_order(lengths, data):
    texts = [text([f"{k}{j}" for j in range(n)], [-float(j)] * n) for k, n in enumerate(lengths)
             for j in [k]]  # fmt: skip
    found = tokens(texts, {})
    order = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=8))
    taken = found.take(np.array(order, np.int64))
    wanted = tokens([texts[k] for k in order], {})
    for name in ("length", "ids", "greedy", "rank"):
        assert getattr(taken, name).tolist() == getattr(wanted, name).tolist()
    for name in NUMBERS:
        assert taken.numbers[name].tolist() == wanted.numbers[name].tolist()


def test_parts_are_joined():
    one, other = text(["a", "b"], [-1.0, -2.0]), text(["c"], [-3.0])
    both, names = tokens([one, None, other], {}), {}
    parts = join([tokens([one], names), tokens([None, other], names)])
    assert parts.length.tolist() == both.length.tolist() == [2, 0, 1]
    assert parts.ids.tolist() == both.ids.tolist()
    assert parts.numbers["logprob"].tolist() == [-1000, -2000, -3000]


def test_the_first_texts_keep_their_tokens():
    found = tokens([text(["a", "b"], [-1.0, -2.0]), text(["c"], [-3.0])], {}).first(1)
    assert found.length.tolist() == [2, 0]
    assert found.left_out.tolist() == [0, 1]
    assert found.numbers["logprob"].tolist() == [-1000, -2000]


def test_a_long_text_is_cut(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 2)
    found = tokens([text(["a", "b", "c"], [-1.0, -2.0, -3.0]), text(["d"], [-4.0])], {})
    assert found.length.tolist() == [2, 1]
    assert found.left_out.tolist() == [1, 0]
    assert found.numbers["logprob"].tolist() == [-1000, -2000, -4000]


def test_lists_have_none_for_a_token_without_a_probability():
    ids = np.array([1, 2], np.int32)
    lists_of_it = [None, -1.5], [None, 1.0], [None, 2.0], [None, True]
    found = tokens([TokenText(ids, ["a", "b"], *lists_of_it)], {})
    assert found.numbers["logprob"].tolist() == [MISSING, -1500]
    assert found.greedy.tolist() == [NOT_KNOWN, 1]


def test_ranks_where_they_were_asked_for():
    ranked = text(["a", "b"], [-1.0, -2.0], rank=np.array([np.nan, 7.0]))
    assert tokens([ranked, text(["c"], [-1.0])], {}).rank.tolist() == [0, 7, 0]


def test_ids_that_a_server_does_not_tell():
    """Each name then has an id of its own, the same in every part."""
    unknown = np.full(3, -1, np.int32)
    names = {}
    first = tokens([text(["a", "b", "a"], [-1.0] * 3, token_ids=unknown)], names)
    second = tokens([text(["b", "c", "a"], [-1.0] * 3, token_ids=unknown)], names)
    assert [names[id] for id in first.ids.tolist()] == ["a", "b", "a"]
    assert [names[id] for id in second.ids.tolist()] == ["b", "c", "a"]
    assert (first.ids < 0).all()
    assert len(names) == 3


@pytest.mark.parametrize("texts", [[], [None], [text([], [])]])
def test_no_tokens(texts):
    found = tokens(texts, {})
    assert found.length.tolist() == [0] * len(texts)
    assert len(found.ids) == len(found.numbers["logprob"]) == 0


@HOSTILE
@given(st.lists(st.text(st.sampled_from("aö巴👩\u200d👧\u0308 "), max_size=8), max_size=4))
def test_the_texts_of_tokens_are_the_text_whatever_they_cut(words):
    """Each byte is a token; no part of a character is shown as a replacement."""
    name = {byte: character for character, byte in byte_of().items()}
    texts = [text([name[byte] for byte in f" {word}".encode()], [-1.0] * len(f" {word}".encode()))
             for word in words]  # fmt: skip
    table = strips(texts).table
    shown = [table.texts[index] for index in table.index]
    assert "".join(shown) == "".join(f" {word}" for word in words)
    assert not any(continues and own for continues, own in zip(table.continues, shown, strict=True))
    starts = np.cumsum([0, *(len(one.tokens) for one in texts)])[:-1]
    assert not table.continues[starts].any()
    assert [name_of(table.ids[index]) for index in table.index] == [
        n for one in texts for n in one.tokens
    ]


def name_of(id):
    return next(c for c in byte_of() if zlib.crc32(repr(c).encode()) >> 1 == id)

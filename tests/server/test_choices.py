"""Parts of a growing text: they add up to it, and none has to be taken back."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscore.server.choices import GrowingText, count_stop_prefix, find_stop


class Bytes:
    """Token n is the byte n; 256 is special."""

    def raw(self, id):
        return bytes([id])

    def is_special(self, id):
        return id == 256


def parts(ids, stop, cuts):
    """What each look at the ids gives; the last one is at the finished text."""
    growing = GrowingText(Bytes(), stop)
    found = [growing.append(ids[a:b]) for a, b in itertools.pairwise([0, *sorted(cuts)])]
    text = bytes(id for id in ids if id < 256).decode(errors="replace")
    return [*found, growing.finish(text[: find_stop(text, stop)])]


@given(
    st.text("aé€b.", max_size=20),
    st.lists(st.text("aé€b.", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_parts_add_up(text, stop, cuts):
    ids = [256, *text.encode()]
    for n in range(len(ids) + 1):  # a text ends with the first token by which a stop is complete
        written = bytes(ids[1:n]).decode(errors="ignore")
        if any(one in written for one in stop):
            ids = ids[:n]
            break
    expected = written[: find_stop(written, stop)]
    assert "".join(parts(ids, stop, cuts)) == expected


def test_a_character_waits_for_its_last_byte():
    ids = list("€a".encode())
    assert parts(ids, [], [1, 2, 3]) == ["", "", "€", "a"]
    assert parts(ids[:2], [], [1]) == ["", "\ufffd"]  # it never came


def test_what_may_become_a_stop_string_waits():
    ids = list(b"ab END")
    assert parts(ids, ["END"], [2, 4, 5]) == ["ab", " ", "", ""]
    assert parts(list(b"ab END"), ["ENDE"], [5, 6]) == ["ab ", "", "END"]


@pytest.mark.parametrize(
    ("text", "stop", "n"),
    [
        ("xab", ["abc"], 2),
        ("xab", ["b", "bcd"], 1),
        ("x", ["abc"], 0),
        ("aa", ["aaa"], 2),
        ("", ["a"], 0),
    ],
)
def test_held_back(text, stop, n):
    assert count_stop_prefix(text, stop) == n

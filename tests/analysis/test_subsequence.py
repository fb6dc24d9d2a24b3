"""The bit-parallel longest common subsequence against the textbook table."""

import time
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from jaxscore.analysis.lexical import common_subsequence

WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=40)


def slow(rows, columns):
    """The whole table, and the walk back from its last cell."""
    length = {}
    for i in range(len(rows) + 1):
        for j in range(len(columns) + 1):
            if i == 0 or j == 0:
                length[i, j] = 0
            elif rows[i - 1] == columns[j - 1]:
                length[i, j] = length[i - 1, j - 1] + 1
            else:
                length[i, j] = max(length[i - 1, j], length[i, j - 1])
    i, j, found = len(rows), len(columns), []
    while i and j:
        if rows[i - 1] == columns[j - 1]:
            found.append(rows[i - 1])
            i, j = i - 1, j - 1
        elif length[i - 1, j] > length[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return found[::-1]


@given(WORDS, WORDS)
def test_the_textbook_walk(rows, columns):
    assert common_subsequence(rows, columns) == slow(rows, columns)


@given(st.lists(st.integers(0, 300), max_size=30), st.lists(st.integers(0, 300), max_size=30))
def test_few_items_in_common(rows, columns):
    assert common_subsequence(rows, columns) == slow(rows, columns)


def test_which_of_several_is_taken():
    assert common_subsequence("ab", "ba") == ["b"]  # to the left before upwards
    assert common_subsequence("ba", "ab") == ["a"]
    assert common_subsequence("", "ab") == common_subsequence("ab", "") == []
    assert common_subsequence("abc", "xyz") == []


def test_long_lists_take_seconds_and_megabytes():
    rows = [str(n % 7) for n in range(20_000)]
    columns = [str(n % 5) for n in range(20_000)]
    tracemalloc.start()
    started = time.perf_counter()
    found = common_subsequence(rows, columns)
    seconds, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 20  # the table of 4e8 cells would take minutes
    assert peak < 20e6  # and, a bit a cell, 50 MB
    left = iter(rows)
    assert all(item in left for item in found)
    left = iter(columns)
    assert all(item in left for item in found)
    assert len(found) > 8_000

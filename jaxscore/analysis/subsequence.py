"""The longest common subsequence of two long lists."""

import math
from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def common_subsequence(rows: Sequence[T], columns: Sequence[T]) -> list[T]:
    """One longest common subsequence, the one that the textbook table gives.

    With L[i, j] the length for the first i rows and j columns, walk back from the last cell:
    along the diagonal where row and column are equal, else to the left, except where
    L[i - 1, j] > L[i, j - 1]. Other ways back give other words of the same number.

    The table is kept as its horizontal steps L[i, j] - L[i, j - 1], which are 0 or 1: one bit a
    cell, a row in one Python integer, computed with one addition a row (Hyyrö, "Bit-parallel LCS
    computation revisited", 2004). Only every √n-th row is kept, and the rows between two of them
    are computed again on the way back: 100,000 by 100,000 items take seconds and a few MB.
    """
    # A column without an equal row is a step of 0 in each row: the walk only passes it by.
    known = set(rows)
    columns = [item for item in columns if item in known]
    where: dict[T, int] = {}
    for place, item in enumerate(columns):
        where[item] = where.get(item, 0) | 1 << place
    stride = max(1, math.isqrt(len(rows)))
    kept = [(1 << len(columns)) - 1]
    for start in range(0, len(rows), stride):
        kept.append(_advance(kept[-1], rows[start : start + stride], where, len(columns))[-1])
    found: list[T] = []
    j = len(columns)
    for start in reversed(range(0, len(rows), stride)):
        part = rows[start : start + stride]
        flat = _advance(kept[start // stride], part, where, len(columns))
        i = len(part)
        while i and j:
            if part[i - 1] == columns[j - 1]:
                found.append(part[i - 1])
                i, j = i - 1, j - 1
            elif flat[i - 1] >> (j - 1) & 1:
                j -= 1
            else:
                i -= 1
    return found[::-1]


def _advance(flat: int, rows: Sequence[T], where: dict[T, int], width: int) -> list[int]:
    """For each row an integer whose bit j is 1 where L does not rise from column j to j + 1."""
    mask = (1 << width) - 1
    out = []
    for item in rows:
        equal = where.get(item, 0)
        rising = flat & equal
        flat = (flat + rising | flat - rising) & mask
        out.append(flat)
    return out

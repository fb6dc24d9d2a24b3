"""The remarks of several runs unite to the remarks of one run over all items."""

import json

import pytest

from jaxscore.systems.remarks import (
    MORE,
    MOST_REMARKS,
    Remark,
    first_remarks,
    remark_from,
    remark_records,
    united_remarks,
)


def cut(n):
    return Remark("{n} of {m} are cut, {x} in all", n=n, m=2, x=n / 3)


def test_counts_add_up_and_equal_remarks_are_there_once():
    runs = [["a {n}", cut(1)], ["b", "a {n}"], [cut(2), "b"]]
    assert united_remarks(runs) == ["a {n}", "3 of 4 are cut, 1 in all", "b"]


def test_remark_on_all_items_replaces_those_of_the_runs():
    assert united_remarks([[cut(1)], [cut(1), "a"]], [cut(9)]) == [cut(9), "a"]


@pytest.mark.parametrize(("others", "expected"), [(["a", "b"], ["a", "b"]), (["b"], ["b"])])
def test_remark_that_does_not_hold_for_all_is_left_out(others, expected):
    runs = [[Remark("a", if_all=True), "b"], [Remark(x, if_all=x == "a") for x in others]]
    assert united_remarks(runs) == expected


@pytest.mark.parametrize("n_first", [30, 90, 150])
def test_runs_with_many_remarks_have_those_of_one_run(n_first):
    every = [*(f"note {k}" for k in range(200)), cut(1)]
    runs = [first_remarks(part, MOST_REMARKS) for part in (every[:n_first], every[n_first:])]
    one = first_remarks(every, MOST_REMARKS)
    assert united_remarks(runs) == one
    assert one[-2:] == [cut(1), Remark(MORE, n=100)]


def test_remarks_of_a_manifest_are_those_that_were_written():
    remarks = ["{n}", cut(2), Remark("\\boxed{...}", if_all=True, of_shard=True)]
    read = [remark_from(value) for value in json.loads(json.dumps(remark_records(remarks)))]
    assert read == remarks == ["{n}", "2 of 2 are cut, 0.666667 in all", "\\boxed{...}"]
    assert vars(read[1]) == vars(remarks[1])
    assert vars(read[2]) == vars(remarks[2])

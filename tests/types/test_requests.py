"""What `score` takes beside `Request`s."""

import numpy as np
import pandas
import pytest

from jaxscore.types.requests import Request, Unusable, requests_from


def test_every_form():
    given = [
        Request("own", "a", "b"),
        "text",
        ("context", " continuation"),
        ["context", " continuation"],
        {"continuation": "c"},
        {"id": "x", "context": "d", "continuation": "e", "other": None},
        {"id": np.int64(7), "continuation": "f"},
    ]
    assert list(requests_from(given)) == [
        Request("own", "a", "b"),
        Request(1, "", "text"),
        Request(2, "context", " continuation"),
        Request(3, "context", " continuation"),
        Request(4, "", "c"),
        Request("x", "d", "e"),
        Request(7, "", "f"),
    ]


def test_a_wrong_type_fails_that_item_alone():
    given = [
        "good", 3, None, b"bytes", ("a",), ("a", 1), {"context": "a"}, {"continuation": 2},
        {"id": 1.5, "continuation": "x"}, {"id": True, "continuation": "x"},
        Request(None, "a", "b"), Request("y", None, "b"), "good",
    ]  # fmt: skip
    found = list(requests_from(given))
    assert [isinstance(one, Unusable) for one in found] == [False, *[True] * 11, False]
    assert [one.id for one in found] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "y", 12]
    errors = [one.error for one in found[1:-1]]
    for error, what in zip(
        errors,
        [
            "item 1 is of type int", "item 2 is of type NoneType", "item 3 is of type bytes",
            "item 4 is a tuple of 1", "continuation is of type int", "continuation is missing",
            "continuation is of type int", "id is of type float", "id is of type bool",
            "id is of type NoneType", "context is missing",
        ],
        strict=True,
    ):  # fmt: skip
        assert what in error
        assert "expected" in error


def test_a_data_frame():
    frame = pandas.DataFrame(
        {"context": ["a", "c"], "continuation": [" b", None], "extra": [1.5, 2.5]}
    )
    first, second = requests_from(frame)
    assert first == Request(0, "a", " b")
    assert second == Unusable(1, second.error)
    assert "item 1: continuation is" in second.error


@pytest.mark.parametrize("given", ["one text", b"bytes", Request("a", "", "b"), 3, None])
def test_what_is_no_list(given):
    with pytest.raises(TypeError, match="expected a list of requests; put it in brackets"):
        list(requests_from(given))

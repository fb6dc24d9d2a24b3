"""Records on disk come back as they were."""

import math
import tempfile

import pytest

from jaxscore.io.json_output import json_parts, json_text
from jaxscore.io.stored_records import Lazy, StoredRecords, where

RECORDS = [
    {"id": k, "text": text, "values": [0.1 * k, None, math.inf], "part": {"n": 10**30}}
    for k, text in enumerate(("", "\ud83d", "a\nb", "\u2028ü"))
]


@pytest.fixture
def stored():
    with tempfile.TemporaryFile() as file:
        yield StoredRecords(iter(RECORDS), file)


def test_records_come_back_in_any_order(stored):
    assert stored == RECORDS
    assert (len(stored), stored[-1], stored[1:3]) == (4, RECORDS[-1], RECORDS[1:3])
    assert [(a, b) for a in stored for b in stored] == [(a, b) for a in RECORDS for b in RECORDS]
    with pytest.raises(IndexError):
        stored[4]


def test_chosen_records(stored):
    assert where(stored, lambda record: record["id"] % 2) == RECORDS[1::2]
    assert where(where(stored, lambda record: record["id"]), lambda one: one["text"]) == RECORDS[1:]
    assert Lazy([2, 0], stored.__getitem__) == [RECORDS[2], RECORDS[0]]


def test_report_in_parts_is_the_json_of_the_whole(stored):
    fields = {"n": 1, "lists": {"a": [1, {"b": (2,)}]}, "none": [], "ü": "\ud83d"}
    assert "".join(json_parts({**fields, "items": stored})) == json_text(
        {**fields, "items": RECORDS}
    )
    assert "".join(json_parts({})) == json_text({})

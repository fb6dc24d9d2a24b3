"""JSON and JSONL that commands write: strict and exact."""

import json
import math

import numpy as np
import pytest

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.io.json_output import (
    Lazy,
    json_line,
    json_parts,
    json_text,
    where,
    write_array,
)
from jaxscore.shell.records import Records


def test_numbers_that_json_does_not_have_also_in_dataclasses():
    record = {"mean": Estimate(2, math.inf, -math.inf, math.nan), "é": [math.inf, 0.5, None]}
    text = json_text(record)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "mean": {"n": 2, "mean": "Infinity", "low": "-Infinity", "high": None},
        "é": ["Infinity", 0.5, None],
    }
    assert "é" in text
    assert text.endswith("}\n")
    assert text.splitlines()[1].startswith('  "mean"')


def test_what_is_no_json_is_refused():
    with pytest.raises(TypeError):
        json_text({"a": object()})


def test_half_a_surrogate_pair_can_be_written():
    text = json_text({"q_id": "a\ud83d", "b": "\U0001f600"})
    assert json.loads(text.encode("utf-8")) == {"q_id": "a\ud83d", "b": "\U0001f600"}


def test_arrays_are_read_back_to_the_last_bit():
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    values[3] = np.nan
    ids = np.arange(1000, dtype=np.int32)
    line = json_line({"id": "a", "ids": ids, "logprob": values, "greedy": ids > 3})
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    read = json.loads(line)
    assert read["ids"] == ids.tolist()
    assert read["greedy"] == (ids > 3).tolist()
    assert read["logprob"][3] is None
    back = np.array([np.nan if one is None else one for one in read["logprob"]], np.float32)
    np.testing.assert_array_equal(back, values)


def test_numbers_that_json_has_not():
    read = json.loads(json_line({"a": float("inf"), "b": float("nan"), "c": [float("-inf"), 1.5]}))
    assert read == {"a": "Infinity", "b": None, "c": ["-Infinity", 1.5]}


@pytest.mark.parametrize("extra", [2**70, {"deep": [-(2**65)]}])
def test_a_whole_number_beyond_64_bits(extra):
    arrays = {
        "logprob": np.array([0.1, np.nan, -np.inf, -10.353353, 1e-30], np.float32),
        "ids": np.arange(6, dtype=np.int32).reshape(3, 2)[:, 0],
        "greedy": np.array([True, False]),
    }
    line = json_line({"n": extra, **arrays})
    assert json.loads(line) == {"n": extra, **json.loads(json_line(arrays))}
    assert b'"logprob":[0.1,null,null,-10.353353,1e-30]' in line


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([1, None]), np.array([1], ">i4")])
def test_arrays_that_orjson_does_not_know(array):
    assert json.loads(json_line({"n": 2**70, "x": array}))["x"] == array.tolist()
    assert json.loads(json_line({"x": array}))["x"] == array.tolist()


def test_other_scripts_stay_as_they_are():
    assert json_line({"a": "Þórr ☃"}).decode() == '{"a":"Þórr ☃"}\n'
    assert json_line({"a": ["Þórr", 1, 2.5, float("inf")]}).decode() == (
        '{"a":["Þórr",1,2.5,"Infinity"]}\n'
    )


ITEMS = [
    {"a": "é\nline", "b": [1.5, None], "c": {"d": []}},
    {},
    {"nan": float("nan"), "inf": float("inf")},
]


def test_the_array_is_json_whatever_is_in_it(tmp_path):
    path = tmp_path / "out.json"
    for items in (ITEMS, ITEMS[:1], []):
        with path.open("w", encoding="utf-8") as file:
            write_array(file, iter(items))
        want = [*items[:2], *[{"nan": None, "inf": "Infinity"}] * (len(items) == 3)]
        assert path.read_text(encoding="utf-8") == (json.dumps(want, indent=4) + "\n")


@pytest.mark.parametrize("is_ascii", [True, False])
def test_half_a_surrogate_pair_survives_in_an_array(tmp_path, is_ascii):
    items = [{"a": "é \ud83d"}, {"a": "é"}]
    path = tmp_path / "out.json"
    with path.open("w", encoding="utf-8") as file:
        write_array(file, items, is_ascii=is_ascii)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == items
    assert ("é" in text) != is_ascii


RECORDS = [
    {"id": k, "text": text, "values": [0.1 * k, None, math.inf], "part": {"n": 10**30}}
    for k, text in enumerate(("", "\ud83d", "a\nb", "\u2028ü"))
]


WRITTEN = [{**record, "values": [*record["values"][:2], "Infinity"]} for record in RECORDS]


@pytest.fixture
def stored():
    out = Records.temporary()
    out.extend(RECORDS)
    return out


def test_records_come_back_in_any_order(stored):
    assert stored == WRITTEN
    assert (len(stored), stored[-1], stored[1:3]) == (4, WRITTEN[-1], WRITTEN[1:3])
    assert [(a, b) for a in stored for b in stored] == [(a, b) for a in WRITTEN for b in WRITTEN]
    with pytest.raises(IndexError):
        stored[4]


def test_chosen_records(stored):
    assert where(stored, lambda record: record["id"] % 2) == WRITTEN[1::2]
    assert where(where(stored, lambda record: record["id"]), lambda one: one["text"]) == WRITTEN[1:]
    assert Lazy([2, 0], stored.__getitem__) == [WRITTEN[2], WRITTEN[0]]


def test_report_in_parts_is_the_json_of_the_whole(stored):
    fields = {"n": 1, "lists": {"a": [1, {"b": (2,)}]}, "none": [], "ü": "\ud83d"}
    assert "".join(json_parts({**fields, "items": stored})) == json_text(
        {**fields, "items": RECORDS}
    )
    assert "".join(json_parts({})) == json_text({})


def test_lazy_sequence_computes_elements_when_they_are_read():
    seen = []
    lazy = Lazy([2, 0], lambda place: seen.append(place) or place * 10)
    assert (len(lazy), lazy[1], seen) == (2, 0, [0])
    assert list(lazy) == [20, 0]

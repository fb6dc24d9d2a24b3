"""Lines of JSONL: what a reader gets back from them."""

import json

import numpy as np
import pytest

from jaxscore.io.json_lines import json_line


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

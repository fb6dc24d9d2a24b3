"""Tables of scores: what a reader gets back from them."""

import io
import json
import sys

import numpy as np
import pytest
from pyarrow import parquet

from jaxscore import InputError
from jaxscore.io import parquet_output
from jaxscore.io.parquet_output import ParquetOutput
from jaxscore.systems.score.requests_file import ARRAYS, NUMBERS


def scored(k, **more):
    values = np.array([np.nan, -1.5, -2.25], np.float32)[: k % 4]
    return {
        "id": k, "token_ids": np.arange(len(values), dtype=np.int32), "tokens": ["a"] * len(values),
        "logprob": values, "entropy": values, "self_certainty": values,
        "greedy": [None, True, False][: len(values)] if k % 4 else np.zeros(0, bool),
        "sum_logprob": -3.75, "n_tokens": len(values), **more,
    }  # fmt: skip


def read(file):
    file.seek(0)
    return parquet.ParquetFile(file)


def test_rows_are_read_back(monkeypatch):
    monkeypatch.setattr(parquet_output, "TOGETHER", 3)
    file = io.BytesIO()
    given = [scored(k) for k in range(7)] + [{"id": "x", "error": "why", "n": 2**70}]
    with ParquetOutput(file, ARRAYS | NUMBERS) as table:
        for one in given:
            table.write(one)
    made = read(file)
    assert made.num_row_groups == 3
    rows = made.read().to_pylist()
    assert [row["id"] for row in rows] == ["0", "1", "2", "3", "4", "5", "6", "x"]
    assert rows[3]["logprob"] == [None, -1.5, -2.25]
    assert rows[3]["greedy"] == [None, True, False]
    assert rows[3]["token_ids"] == [0, 1, 2]
    assert rows[4]["logprob"] == []
    assert (rows[3]["sum_logprob"], rows[3]["n_tokens"], rows[3]["error"]) == (-3.75, 3, None)
    assert rows[7]["logprob"] is rows[7]["sum_logprob"] is None
    assert rows[7]["error"] == "why"
    assert json.loads(rows[7]["extra"]) == {"n": 2**70}


def test_without_arrays_and_without_rows():
    file = io.BytesIO()
    with ParquetOutput(file, NUMBERS):
        pass
    made = read(file).read()
    assert made.num_rows == 0
    assert "logprob" not in made.column_names
    assert "mean_logprob" in made.column_names


def test_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install pyarrow, or give an --output that ends in"):
        ParquetOutput(io.BytesIO(), NUMBERS)

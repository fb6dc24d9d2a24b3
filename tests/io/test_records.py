"""Records as tables and lines: what a reader gets back, and files that are no records."""

import io
import json
import sys

import numpy as np
import pytest
from pyarrow import parquet

from jaxscore.errors import InputError
from jaxscore.io import records
from jaxscore.io.json_input import read_jsonl_records
from jaxscore.io.json_output import json_line
from jaxscore.io.records import parquet_writer
from jaxscore.io.tables import read_parquet_records
from jaxscore.shell.system import table_columns
from jaxscore.systems.score import SYSTEM, Settings

NUMBERS = table_columns(SYSTEM, Settings(summary_only=True))
ARRAYS = {
    name: kind for name, kind in table_columns(SYSTEM, Settings()).items() if name not in NUMBERS
}


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
    monkeypatch.setattr(records, "TOGETHER", 3)
    file = io.BytesIO()
    given = [scored(k) for k in range(7)] + [{"id": "x", "error": "why", "n": 2**70}]
    with parquet_writer(file, ARRAYS | NUMBERS) as write:
        for one in given:
            write(one)
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
    with parquet_writer(file, NUMBERS):
        pass
    made = read(file).read()
    assert made.num_rows == 0
    assert "logprob" not in made.column_names
    assert "mean_logprob" in made.column_names


def test_without_pyarrow(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install pyarrow, or give an --output that ends in"):
        parquet_writer(io.BytesIO(), NUMBERS).__enter__()


RECORDS = [
    {"id": "a", "logprob": np.array([-1.5, np.nan], np.float32), "sum_logprob": -1.5},
    {"id": 2**70, "sum_logprob": None, "perplexity": float("inf")},
    {"id": "ü", "error": "too long"},
]


def test_lines_come_back(tmp_path):
    path = tmp_path / "o.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(map(json_line, RECORDS)))
    found = list(read_jsonl_records(path))
    assert [number for number, _ in found] == [1, 3, 5]
    assert found[0][1] == {"id": "a", "logprob": [-1.5, None], "sum_logprob": -1.5}
    assert found[1][1]["perplexity"] == "Infinity"
    assert found[2][1] == RECORDS[2]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (b'{"a": 1}\n[1]\n', "o.jsonl:2: found a list, expected an object"),
        (b'{"a": 1}\n{"a": NaN}\n', "o.jsonl:2: not JSON"),
        (b'{"a": "\xff"}', "o.jsonl:1: not JSON"),
        (b"[" * 100_000, "o.jsonl:1: not JSON"),
    ],
)
def test_files_that_are_no_lines(tmp_path, content, part):
    path = tmp_path / "o.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=part):
        list(read_jsonl_records(path))


def test_rows_come_back_without_arrays(tmp_path):
    path = tmp_path / "o.parquet"
    with path.open("wb") as file, parquet_writer(file, {**ARRAYS, **NUMBERS}) as write:
        arrays = {name: np.array([], kind.strip("[_]")) for name, kind in ARRAYS.items()
                  if kind != "[string]"}  # fmt: skip
        write({"id": 1, **arrays, "tokens": [], "sum_logprob": -1.5, "year": 1887})
        write({"id": "b", "error": "too long"})
    first, second = read_parquet_records(path)
    assert (first["id"], first["sum_logprob"], second["error"]) == ("1", -1.5, "too long")
    assert not {"logprob", "tokens", "extra"} & set(first)
    path.write_bytes(b"no table")
    with pytest.raises(InputError, match="expected a readable Parquet file"):
        list(read_parquet_records(path))

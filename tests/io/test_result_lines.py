"""Results read back: what `score` writes, and files that are no results."""

import numpy as np
import pytest

from jaxscore.errors import InputError
from jaxscore.io.json_lines import json_line
from jaxscore.io.parquet_output import ParquetOutput
from jaxscore.io.result_lines import read_lines, read_rows
from jaxscore.systems.score.requests_file import ARRAYS, NUMBERS

RECORDS = [
    {"id": "a", "logprob": np.array([-1.5, np.nan], np.float32), "sum_logprob": -1.5},
    {"id": 2**70, "sum_logprob": None, "perplexity": float("inf")},
    {"id": "ü", "error": "too long"},
]


def test_lines_come_back(tmp_path):
    path = tmp_path / "o.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(map(json_line, RECORDS)))
    found = list(read_lines(path))
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
        list(read_lines(path))


def test_rows_come_back_without_arrays(tmp_path):
    path = tmp_path / "o.parquet"
    with path.open("wb") as file, ParquetOutput(file, {**ARRAYS, **NUMBERS}) as table:
        arrays = {name: np.array([], kind.strip("[_]")) for name, kind in ARRAYS.items()
                  if kind != "[string]"}  # fmt: skip
        table.write({"id": 1, **arrays, "tokens": [], "sum_logprob": -1.5, "year": 1887})
        table.write({"id": "b", "error": "too long"})
    first, second = read_rows(path)
    assert (first["id"], first["sum_logprob"], second["error"]) == ("1", -1.5, "too long")
    assert not {"logprob", "tokens", "extra"} & set(first)
    path.write_bytes(b"no table")
    with pytest.raises(InputError, match="expected a readable Parquet file"):
        list(read_rows(path))

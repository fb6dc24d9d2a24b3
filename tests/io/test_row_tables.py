"""Tables of rows: the same values in each form, whatever is in them."""

import csv
import gzip
import io
import json
import math

import numpy as np
import pytest
from pyarrow import parquet

from jaxscore.io.atomic import atomic
from jaxscore.io.row_tables import row_writer

COLUMNS = {"id": "string", "x": "json", "text": "string", "p": "float32", "top": "[string]"}
COLUMNS |= {"error": "string"}
TEXTS = ['a,"b"', "\r", "\n\t;", "東 🙂"]
P = [-0.1, math.nan, -math.inf, 0.0]


def write(path):
    with atomic(path) as file, row_writer(path, file, COLUMNS) as add:
        cells = {"text": TEXTS, "p": np.array(P, np.float32), "top": [["a", "b"], None, [], ["c"]]}
        add({"id": 7, "x": {"k": [1]}}, cells)
        add({"id": "f", "error": "why"}, {})


def test_jsonl(tmp_path):
    write(tmp_path / "o.jsonl")
    *rows, failed = map(json.loads, (tmp_path / "o.jsonl").read_text("utf-8").splitlines())
    assert [row["text"] for row in rows] == TEXTS
    assert [row["p"] for row in rows] == [-0.1, None, "-Infinity", 0.0]
    assert rows[0] == {"id": 7, "x": {"k": [1]}, "text": 'a,"b"', "p": -0.1, "top": ["a", "b"]}
    assert failed == {"id": "f", "error": "why"}


@pytest.mark.parametrize(
    ("name", "delimiter"), [("o.csv", ","), ("o.tsv", "\t"), ("o.csv.gz", ",")]
)
def test_text_tables(tmp_path, name, delimiter):
    write(tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    text = (gzip.decompress(raw) if name.endswith("gz") else raw).decode()
    *rows, failed = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    assert [row["text"] for row in rows] == TEXTS
    assert [row["p"] for row in rows] == ["-0.1", "", "-Infinity", "0.0"]
    assert [row["top"] for row in rows] == ['["a", "b"]', "", "[]", '["c"]']
    assert json.loads(rows[0]["x"]) == {"k": [1]}
    assert failed == dict.fromkeys(COLUMNS, "") | {"id": "f", "error": "why"}


def test_parquet(tmp_path):
    write(tmp_path / "o.parquet")
    *rows, failed = parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert [row["text"] for row in rows] == TEXTS
    assert [row["p"] for row in rows] == [np.float32(-0.1), None, -math.inf, 0.0]
    assert (rows[0]["id"], json.loads(rows[0]["x"]), rows[0]["top"]) == (
        "7",
        {"k": [1]},
        ["a", "b"],
    )
    assert failed == dict.fromkeys(COLUMNS) | {"id": "f", "error": "why"}

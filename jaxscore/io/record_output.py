"""Records of a command's output, in the form that the name of the file asks for."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import orjson

from jaxscore.io.atomic import json_number, json_safe
from jaxscore.io.csv_input import DELIMITERS
from jaxscore.io.csv_rows import csv_line
from jaxscore.io.json_lines import extra, json_line
from jaxscore.io.parquet_output import ParquetOutput

FORMS = "JSONL, or a table where the name ends in .csv, .tsv or .parquet"

Write = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def writer(path: Path, file: TextIO, columns: Mapping[str, str]) -> Iterator[Write]:
    """What takes each record and writes it.

    Args:
        path: its ending decides the form; any other than those of `FORMS` is JSONL.
        file: open under that name; a table is complete when the block ends.
        columns: of a table, see `ParquetOutput`; JSONL has the fields as they are.

    Raises:
        InputError: a Parquet file, and pyarrow is not installed.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        with ParquetOutput(file.buffer, columns) as table:
            yield table.write
    elif kind in DELIMITERS:
        delimiter, names = DELIMITERS[kind], ["id", *columns, "error"]
        file.write(csv_line([*names, "extra"], delimiter))

        def write_row(record: Mapping[str, Any]) -> None:
            cells = [_cell(record.get(name)) for name in names]
            file.write(csv_line([*cells, extra(record, names) or ""], delimiter))

        yield write_row
    else:

        def write_line(record: Mapping[str, Any]) -> None:
            file.buffer.write(json_line(record))

        yield write_line


def _cell(value: Any) -> str:
    """A value as text: as in JSON, but for null, which is nothing, and text, which is itself."""
    if value is None or (isinstance(value, float) and json_number(value) is None):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    safe = json_safe(value)
    return safe if isinstance(safe, str) else json.dumps(safe, ensure_ascii=False)

"""Writes records as JSONL, CSV or Parquet, by the ending of the file."""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TextIO

import numpy as np
import orjson

from jaxscore.errors import InputError
from jaxscore.io.compression import form_of, refuse_compressed
from jaxscore.io.json_output import extra_fields, json_line, json_number, to_json_value
from jaxscore.io.tables import DELIMITERS


def csv_line(row: Iterable[object], delimiter: str = ",") -> str:
    """One row of CSV with its line end.

    Before Python 3.13 the writer quotes a cell only for its own line ends, and a reader takes an
    unquoted carriage return for the end of the row.
    """
    line = io.StringIO(newline="")
    csv.writer(line, delimiter=delimiter, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n") + "\n"


FORMS = "JSONL, or a table where the name ends in .csv, .tsv or .parquet"

Write = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def record_writer(path: Path, file: TextIO, columns: Mapping[str, str]) -> Iterator[Write]:
    """Open a function that writes one record per call.

    Args:
        path: its ending decides the format, see `FORMS`.
        file: open file of that name; a table is complete when the block ends.
        columns: columns of a table, see `ParquetWriter`; JSONL has all fields of a record.

    Raises:
        InputError: the output is Parquet and pyarrow is not installed.
    """
    kind = form_of(path)
    if kind == ".parquet":
        refuse_compressed(path)
        with ParquetWriter(file.buffer, columns) as table:
            yield table.write
    elif kind in DELIMITERS:
        delimiter, names = DELIMITERS[kind], ["id", *columns, "error"]
        file.write(csv_line([*names, "extra"], delimiter))

        def write_row(record: Mapping[str, Any]) -> None:
            cells = [_cell(record.get(name)) for name in names]
            file.write(csv_line([*cells, extra_fields(record, names) or ""], delimiter))

        yield write_row
    else:

        def write_line(record: Mapping[str, Any]) -> None:
            file.buffer.write(json_line(record))

        yield write_line


def _cell(value: Any) -> str:
    """Text of a cell: JSON, except that null is empty and a string has no quotes."""
    if value is None or (isinstance(value, float) and json_number(value) is None):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    safe = to_json_value(value)
    return safe if isinstance(safe, str) else json.dumps(safe, ensure_ascii=False)


TOGETHER = 1024  # records per row group, which bounds a reader's memory


class ParquetWriter:
    """Writes records as rows of one table.

    Columns have the names of the fields. `id` is text, `error` is the reason of a failed item,
    and `extra` has all other fields as JSON text. Missing fields and NaN in arrays are null.

    Example:
        >>> columns = {"sum_logprob": "float64", "logprob": "[float32]"}
        >>> with open("out.parquet", "wb") as file, ParquetOutput(file, columns) as table:
        ...     table.write({"id": "a", "sum_logprob": -1.5})
    """

    def __init__(self, file: BinaryIO, columns: Mapping[str, str]) -> None:
        """Args:
            columns: name -> Arrow's name of its type, in brackets for a list; `id`, `error` and
                `extra` are added.

        Raises:
            InputError: pyarrow is not installed.
        """
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise InputError(
                "a .parquet file is written with pyarrow, which is not installed; "
                "pip install pyarrow, or give an --output that ends in .jsonl"
            ) from None
        self._arrow: Any = pyarrow
        self._columns = {"id": "string", **columns, "error": "string"}
        fields = [(name, self._type(kind)) for name, kind in self._columns.items()]
        self._schema = pyarrow.schema([*fields, ("extra", pyarrow.string())])
        self._writer = parquet.ParquetWriter(file, self._schema)
        self._waiting: list[Mapping[str, Any]] = []

    def __enter__(self) -> "ParquetWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._flush()
        self._writer.close()

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a record as a row; arrays are NumPy arrays or lists."""
        self._waiting.append(record)
        if len(self._waiting) == TOGETHER:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            columns = [self._column(field) for field in self._schema]
            self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
            self._waiting = []

    def _type(self, kind: str) -> Any:
        if kind.startswith("["):
            return self._arrow.list_(self._type(kind[1:-1]))
        return getattr(self._arrow, kind)()

    def _column(self, field: Any) -> Any:
        name = field.name
        if self._columns.get(name, "").startswith("["):
            return self._lists(field)
        if name == "extra":
            values = [extra_fields(record, self._columns) for record in self._waiting]
        elif name == "id":
            values = [str(record["id"]) for record in self._waiting]
        else:
            values = [record.get(name) for record in self._waiting]
        return self._arrow.array(values, field.type)

    def _lists(self, field: Any) -> Any:
        """One column of lists, null for a record without one."""
        lists = [record.get(field.name) for record in self._waiting]
        present = [values for values in lists if values is not None]
        sizes = [0 if values is None else len(values) for values in lists]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        flat: Any
        if all(isinstance(values, np.ndarray) for values in present):
            flat = np.concatenate(present) if present else np.zeros(0)
        else:
            flat = [value for values in present for value in values]
        column = self._arrow.array(flat, field.type.value_type, from_pandas=True)
        missing = self._arrow.array([values is None for values in lists])
        return self._arrow.ListArray.from_arrays(offsets, column, field.type, mask=missing)

"""Writes tables of rows, from columns of some rows at a time: CSV, TSV, Parquet or JSONL."""

import contextlib
import csv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import orjson

from jaxscore.io.json_output import json_line, json_number
from jaxscore.io.records import cell_of, field_type, parquet_module
from jaxscore.io.streams import form_of, refuse_compressed
from jaxscore.io.tables import DELIMITERS

TOGETHER = 1 << 14  # rows per row group of Parquet, which bounds memory
RowWriter = Callable[[Mapping[str, Any], Mapping[str, Any]], None]


@contextlib.contextmanager
def row_writer(
    path: Path,
    file: TextIO,
    columns: Mapping[str, str],
    metadata: Callable[[], Mapping[str, str]] = dict,
) -> Iterator[RowWriter]:
    """Open a function that writes rows.

    It takes the values that all rows share, and columns of equal length, NumPy arrays or lists;
    without columns it writes one row. NaN in an array is null, and so is a missing column.

    Args:
        path: its ending decides the format; JSONL has only the columns that it is given.
        columns: name -> type, see `io.records.field_type`.
        metadata: computes what is added to a Parquet file's schema, at the first rows.

    Raises:
        InputError: the file is Parquet, and pyarrow is not installed.
    """
    form = form_of(path)
    if form == ".parquet":
        refuse_compressed(path)
        with _parquet_writer(file, columns, metadata) as write:
            yield write
    elif form in DELIMITERS:
        yield _csv_writer(file, columns, DELIMITERS[form])
    else:
        yield lambda shared, cells: file.buffer.writelines(map(json_line, rows_of(shared, cells)))


def values_of(column: Any) -> list[Any]:
    """Return a column's values as JSON has them: see `json_number`, float32 in shortest form."""
    if not isinstance(column, np.ndarray):
        return list(column)
    text = orjson.dumps(np.ascontiguousarray(column), option=orjson.OPT_SERIALIZE_NUMPY)
    values: list[Any] = orjson.loads(text)
    if column.dtype.kind == "f" and column.ndim == 1:
        for index in np.flatnonzero(np.isinf(column)).tolist():  # orjson writes null
            values[index] = json_number(float(column[index]))
    return values


def rows_of(shared: Mapping[str, Any], columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield rows as objects; without columns one of what they share."""
    if not columns:
        yield dict(shared)
    for values in zip(*map(values_of, columns.values()), strict=True):
        yield {**shared, **dict(zip(columns, values, strict=True))}


class _Lines:
    """A file for `csv.writer`, which passes each row with its line terminator.

    The terminator is replaced: before Python 3.13 the writer quotes a cell with a carriage return
    only if the terminator has one.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, line: str) -> None:
        self._file.write(line.removesuffix("\r\n") + "\n")


def _csv_writer(file: TextIO, columns: Mapping[str, str], delimiter: str) -> RowWriter:
    writer: Any = csv.writer(_Lines(file), delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(columns)

    def write(shared: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        listed = {name: _cells(column) for name, column in cells.items()}
        n = len(next(iter(listed.values()))) if listed else 1
        repeated = {name: [cell_of(value)] * n for name, value in shared.items()}
        empty = [""] * n
        filled = repeated | listed
        writer.writerows(zip(*(filled.get(name, empty) for name in columns), strict=True))

    return write


def _cells(column: Any) -> list[Any]:
    """Return cells for `csv.writer`, which writes numbers and None as `cell_of` does."""
    values = values_of(column)
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "fiu":
        return values
    return [value if type(value) is str else cell_of(value) for value in values]


@contextlib.contextmanager
def _parquet_writer(
    file: TextIO, columns: Mapping[str, str], metadata: Callable[[], Mapping[str, str]]
) -> Iterator[RowWriter]:
    pyarrow, parquet = parquet_module()
    types = {name: field_type(type_name) for name, type_name in columns.items()}
    state: dict[str, Any] = {"writer": None, "waiting": [], "n": 0}

    def flush() -> None:
        if state["writer"] is None:
            schema = pyarrow.schema(list(types.items()), metadata=metadata() or None)
            state["writer"] = parquet.ParquetWriter(file.buffer, schema)
        if state["waiting"]:
            table = pyarrow.concat_tables(state["waiting"]).combine_chunks()
            state["writer"].write_table(table.cast(state["writer"].schema))
        state.update(waiting=[], n=0)

    def write(shared: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        n = len(next(iter(cells.values()))) if cells else 1
        arrays = []
        for name, type_ in types.items():
            column = cells.get(name)
            if column is None:
                value = _plain(shared.get(name), columns[name])
                arrays.append(pyarrow.array([value] * n, type_))
            elif isinstance(column, np.ndarray) and column.ndim == 1:
                arrays.append(pyarrow.array(column, type_, from_pandas=True))
            else:
                arrays.append(pyarrow.array(values_of(column), type_))
        state["waiting"].append(pyarrow.Table.from_arrays(arrays, names=list(types)))
        state["n"] += n
        if state["n"] >= TOGETHER:
            flush()

    try:
        yield write
        flush()
    finally:
        if state["writer"] is not None:
            state["writer"].close()


def _plain(value: Any, type_name: str) -> Any:
    """Return a shared value as its column has it: JSON and ids are text."""
    is_text = type_name in ("string", "json") and value is not None
    return cell_of(value) if is_text else value

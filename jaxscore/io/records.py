"""Writes records as JSONL, CSV or Parquet, by the ending of the file.

Columns of Parquet are typed, beside those of the user's table:

    user's table     title: string | year: int32 | price: decimal
    records          one per row, in order: sum_logprob, logprob[], ...
    result           title | year | price | sum_logprob: double | logprob: list<float> | error
"""

import contextlib
import csv
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TextIO

import numpy as np
import orjson

from jaxscore.errors import InputError
from jaxscore.io.json_output import extra_fields, json_line, json_number, to_json_value
from jaxscore.io.streams import form_of, refuse_compressed
from jaxscore.io.tables import DELIMITERS, is_dataset, open_batches

NOTHING: Mapping[str, str] = {}


def field_type(kind: str) -> Any:
    """Arrow's type of a name, in brackets for a list: `[[float32]]` is `list<list<float>>`."""
    import pyarrow

    if kind.startswith("["):
        return pyarrow.list_(field_type(kind[1:-1]))
    return getattr(pyarrow, kind)()


def is_nested(kind: str) -> bool:
    """Whether a column has lists of lists."""
    return kind.startswith("[[")


def make_column(records: Sequence[Mapping[str, Any]], name: str, kind: str) -> Any:
    """The Arrow array of one field of all records, null if it is missing or NaN in an array.

    Args:
        kind: as of `field_type`.
    """
    import pyarrow

    values = [record.get(name) for record in records]
    type_ = field_type(kind)
    if is_nested(kind):
        rows = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        return pyarrow.array(rows, type_)
    if kind.startswith("["):
        return _lists(values, type_)
    if kind.startswith("float"):  # JSON has infinities as text
        values = [float(value) if isinstance(value, str) else value for value in values]
    return pyarrow.array(values, type_)


def _lists(values: Sequence[Any], type_: Any) -> Any:
    """One column of lists, null for a record without one."""
    import pyarrow

    present = [each for each in values if each is not None]
    sizes = [0 if each is None else len(each) for each in values]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    flat: Any
    if present and all(isinstance(each, np.ndarray) for each in present):
        flat = np.concatenate(present)
    else:
        flat = [value for each in present for value in each]
    column = pyarrow.array(flat, type_.value_type, from_pandas=True)
    missing = pyarrow.array([each is None for each in values], pyarrow.bool_())
    return pyarrow.ListArray.from_arrays(offsets, column, type_, mask=missing)


def check_free(names: Collection[str], columns: Collection[str], repeated: Collection[str]) -> None:
    """Refuse a user's column with the name of a result.

    Args:
        names: of the user's columns.
        columns: fields of the records.
        repeated: fields that the records repeat from the input.

    Raises:
        InputError: naming the column.
    """
    if taken := sorted({*names} & {*columns} - {*repeated}):
        raise InputError(
            f'the input has a column "{taken[0]}", which is the name of a result; rename it'
        )


def append_records(
    table: Any,
    records: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    replaced: Collection[str] = (),
) -> Any:
    """A pyarrow Table with a typed column for each field of `columns` that it does not have.

    A column of text gives way to a field that is no text, such as the index of the option whose
    text the user wrote.

    Args:
        table: the user's rows.
        records: one per row, in order.
        columns: field -> its type, as of `field_type`.
        replaced: further columns that give way to a field, as the records read it elsewhere.
    """
    for name, kind in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, make_column(records, name, kind))
        elif name in replaced or _is_replaced(table.schema, name, kind):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, make_column(records, name, kind))
    return table


def _is_replaced(schema: Any, name: str, kind: str) -> bool:
    """Return True if a user's column is text and the record's field is not, such as an index."""
    from pyarrow.types import is_large_string, is_string

    own = schema.field(name).type
    is_text = is_string(own) or is_large_string(own)
    return is_text and name != "id" and kind not in ("string", "[string]")


def _is_integer(schema: Any, name: str) -> bool:
    from pyarrow.types import is_integer

    return bool(is_integer(schema.field(name).type))


def append_fields(schema: Any, columns: Mapping[str, str], replaced: Collection[str] = ()) -> Any:
    """The schema of `append_records` for the schema of the user's table."""
    import pyarrow

    for name, kind in columns.items():
        field = pyarrow.field(name, field_type(kind))
        if name not in schema.names:
            schema = schema.append(field)
        elif name in replaced or _is_replaced(schema, name, kind):
            schema = schema.set(schema.get_field_index(name), field)
    return schema


class UserRows:
    """The rows of a user's table, some at a time.

    Attributes:
        schema: of the table.
    """

    def __init__(self, schema: Any, batches: Iterator[Any]) -> None:
        import pyarrow

        self.schema, self._batches = schema, batches
        self._waiting = pyarrow.Table.from_batches([], schema)

    def take(self, n: int) -> Any:
        """The next n rows as a pyarrow Table."""
        import pyarrow

        while self._waiting.num_rows < n:
            batch = pyarrow.Table.from_batches([next(self._batches)], self.schema)
            self._waiting = pyarrow.concat_tables([self._waiting, batch])
        taken, self._waiting = self._waiting.slice(0, n), self._waiting.slice(n)
        return taken


@contextlib.contextmanager
def open_rows(path: Path | None) -> Iterator[UserRows | None]:
    """The rows of a Parquet file or a folder of `datasets`; None for anything else.

    Raises:
        InputError: as of `open_batches`.
    """
    is_table = path is not None and (path.suffix.lower() == ".parquet" or is_dataset(path))
    if path is None or not is_table:
        yield None
        return
    with open_batches(path) as (schema, batches):
        yield UserRows(schema, batches)


def csv_line(row: Iterable[object], delimiter: str = ",") -> str:
    """One row of CSV with its line end.

    Before Python 3.13 the writer quotes a cell only for its own line ends, and a reader takes an
    unquoted carriage return for the end of the row.
    """
    line = io.StringIO(newline="")
    csv.writer(line, delimiter=delimiter, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n") + "\n"


METADATA = "jaxscore"  # key of a Parquet schema's metadata: what made the results, as JSON
FORMS = "JSONL, or a table where the name ends in .csv, .tsv or .parquet"

Write = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def record_writer(
    path: Path,
    file: TextIO,
    columns: Mapping[str, str],
    source: Path | None = None,
    repeated: Collection[str] = ("id",),
    metadata: Callable[[], Mapping[str, str]] = dict,
    replaced: Mapping[str, str] = NOTHING,
) -> Iterator[Write]:
    """Open a function that writes one record per call.

    Args:
        path: its ending decides the format, see `FORMS`.
        file: open file of that name; a table is complete when the block ends.
        columns: columns of a table, see `ParquetWriter`; JSONL has all fields of a record.
        source: the input, with an item for each record. If both are Arrow tables, the output has
            the input's columns too.
        repeated: fields of the input that the records repeat.
        metadata: gives what the schema of a Parquet file says, at its first rows.
        replaced: field -> column of another name that it was read from.

    Raises:
        InputError: the output is Parquet and pyarrow is not installed.
    """
    kind = form_of(path)
    if kind == ".parquet":
        refuse_compressed(path)
        with (
            open_rows(source) as rows,
            ParquetWriter(file.buffer, columns, rows, repeated, metadata, replaced) as table,
        ):
            yield table.write
    elif kind in DELIMITERS:
        flat = [name for name, type_ in columns.items() if not is_nested(type_)]
        delimiter, names = DELIMITERS[kind], list(dict.fromkeys(["id", *flat, "error"]))
        file.write(csv_line([*names, "extra"], delimiter))

        def write_row(record: Mapping[str, Any]) -> None:
            cells = [cell_of(record.get(name)) for name in names]
            file.write(csv_line([*cells, extra_fields(record, names) or ""], delimiter))

        yield write_row
    else:

        def write_line(record: Mapping[str, Any]) -> None:
            file.buffer.write(json_line(record))

        yield write_line


def cell_of(value: Any) -> str:
    """Text of a cell: JSON, except that null is empty and a string has no quotes."""
    if value is None or (isinstance(value, float) and json_number(value) is None):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    safe = to_json_value(value)
    return safe if isinstance(safe, str) else json.dumps(safe, ensure_ascii=False)


def parse_cell(text: str, kind: str) -> Any:
    """The value of a cell that `record_writer` wrote; an empty one is null, or an empty string.

    Args:
        kind: as of `field_type`.
    """
    if kind == "string":
        return text
    if not text:
        return None
    return float(text) if kind.startswith("float") else orjson.loads(text)


TOGETHER = 1024  # records per row group, which bounds a reader's memory


class ParquetWriter:
    """Writes records as rows of one table.

    Columns have the names of the fields. `error` is the reason of a failed item. Missing fields
    and NaN in arrays are null.

    Rows of a user's table keep their own columns, with their types, before those of the
    records. Without them `id` is text, and `extra` has all other fields as JSON text.

    Example:
        >>> columns = {"sum_logprob": "float64", "logprob": "[float32]"}
        >>> with open("out.parquet", "wb") as file, ParquetWriter(file, columns) as table:
        ...     table.write({"id": "a", "sum_logprob": -1.5})
    """

    def __init__(
        self,
        file: BinaryIO,
        columns: Mapping[str, str],
        rows: UserRows | None = None,
        repeated: Collection[str] = ("id",),
        metadata: Callable[[], Mapping[str, str]] = dict,
        replaced: Mapping[str, str] = NOTHING,
    ) -> None:
        """Args:
            columns: name -> type of a field, as of `field_type`; `id`, `error` and
                `extra` are added. Beside `rows` an `id` that they do not have is an integer,
                unless `columns` says otherwise.
            rows: of the user's table, one for each record, in order.
            repeated: fields that the records repeat from the user's table.
            metadata: gives what is added to the schema's metadata, at the first rows.
            replaced: field -> column of the user of another name that it was read from: a
                column with the field's name gives way. Such an `id` is text, unless that
                column has integers.

        Raises:
            InputError: pyarrow is not installed, or a column of the user has the name of a result.
        """
        try:
            import pyarrow
        except ImportError:
            raise InputError(
                "a .parquet file is written with pyarrow, which is not installed; "
                "pip install pyarrow, or give an --output that ends in .jsonl"
            ) from None
        self._arrow: Any = pyarrow
        self._rows = rows
        if rows is None:
            flat = {name: kind for name, kind in columns.items() if not is_nested(kind)}
            self._columns = {"id": "string", **flat, "error": "string", "extra": "string"}
        else:
            self._columns = {"id": "int64", **columns, "error": "string"}
            if "id" in replaced and not _is_integer(rows.schema, replaced["id"]):
                self._columns["id"] = "string"
            check_free(rows.schema.names, self._columns, repeated)
        schema = pyarrow.schema([]) if rows is None else rows.schema
        self._replaced = replaced
        self._schema = append_fields(schema, self._columns, replaced)
        self._file, self._metadata = file, metadata
        self._writer: Any = None
        self._waiting: list[Mapping[str, Any]] = []

    def __enter__(self) -> "ParquetWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._flush()
                self._opened()
        finally:
            if self._writer is not None:
                self._writer.close()

    def _opened(self) -> Any:
        """The writer of the file, whose schema says what only a loaded model knows."""
        if self._writer is None:
            from pyarrow import parquet

            metadata = {**(self._schema.metadata or {}), **self._metadata()}
            self._schema = self._schema.with_metadata(metadata or None)
            self._writer = parquet.ParquetWriter(self._file, self._schema)
        return self._writer

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a record as a row; arrays are NumPy arrays or lists."""
        self._waiting.append(record)
        if len(self._waiting) == TOGETHER:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        writer = self._opened()
        if self._rows is None:
            records = self._as_text()
            columns = [make_column(records, name, kind) for name, kind in self._columns.items()]
            table = self._arrow.Table.from_arrays(columns, schema=self._schema)
        else:
            rows = self._rows.take(len(self._waiting))
            records = self._waiting
            if "id" in self._replaced and self._columns["id"] == "string":
                records = [{**record, "id": str(record["id"])} for record in records]
            table = append_records(rows, records, self._columns, self._replaced)
        writer.write_table(table)
        self._waiting = []

    def _as_text(self) -> list[Mapping[str, Any]]:
        """The records with `id` as text, and with `extra`."""
        known = self._columns.keys() - {"extra"}
        return [
            {**record, "id": str(record["id"]), "extra": extra_fields(record, known)}
            for record in self._waiting
        ]

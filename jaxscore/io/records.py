"""Writes records as JSONL, CSV or Parquet, by the ending of the file.

Columns of Parquet are typed, and follow those of the user's table:

    user's table     title: string | year: int32 | price: decimal
    records          one per row, in order: sum_logprob, logprob[], ...
    result           title | year | price | sum_logprob: double | logprob: list<float> | error
"""

import contextlib
import csv
import io
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import orjson

from jaxscore.errors import InputError, NoItems
from jaxscore.io.json_output import extra_fields, json_line, json_number, to_json_value
from jaxscore.io.streams import form_of, refuse_compressed
from jaxscore.io.tables import DELIMITERS, is_dataset, open_batches, read_csv

NOTHING: Mapping[str, str] = {}
JSON = "json"  # the type of a column of objects, as text
INDEX = "index"  # the first field of records without an id
TOGETHER = 1024  # records per row group, which bounds a reader's memory


def field_type(type_name: str) -> Any:
    """Arrow's type of a name: `[[float32]]` is `list<list<float>>`, `json` is its text."""
    import pyarrow

    if type_name.startswith("["):
        return pyarrow.list_(field_type(type_name[1:-1]))
    return getattr(pyarrow, "string" if type_name == JSON else type_name)()


def is_nested(type_name: str) -> bool:
    """Return True if a column has lists of lists."""
    return type_name.startswith("[[")


def make_column(records: Sequence[Mapping[str, Any]], name: str, type_name: str) -> Any:
    """Return one field of all records as Arrow array, null if it is missing or NaN in an array.

    Args:
        type_name: see `field_type`.
    """
    import pyarrow

    values = [record.get(name) for record in records]
    type_ = field_type(type_name)
    if is_nested(type_name):
        rows = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        return pyarrow.array(rows, type_)
    if type_name.startswith("["):
        return _lists(values, type_)
    if type_name in ("string", JSON):  # an id may be a number
        values = [None if value is None else cell_of(value) for value in values]
    if type_name.startswith("float"):  # JSON has infinities as text
        values = [float(value) if isinstance(value, str) else value for value in values]
    return pyarrow.array(values, type_)


def _lists(values: Sequence[Any], type_: Any) -> Any:
    """Return a column of lists, null for a record without a list."""
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
        names: names of the user's columns.
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
    """Return a pyarrow Table with a typed column for each field of `columns` that it lacks.

    A column of text gives way to a field that is not text, such as the index of the option whose
    text the user wrote.

    Args:
        table: the user's rows.
        records: one per row, in order.
        columns: field -> its type, see `field_type`.
        replaced: further columns that give way to a field, as the records read it elsewhere.
    """
    for name, type_name in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, make_column(records, name, type_name))
        elif name in replaced or _is_replaced(table.schema, name, type_name):
            index = table.schema.get_field_index(name)
            table = table.set_column(index, name, make_column(records, name, type_name))
    return table


def _is_replaced(schema: Any, name: str, type_name: str) -> bool:
    """Return True if a user's column is text and the record's field is not, such as an index."""
    from pyarrow.types import is_large_string, is_string

    type_ = schema.field(name).type
    is_text = is_string(type_) or is_large_string(type_)
    return is_text and name != "id" and type_name not in ("string", "[string]")


def append_fields(schema: Any, columns: Mapping[str, str], replaced: Collection[str] = ()) -> Any:
    """Return the schema of `append_records` for the schema of the user's table."""
    import pyarrow

    for name, type_name in columns.items():
        field = pyarrow.field(name, field_type(type_name))
        if name not in schema.names:
            schema = schema.append(field)
        elif name in replaced or _is_replaced(schema, name, type_name):
            schema = schema.set(schema.get_field_index(name), field)
    return schema


class UserRows:
    """The rows of a user's table, some at a time.

    Attributes:
        schema: the schema of the table.
    """

    def __init__(self, schema: Any, batches: Iterator[Any]) -> None:
        import pyarrow

        self.schema, self._batches = schema, batches
        self._waiting = pyarrow.Table.from_batches([], schema)

    def take(self, n: int) -> Any:
        """Return the next n rows as a pyarrow Table."""
        import pyarrow

        while self._waiting.num_rows < n:
            batch = pyarrow.Table.from_batches([next(self._batches)], self.schema)
            self._waiting = pyarrow.concat_tables([self._waiting, batch])
        taken, self._waiting = self._waiting.slice(0, n), self._waiting.slice(n)
        return taken


@contextlib.contextmanager
def open_rows(path: Path | None) -> Iterator[UserRows | None]:
    """Open the rows of a Parquet file or a folder of `datasets`; None for anything else.

    Raises:
        InputError: see `open_batches`.
    """
    is_table = path is not None and (path.suffix.lower() == ".parquet" or is_dataset(path))
    if path is None or not is_table:
        yield None
        return
    with open_batches(path) as (schema, batches):
        yield UserRows(schema, batches)


def csv_line(row: Iterable[object], delimiter: str = ",") -> str:
    """Return a row of CSV with its newline.

    Before Python 3.13 the writer quotes a cell only for the newline that it writes, and a reader
    takes an unquoted carriage return for the end of the row.
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
    header: Sequence[str] = (),
) -> Iterator[Write]:
    """Open a function that writes one record per call.

    Args:
        path: its ending decides the format, see `FORMS`.
        file: open file of that name; a table is complete when the block ends.
        columns: columns of a table, see `parquet_writer`; JSONL has all fields of a record.
        source: the input, with an item for each record. If both are Arrow tables, or both are text
            tables, the output has the input's columns too.
        repeated: fields of the input that the records repeat.
        metadata: gives what the schema of a Parquet file says, at its first rows.
        replaced: field -> column of another name that it was read from.
        header: columns of a text table, if the records have those of the user's table.

    Raises:
        InputError: the output is Parquet and pyarrow is not installed.
    """
    form = form_of(path)
    if form == ".parquet":
        refuse_compressed(path)
        with (
            open_rows(source) as rows,
            parquet_writer(file.buffer, columns, rows, repeated, metadata, replaced) as write,
        ):
            yield write
    elif form in DELIMITERS:
        delimiter, user_rows = DELIMITERS[form], _text_rows(source)
        first: dict[str, str] = next(user_rows, {})
        user_rows = itertools.chain([first], user_rows)
        flat = [name for name, type_ in columns.items() if not is_nested(type_)]
        names = [*(header or dict.fromkeys([*first, *_id_column(columns), *flat, "error"]))]
        has_extra = not (first or header)
        file.write(csv_line([*names, "extra"] if has_extra else names, delimiter))

        def write_row(record: Mapping[str, Any]) -> None:
            cells = dict.fromkeys(names, "") | next(user_rows, {})
            cells |= {
                name: cell_of(value)
                for name, value in record.items()
                if name not in first or name in replaced or columns.get(name, "string") != "string"
            }
            extra = [extra_fields(record, names) or ""] if has_extra else []
            file.write(csv_line([*(cells[name] for name in names), *extra], delimiter))

        yield write_row
    else:

        def write_line(record: Mapping[str, Any]) -> None:
            file.buffer.write(json_line(record))

        yield write_line


def _text_rows(source: Path | None) -> Iterator[dict[str, str]]:
    """Yield the rows of a text table; none of another file, or of a table without a row."""
    if source is not None and form_of(source) in DELIMITERS:
        with contextlib.suppress(NoItems):
            yield from (row for _, row in read_csv(source))


def _id_column(columns: Mapping[str, str], type_: str = "string") -> dict[str, str]:
    """Return the column of the ids with its type; none if the records have an index."""
    return {} if INDEX in columns else {"id": type_}


def cell_of(value: Any) -> str:
    """Return the text of a cell: JSON, except that null is empty and a string is not quoted."""
    if value is None or (isinstance(value, float) and json_number(value) is None):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, np.ndarray):
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    safe = to_json_value(value)
    return safe if isinstance(safe, str) else json.dumps(safe, ensure_ascii=False)


def parse_cell(text: str, type_name: str) -> Any:
    """Return the value of a cell that `record_writer` wrote; empty ones are null or empty text.

    Args:
        type_name: see `field_type`.
    """
    if type_name == "string":
        return text
    if not text:
        return None
    try:
        return float(text) if type_name.startswith("float") else orjson.loads(text)
    except ValueError:  # an index with the name of its shard, or what the user wrote
        return text


def parquet_module() -> tuple[Any, Any]:
    """Import pyarrow and its Parquet module.

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
    return pyarrow, parquet


@contextlib.contextmanager
def parquet_writer(
    file: BinaryIO,
    columns: Mapping[str, str],
    rows: UserRows | None = None,
    repeated: Collection[str] = ("id",),
    metadata: Callable[[], Mapping[str, str]] = dict,
    replaced: Mapping[str, str] = NOTHING,
) -> Iterator[Write]:
    """Open a function that writes one record per call as a row of a table.

    Columns have the names of the fields. `error` is the reason of a failed item. Missing fields
    and NaN in arrays are null.

    Rows of a user's table keep their columns, with their types, before those of the records.
    Without them `id` is text, and `extra` has all other fields as JSON text.

    Args:
        columns: name -> type of a field, see `field_type`; `id`, `error` and `extra` are added.
            Next to `rows` an `id` that they do not have is an integer, unless `columns` says
            otherwise.
        rows: rows of the user's table, one for each record, in order.
        repeated: fields that the records repeat from the user's table.
        metadata: gives what is added to the schema's metadata, at the first rows: some of it only
            a loaded model knows.
        replaced: field -> column of the user of another name that it was read from: a column with
            the field's name gives way. Such an `id` is text, unless that column has integers.

    Raises:
        InputError: pyarrow is not installed, or a column of the user has the name of a result.

    Example:
        >>> columns = {"sum_logprob": "float64", "logprob": "[float32]"}
        >>> with open("out.parquet", "wb") as file, parquet_writer(file, columns) as write:
        ...     write({"id": "a", "sum_logprob": -1.5})
    """
    # Over 60 lines: two forms of a table share the buffer of rows and the open file.
    pyarrow, parquet = parquet_module()
    if rows is None:
        flat = {name: type_ for name, type_ in columns.items() if not is_nested(type_)}
        columns = {**_id_column(columns), **flat, "error": "string", "extra": "string"}
    else:
        columns = {**_id_column(columns, "int64"), **columns, "error": "string"}
        if "id" in replaced:
            source = rows.schema.field(replaced["id"]).type
            columns["id"] = columns["id"] if pyarrow.types.is_integer(source) else "string"
        check_free(rows.schema.names, columns, repeated)
    schema = append_fields(pyarrow.schema([]) if rows is None else rows.schema, columns, replaced)
    has_text_ids = rows is None or ("id" in replaced and columns["id"] == "string")
    writer: Any = None
    waiting: list[Mapping[str, Any]] = []

    def flush() -> None:
        nonlocal writer, schema
        if writer is None:
            schema = schema.with_metadata({**(schema.metadata or {}), **metadata()} or None)
            writer = parquet.ParquetWriter(file, schema)
        records = waiting
        if has_text_ids and INDEX not in columns:
            records = [{**record, "id": str(record["id"])} for record in waiting]
        if not records:
            return
        if rows is None:
            names = columns.keys() - {"extra"}
            records = [{**record, "extra": extra_fields(record, names)} for record in records]
            arrays = [make_column(records, name, type_) for name, type_ in columns.items()]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
        else:
            writer.write_table(append_records(rows.take(len(records)), records, columns, replaced))
        waiting.clear()

    def write(record: Mapping[str, Any]) -> None:
        waiting.append(record)
        if len(waiting) == TOGETHER:
            flush()

    try:
        yield write
        flush()
    finally:
        if writer is not None:
            writer.close()

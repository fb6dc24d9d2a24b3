"""Typed Arrow columns of records, and the user's own columns beside them.

user's table     title: string | year: int32 | price: decimal
records          one per row, in order: sum_logprob, logprob[], ...
result           title | year | price | sum_logprob: double | logprob: list<float> | error
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.tables import is_dataset, open_batches


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
    table: Any, records: Sequence[Mapping[str, Any]], columns: Mapping[str, str]
) -> Any:
    """A pyarrow Table with a typed column for each field of `columns` that it does not have.

    Args:
        table: the user's rows.
        records: one per row, in order.
        columns: field -> its type, as of `field_type`.
    """
    for name, kind in columns.items():
        if name not in table.column_names:
            table = table.append_column(name, make_column(records, name, kind))
    return table


def append_fields(schema: Any, columns: Mapping[str, str]) -> Any:
    """The schema of `append_records`, from that of the user's table."""
    import pyarrow

    for name, kind in columns.items():
        if name not in schema.names:
            schema = schema.append(pyarrow.field(name, field_type(kind)))
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

"""A table of results as a Parquet file, for more items than JSON is good for."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.json_lines import extra

TOGETHER = 1024  # records in each row group: what a reader holds of a column at a time


class ParquetOutput:
    """Writes records as rows of one table.

    Columns have the names of the fields. `id` is text; `error` says why an item failed; `extra`
    has all other fields of a record as JSON text. What a record lacks is null, and so is NaN in
    an array.

    Example:
        >>> columns = {"sum_logprob": "float64", "logprob": "[float32]"}
        >>> with open("out.parquet", "wb") as file, ParquetOutput(file, columns) as table:
        ...     table.write({"id": "a", "sum_logprob": -1.5})
    """

    def __init__(self, file: BinaryIO, columns: Mapping[str, str]) -> None:
        """Args:
            columns: name -> Arrow's name of its type, in brackets for a list of them; `id`,
                `error` and `extra` are there in any case.

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

    def __enter__(self) -> "ParquetOutput":
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
        """Add a row; arrays are NumPy arrays or lists."""
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
            values = [extra(one, self._columns) for one in self._waiting]
        elif name == "id":
            values = [str(one["id"]) for one in self._waiting]
        else:
            values = [one.get(name) for one in self._waiting]
        return self._arrow.array(values, field.type)

    def _lists(self, field: Any) -> Any:
        """Lists of one column, null for a record without them."""
        found = [one.get(field.name) for one in self._waiting]
        sizes = [0 if one is None else len(one) for one in found]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        if all(isinstance(one, np.ndarray) for one in found if one is not None):
            own = [one for one in found if one is not None]
            flat: Any = np.concatenate(own) if own else np.zeros(0)
        else:
            flat = [item for one in found if one is not None for item in one]
        values = self._arrow.array(flat, field.type.value_type, from_pandas=True)
        missing = self._arrow.array([one is None for one in found])
        return self._arrow.ListArray.from_arrays(offsets, values, field.type, mask=missing)

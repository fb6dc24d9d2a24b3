"""A table of scores as a Parquet file, for more texts than JSON is good for."""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from jaxscore.errors import InputError
from jaxscore.files.atomic import json_safe

TOGETHER = 1024  # records in each row group: what a reader holds of a column at a time
ARRAYS = {
    "token_ids": "int32",
    "tokens": "string",
    "logprob": "float32",
    "entropy": "float32",
    "self_certainty": "float32",
    "greedy": "bool_",
}
NUMBERS = {
    "sum_logprob": "float64",
    "mean_logprob": "float64",
    "perplexity": "float64",
    "mean_entropy": "float64",
    "mean_self_certainty": "float64",
    "n_tokens": "int64",
    "n_scored": "int64",
    "truncated": "int64",
}
TEXTS = ("error", "extra")


class ParquetOutput:
    """Writes the records of `score` as rows of one table.

    Columns have the names of the fields. `id` is text; `extra` has all other fields of the input
    line as JSON text. What a record lacks is null, and so is NaN in an array.

    Example:
        >>> with open("out.parquet", "wb") as file, ParquetOutput(file, arrays=True) as table:
        ...     table.write({"id": "a", "sum_logprob": -1.5})
    """

    def __init__(self, file: BinaryIO, *, arrays: bool) -> None:
        """Args:
            arrays: whether the table has the columns of per-token values.

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
        fields = [("id", pyarrow.string())]
        if arrays:
            fields += [(n, pyarrow.list_(getattr(pyarrow, t)())) for n, t in ARRAYS.items()]
        fields += [(name, getattr(pyarrow, kind)()) for name, kind in NUMBERS.items()]
        fields += [(name, pyarrow.string()) for name in TEXTS]
        self._schema = pyarrow.schema(fields)
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

    def _column(self, field: Any) -> Any:
        name, known = field.name, {"id", *ARRAYS, *NUMBERS, "error"}
        if name in ARRAYS:
            return self._lists(field)
        if name == "extra":
            others = [{k: v for k, v in one.items() if k not in known} for one in self._waiting]
            values = [json.dumps(json_safe(one)) if one else None for one in others]
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

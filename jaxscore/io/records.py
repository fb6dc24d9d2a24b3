"""Records as JSONL, CSV or Parquet, by the name of the file: written, and read back."""

import codecs
import contextlib
import csv
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TextIO

import numpy as np
import orjson

from jaxscore.errors import InputError
from jaxscore.io.json_input import check_encoding, json_kind, unreadable_file
from jaxscore.io.json_output import extra, json_line, json_number, json_safe
from jaxscore.io.tables import DELIMITERS


def csv_line(row: Iterable[object], delimiter: str = ",") -> str:
    """One row of the table, its line end included.

    Before Python 3.13 a cell is quoted only for those line ends that are the writer's own, and a
    reader takes a carriage return without quotes for the end of its row.
    """
    line = io.StringIO(newline="")
    csv.writer(line, delimiter=delimiter, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n") + "\n"


FORMS = "JSONL, or a table where the name ends in .csv, .tsv or .parquet"

Write = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def record_writer(path: Path, file: TextIO, columns: Mapping[str, str]) -> Iterator[Write]:
    """What takes each record and writes it.

    Args:
        path: its ending decides the form; any other than those of `FORMS` is JSONL.
        file: open under that name; a table is complete when the block ends.
        columns: of a table, see `ParquetWriter`; JSONL has the fields as they are.

    Raises:
        InputError: a Parquet file, and pyarrow is not installed.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        with ParquetWriter(file.buffer, columns) as table:
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


TOGETHER = 1024  # records in each row group: what a reader holds of a column at a time


class ParquetWriter:
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


def read_jsonl_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank, several times as fast as `read_jsonl`.

    It is for what commands have written. Values that lie deep are not refused, since nothing of
    them is written again.

    Raises:
        InputError: the file cannot be read, a line is no JSON object, or there is no line.
    """
    found = False
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    check_encoding(path, line)
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line.strip():
                    continue
                found = True
                yield number, _parsed(line, f"{path}:{number}")
    except OSError as problem:
        raise unreadable_file(path, problem, "a readable file") from None
    if not found:
        raise InputError(f"{path}: the file is empty, expected one JSON object a line")


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as problem:
        raise InputError(f"{where}: not JSON ({problem}); expected one object a line") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {json_kind(value)}, expected an object")
    return value


def read_parquet_records(path: Path, lists: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a table that `ParquetWriter` wrote, without `extra`.

    Args:
        lists: the columns of lists that are read. Most are values per token, which take much
            longer to read than all else.

    Raises:
        InputError: pyarrow is not installed, or the file is no such table.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path}: a .parquet file is read with pyarrow, which is not installed; "
            "pip install pyarrow"
        ) from None
    try:
        with path.open("rb") as file:
            table = parquet.ParquetFile(file)
            kept = [
                field.name
                for field in table.schema_arrow
                if field.name in lists
                or (not pyarrow.types.is_nested(field.type) and field.name != "extra")
            ]
            for batch in table.iter_batches(columns=kept):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem).strip().splitlines()[0]
        raise InputError(f"{path}: {reason}; expected a readable Parquet file") from None

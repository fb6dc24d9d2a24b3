"""Results that commands have written, read back: lines of JSONL, fast, and rows of a table."""

import codecs
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import orjson

from jaxscore.errors import InputError
from jaxscore.io.json_input import check_encoding, kind_of, unreadable


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
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
        raise unreadable(path, problem, "a readable file") from None
    if not found:
        raise InputError(f"{path}: the file is empty, expected one JSON object a line")


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as problem:
        raise InputError(f"{where}: not JSON ({problem}); expected one object a line") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {kind_of(value)}, expected an object")
    return value


def read_rows(path: Path, lists: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a table that `ParquetOutput` wrote, without `extra`.

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

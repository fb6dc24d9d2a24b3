"""Items of a JSON array or a Parquet table; every complaint names the file and the item."""

import contextlib
import datetime
import decimal
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.files.json_input import MOST_NESTED, kind_of, nests_beyond, parse_json, read_text
from jaxscore.printable import one_line

INSTALL = "pip install pyarrow"
NAME_FIELDS = ("question_id", "id", "session_id")


def read_items(path: Path, list_fields: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every item of a `.json` file, an array of objects, or of a `.parquet` file, a table.

    Args:
        path: decides by its ending.
        list_fields: columns in which a table may hold a list as JSON text; other text stays.

    NaN and infinities are taken, as Python writes and reads them; so are halves of surrogate
    pairs in strings, since one bad item must not cost the others. Of a table, dates and times
    become ISO 8601 strings and decimals numbers, as JSON has them.

    Raises:
        InputError: the file cannot be read, is of another kind, or holds no item; an item is
            no object; a column holds what JSON cannot.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        items = [_with_lists(row, list_fields) for row in _rows(path)]
    elif kind == ".json":
        items = _array(path)
    else:
        raise InputError(f"{path}: found a name ending in {kind!r}, expected .json or .parquet")
    if not items:
        raise InputError(f"{path}: there is no item in it, expected at least one")
    return items


def read_previous(path: Path) -> list[dict[str, Any]]:
    """What an earlier run left at the place of this run's output; empty where no file exists.

    Raises:
        InputError: the file that exists is no array of objects.
    """
    if not path.is_file() or not path.stat().st_size:
        return []
    try:
        return _array(path)
    except InputError as problem:
        raise InputError(
            f"{problem}; this run would continue the file: delete it, or give another --output"
        ) from None


def _array(path: Path) -> list[dict[str, Any]]:
    expected = "an array of objects: brackets around them and commas between"
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path}: the file is empty, expected a JSON array of objects")
    found = parse_json(text, path, expected)
    if not isinstance(found, list):
        raise InputError(f"{path}: found {kind_of(found)}, expected a JSON array of objects")
    for number, item in enumerate(found, start=1):
        if not isinstance(item, dict):
            raise InputError(f"{path}: item {number} is {kind_of(item)}, expected an object")
        if nests_beyond(item, MOST_NESTED):
            raise InputError(f"{path}: item {number} is nested more than {MOST_NESTED} deep")
    return found


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path}: a .parquet file is read with pyarrow, which is not installed; {INSTALL}, "
            "or save the items as .json"
        ) from None
    try:
        # Opened here: pyarrow takes a folder of files too, and names neither file nor reason.
        with path.open("rb") as file:
            rows = parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowException, ValueError) as problem:  # all three of damaged files
        reason = getattr(problem, "strerror", None) or str(problem).strip().splitlines()[0]
        raise InputError(f"{path}: {reason}; expected a readable Parquet file") from None
    for number, row in enumerate(rows, start=1):
        yield {
            name: _plain(value, f'{path}: item {number}, column "{name}"')
            for name, value in row.items()
        }


def _with_lists(row: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    for field in fields:
        if isinstance(row.get(field), str):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(row[field])
                if isinstance(value, list) and not nests_beyond(value, MOST_NESTED):
                    row[field] = value
    return row


def _plain(value: Any, where: str) -> Any:
    """A table's value as JSON has it."""
    if isinstance(value, (list, tuple)):  # a map comes as pairs
        return [_plain(one, where) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one, where) for name, one in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise InputError(f"{where}: found {kind_of(value)}, which JSON cannot hold; leave it out")


def name_of(index: int, item: dict[str, Any]) -> str:
    """An item's place, counted from 1, and its own name if it has one: "item 3 (id s2)".

    On one line, and what does not print is escaped: an id must not steer the terminal, turn the
    rest of the line around, or be half a surrogate pair, which no stream takes.
    """
    for field in NAME_FIELDS:
        if isinstance(item.get(field), (str, int)):
            own = " ".join(str(item[field]).split())[:60]
            return f"item {index + 1} ({field} {one_line(own)})"
    return f"item {index + 1}"

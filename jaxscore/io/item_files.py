"""Items that are read whole: a JSON array or a table; every complaint names file and item."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.csv_input import DELIMITERS
from jaxscore.io.json_array import read_array
from jaxscore.io.json_input import MOST_NESTED, nests_beyond
from jaxscore.io.parquet_input import is_dataset, read_parquet
from jaxscore.io.printable import one_line
from jaxscore.io.streams import is_stream
from jaxscore.io.table_input import rows

NAME_FIELDS = ("question_id", "id", "session_id")


def read_items(path: Path, list_fields: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every item of a `.json` file, an array of objects or one object, or of a table.

    Args:
        path: decides by its ending: `.json`, `.jsonl`, `.csv`, `.tsv`, `.parquet`; or a folder
            that `save_to_disk` of `datasets` wrote.
        list_fields: columns in which a table may hold a list as JSON text; other text stays.

    In an array NaN and infinities are taken, as Python writes and reads them; so are halves of
    surrogate pairs in strings, since one bad item must not cost the others. Of a table, dates and
    times become ISO 8601 strings and decimals numbers, as JSON has them.

    Raises:
        InputError: the file cannot be read, is of another kind, or holds no item; an item is
            no object; a column holds what JSON cannot.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        items = [_with_lists(row, list_fields) for row in read_parquet(path)]
    elif kind == ".json":
        items = read_array(path, lone_object=True)
    elif kind == ".jsonl" or kind in DELIMITERS or is_dataset(path):
        items = [_with_lists(row.item, list_fields) for row in rows(path)]
    else:
        raise InputError(
            f"{path}: found a name ending in {kind!r}, expected .json, .jsonl, .csv, .tsv, "
            ".parquet, or a folder of datasets"
        )
    if not items:
        raise InputError(f"{path}: there is no item in it, expected at least one")
    return items


def read_previous(path: Path) -> list[dict[str, Any]]:
    """What an earlier run left at the place of this run's output; empty where no file exists.

    Raises:
        InputError: the file that exists is no array of objects.
    """
    if is_stream(path) or not path.is_file() or not path.stat().st_size:
        return []
    try:
        return read_array(path)
    except InputError as problem:
        raise InputError(
            f"{problem}; this run would continue the file: delete it, or give another --output"
        ) from None


def _with_lists(row: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    for field in fields:
        if isinstance(row.get(field), str):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(row[field])
                if isinstance(value, list) and not nests_beyond(value, MOST_NESTED):
                    row[field] = value
    return row


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

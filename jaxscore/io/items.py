"""Rows of users' items in any form: JSONL, a JSON array, CSV, Parquet, a folder of `datasets`.

ending                           what is read
.csv, .tsv                       the first row has the names; every cell is text
.parquet                         a table, some rows at a time
.json                            an array of objects, or JSONL
a folder that save_to_disk wrote one split, memory-mapped
any other                        JSONL
"""

import contextlib
import difflib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.json_input import (
    MOST_NESTED,
    STRICT,
    check_unicode,
    nests_beyond,
    read_array,
    read_jsonl,
    read_lines,
)
from jaxscore.io.printable import one_line
from jaxscore.io.streams import is_stream
from jaxscore.io.tables import DELIMITERS, is_dataset, read_csv, read_dataset, read_parquet

NOTHING: Mapping[str, str] = {}


class Row(NamedTuple):
    """One item of a file.

    Attributes:
        number: the line of a text file on which it begins, else its place from 1.
        where: file and place, for messages.
    """

    number: int
    where: str
    item: dict[str, Any]


def read_rows(
    path: Path, columns: Mapping[str, str] = NOTHING, lists: Collection[str] = ()
) -> Iterator[Row]:
    """Every item of a file, in order, some of them in memory at a time; of a JSON array all.

    Args:
        path: its ending decides what is read, see above.
        columns: name of a field -> name that the file has for it. A field of the file that has
            the first name is then left out. The first item must have all of them.
        lists: fields that hold a list, which a table may have as JSON text; other text stays.

    Raises:
        InputError: the file cannot be read, is not what its name says, or holds no item; or its
            first item lacks a field of `columns`.
    """
    found = _rows(path, lists if not columns else [columns.get(name, name) for name in lists])
    return _renamed(found, columns) if columns else found


def _rows(path: Path, lists: Collection[str]) -> Iterator[Row]:
    kind = path.suffix.lower()
    if path.is_dir() and is_dataset(path):
        yield from _numbered(path, read_dataset(path), lists)
    elif kind in DELIMITERS:
        for number, item in read_csv(path):
            where = f"{path}:{number}"
            yield Row(number, where, _with_lists(item, lists, where))
    elif kind == ".parquet":
        yield from _numbered(path, read_parquet(path), lists)
    elif kind == ".json" and _is_array(path):
        yield from _numbered(path, read_array(path), ())
    else:
        for number, item in read_jsonl(path):
            yield Row(number, f"{path}:{number}", item)


def _is_array(path: Path) -> bool:
    texts = (text.lstrip() for _, text in read_lines(path))
    return next((text.startswith("[") for text in texts if text), False)


def _numbered(path: Path, items: Iterable[dict[str, Any]], lists: Collection[str]) -> Iterator[Row]:
    number = 0
    for number, item in enumerate(items, start=1):
        where = f"{path}: item {number}"
        check_unicode(item, where)
        yield Row(number, where, _with_lists(item, lists, where))
    if not number:
        raise InputError(f"{path}: there is no item in it, expected at least one")


def _with_lists(item: dict[str, Any], lists: Collection[str], where: str) -> dict[str, Any]:
    """The item with lists in place of JSON text that holds one, and null in place of no text."""
    for name in lists:
        text = item.get(name)
        if not isinstance(text, str):
            continue
        if not text.strip():
            item[name] = None
        with contextlib.suppress(ValueError, RecursionError):
            value = STRICT.decode(text)
            if isinstance(value, list) and not nests_beyond(value, MOST_NESTED):
                check_unicode(value, where)
                item[name] = value
    return item


def _renamed(found: Iterable[Row], columns: Mapping[str, str]) -> Iterator[Row]:
    left_out = {*columns, *columns.values()}
    for k, row in enumerate(found):
        if not k:
            _check_columns(row, columns)
        item = {name: value for name, value in row.item.items() if name not in left_out}
        item |= {ours: row.item[name] for ours, name in columns.items() if name in row.item}
        yield row._replace(item=item)


def _check_columns(row: Row, columns: Mapping[str, str]) -> None:
    for ours, name in columns.items():
        if name in row.item:
            continue
        near = difflib.get_close_matches(name, row.item, n=1)
        hint = f"is it {near[0]!r}? " if near else ""
        raise InputError(
            f"{row.where}: no column {name!r}, which should be {ours!r}; {hint}there are "
            f"{', '.join(map(repr, row.item)) or 'none'}"
        )


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
        items = [_lenient_lists(row, list_fields) for row in read_parquet(path)]
    elif kind == ".json":
        items = read_array(path, lone_object=True)
    elif kind == ".jsonl" or kind in DELIMITERS or is_dataset(path):
        items = [_lenient_lists(row.item, list_fields) for row in read_rows(path)]
    else:
        raise InputError(
            f"{path}: found a name ending in {kind!r}, expected .json, .jsonl, .csv, .tsv, "
            ".parquet, or a folder of datasets"
        )
    if not items:
        raise InputError(f"{path}: there is no item in it, expected at least one")
    return items


def read_previous_output(path: Path) -> list[dict[str, Any]]:
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


def _lenient_lists(row: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    for field in fields:
        if isinstance(row.get(field), str):
            with contextlib.suppress(ValueError, RecursionError):
                value = json.loads(row[field])
                if isinstance(value, list) and not nests_beyond(value, MOST_NESTED):
                    row[field] = value
    return row


def item_label(index: int, item: dict[str, Any]) -> str:
    """An item's place, counted from 1, and its own name if it has one: "item 3 (id s2)".

    On one line, and what does not print is escaped: an id must not steer the terminal, turn the
    rest of the line around, or be half a surrogate pair, which no stream takes.
    """
    for field in NAME_FIELDS:
        if isinstance(item.get(field), (str, int)):
            own = " ".join(str(item[field]).split())[:60]
            return f"item {index + 1} ({field} {one_line(own)})"
    return f"item {index + 1}"

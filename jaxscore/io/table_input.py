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
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.csv_input import DELIMITERS, read_csv
from jaxscore.io.json_array import read_array
from jaxscore.io.json_input import (
    MOST_NESTED,
    STRICT,
    check_text,
    nests_beyond,
    read_jsonl,
    read_lines,
)
from jaxscore.io.parquet_input import is_dataset, read_dataset, read_parquet

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


def rows(
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
        check_text(item, where)
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
                check_text(value, where)
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

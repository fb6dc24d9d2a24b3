"""Reads users' items: JSONL, a JSON array, CSV, Parquet, or a folder of `datasets`.

ending                           format
.csv, .tsv                       the first row has the names; every cell is text
.parquet                         a table, some rows at a time
.json                            an array of objects, or JSONL
a folder that save_to_disk wrote one split, memory-mapped
any other                        JSONL
"""

import codecs
import contextlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError, NoItems, near, one_line
from jaxscore.io.json_input import (
    MOST_NESTED,
    STRICT,
    check_unicode,
    nests_beyond,
    read_array,
    read_jsonl,
)
from jaxscore.io.streams import CHUNK, form_of, is_stream, open_binary
from jaxscore.io.tables import DELIMITERS, is_dataset, read_csv, read_dataset, read_parquet

NOTHING: Mapping[str, str] = {}
NAME_FIELDS = ("question_id", "id", "session_id")
LENIENT = json.JSONDecoder()  # with NaN and infinities
SEVERAL = (
    "found a folder, whose files give one output each; give --output FOLDER/ with a slash, then "
    "jaxscore merge FOLDER/"
)


class Row(NamedTuple):
    """One item of a file.

    Attributes:
        number: first line of the item in a text file, otherwise its position from 1.
        where: file and position, for messages.
        item: fields of the item.
    """

    number: int
    where: str
    item: dict[str, Any]


def read_rows(
    path: Path, columns: Mapping[str, str] = NOTHING, lists: Collection[str] = ()
) -> Iterator[Row]:
    """Read a file's items in order; only a JSON array is in memory as a whole.

    Args:
        path: its ending decides the format, see above.
        columns: name of a field -> its name in the file. A field of the file with the first name
            is left out. The first item must have all of these fields.
        lists: fields with lists, which a table may have as JSON text; other text stays.

    Raises:
        InputError: the file cannot be read, does not match its ending, or has no item; or its
            first item lacks a field of `columns`.
    """
    found = _rows(path, lists if not columns else [columns.get(name, name) for name in lists])
    return _renamed(found, columns) if columns else found


def _rows(path: Path, lists: Collection[str]) -> Iterator[Row]:
    check_not_folder(path)
    kind = form_of(path)
    if path.is_dir():
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


def check_not_folder(path: Path) -> None:
    """Check that an input is a file, or a folder that is a data set.

    Raises:
        InputError: it is another folder, whose files are inputs.
    """
    if path.is_dir() and not is_dataset(path):
        raise InputError(f"{path}: {SEVERAL}")


def _is_array(path: Path) -> bool:
    """Return True if a file begins as an array does, which may be one line of any length."""
    with contextlib.suppress(OSError, ValueError), open_binary(path) as file:
        return file.read(CHUNK).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    return False  # reading the items reports why


def _numbered(path: Path, items: Iterable[dict[str, Any]], lists: Collection[str]) -> Iterator[Row]:
    number = 0
    for number, item in enumerate(items, start=1):
        where = f"{path}: item {number}"
        check_unicode(item, where)
        yield Row(number, where, _with_lists(item, lists, where))
    if not number:
        raise NoItems(f"{path}: there is no item in it, expected at least one")


def _with_lists(item: dict[str, Any], lists: Collection[str], where: str) -> dict[str, Any]:
    """Parse JSON text of lists in place, and replace blank text in these fields by null."""
    for name in lists:
        text = item.get(name)
        if not isinstance(text, str):
            continue
        if not text.strip():
            item[name] = None
        elif (value := _parse_list(text, STRICT)) is not None:
            check_unicode(value, where)
            item[name] = value
    return item


def _parse_list(text: str, decoder: json.JSONDecoder) -> list[Any] | None:
    """The list that a JSON text contains, or None if it contains something else."""
    with contextlib.suppress(ValueError, RecursionError):
        value = decoder.decode(text)
        if isinstance(value, list) and not nests_beyond(value, MOST_NESTED):
            return value
    return None


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
        like = near(name, row.item)
        hint = "" if like is None else f"is it {like!r}? "
        raise InputError(
            f"{row.where}: no column {name!r}, which should be {ours!r}; {hint}there are "
            f"{', '.join(map(repr, row.item)) or 'none'}"
        )


def read_lenient_rows(
    path: Path, columns: Mapping[str, str] = NOTHING, lists: Collection[str] = ()
) -> Iterator[Row]:
    """Read a file's items as `read_items` does, with the arguments of `read_rows`."""
    names = [columns.get(name, name) for name in lists]
    items = enumerate(read_items(path, names), start=1)
    found = (Row(number, f"item {number}", item) for number, item in items)
    return _renamed(found, columns) if columns else found


def read_items(path: Path, list_fields: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read all items of a `.json` file (an array of objects or one object) or of a table.

    A JSON array may contain NaN and infinities, as Python writes them, and half surrogate pairs,
    since one bad item must not fail the others. Dates and times of a table become ISO 8601
    strings, and decimals numbers.

    Args:
        path: its ending decides the format: `.json`, `.jsonl`, `.csv`, `.tsv`, `.parquet`, or a
            folder of `datasets`.
        list_fields: columns with lists, which a table may have as JSON text; other text stays.

    Raises:
        InputError: the file cannot be read, has another format, or has no item; an item is no
            object; a column has values that JSON lacks.
    """
    check_not_folder(path)
    kind = form_of(path)
    if kind == ".parquet":
        items = [_with_lenient_lists(row, list_fields) for row in read_parquet(path)]
    elif kind == ".json":
        items = read_array(path, lone_object=True)
    elif kind == ".jsonl" or kind in DELIMITERS or is_dataset(path):
        items = [_with_lenient_lists(row.item, list_fields) for row in read_rows(path)]
    else:
        raise InputError(
            f"{path}: found a name ending in {kind!r}, expected .json, .jsonl, .csv, .tsv, "
            ".parquet, or a folder of datasets"
        )
    if not items:
        raise NoItems(f"{path}: there is no item in it, expected at least one")
    return items


def read_previous_output(path: Path) -> list[dict[str, Any]]:
    """Read the array that an earlier run wrote to this run's output; empty if no file exists.

    Raises:
        InputError: the file is no array of objects.
    """
    if is_stream(path) or not path.is_file() or not path.stat().st_size:
        return []
    try:
        return read_array(path)
    except InputError as problem:
        raise InputError(
            f"{problem}; this run would continue the file: delete it, or give another --output"
        ) from None


def _with_lenient_lists(item: dict[str, Any], lists: Sequence[str]) -> dict[str, Any]:
    """Parse JSON text of lists in place; NaN and infinities are accepted, other text stays."""
    for name in lists:
        text = item.get(name)
        if isinstance(text, str) and (value := _parse_list(text, LENIENT)) is not None:
            item[name] = value
    return item


def item_label(index: int, item: dict[str, Any]) -> str:
    """Label of an item for messages: its position from 1 and its name, as in "item 3 (id s2)".

    Unprintable characters are escaped: an id must not control the terminal.
    """
    return named(f"item {index + 1}", item)


def named(where: str, item: dict[str, Any]) -> str:
    """A place with the item's own name, if it has one; see `item_label`."""
    for field in NAME_FIELDS:
        if isinstance(item.get(field), (str, int)):
            name = " ".join(str(item[field]).split())[:60]
            return f"{where} ({field} {one_line(name)})"
    return where

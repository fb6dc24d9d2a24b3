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
from collections.abc import Collection, Iterable, Iterator, Mapping
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
from jaxscore.io.tables import DELIMITERS, is_dataset, read_csv, read_table

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
        InputError: the file cannot be read, does not match its ending, or lacks items; or its
            first item lacks a field of `columns`.
    """
    rows = _rows(path, [columns.get(name, name) for name in lists], is_lenient=False)
    return _renamed(rows, columns) if columns else rows


def read_lenient_rows(
    path: Path, columns: Mapping[str, str] = NOTHING, lists: Collection[str] = ()
) -> Iterator[Row]:
    """Read a file's items as `read_items` does, with the arguments of `read_rows`."""
    names = [columns.get(name, name) for name in lists]
    items = enumerate(_rows(path, names, is_lenient=True), start=1)
    rows = (Row(number, f"item {number}", row.item) for number, row in items)
    return _renamed(rows, columns) if columns else rows


def read_items(path: Path, lists: Collection[str] = ()) -> list[dict[str, Any]]:
    """Read all items of a `.json` file (an array of objects or one object) or of a table.

    A JSON array may contain NaN and infinities, as Python writes them, and half surrogate pairs,
    since one bad item must not fail the others. Dates and times of a table become ISO 8601
    strings, and decimals numbers.

    Args:
        path: its ending decides the format: `.json`, `.jsonl`, `.csv`, `.tsv`, `.parquet`, or a
            folder of `datasets`.
        lists: columns with lists, which a table may have as JSON text; other text stays.

    Raises:
        InputError: the file cannot be read, has another format, or lacks items; an item is not an
            object; a column has values that JSON lacks.
    """
    return [row.item for row in _rows(path, lists, is_lenient=True)]


def check_not_folder(path: Path) -> None:
    """Check that an input is a file, or a folder that is a data set.

    Raises:
        InputError: it is another folder, whose files are inputs.
    """
    if path.is_dir() and not is_dataset(path):
        raise InputError(f"{path}: {SEVERAL}")


def _rows(path: Path, lists: Collection[str], *, is_lenient: bool) -> Iterator[Row]:
    check_not_folder(path)
    form, has_lines = form_of(path), False
    items: Iterable[tuple[int, dict[str, Any]]]
    if form == ".parquet" or is_dataset(path):
        items = enumerate(read_table(path), start=1)
    elif form in DELIMITERS:
        items, has_lines = read_csv(path), True
    elif form == ".json" and (is_lenient or _is_array(path)):
        items, lists = enumerate(read_array(path, lone_object=is_lenient), start=1), ()
    elif is_lenient and form != ".jsonl":
        raise InputError(
            f"{path}: found a name ending in {form!r}, expected .json, .jsonl, .csv, .tsv, "
            ".parquet, or a folder of datasets"
        )
    else:
        items, has_lines = read_jsonl(path), True
        lists = lists if is_lenient else ()
    number = 0
    for number, item in items:
        where = f"{path}:{number}" if has_lines else f"{path}: item {number}"
        if not (has_lines or is_lenient):
            check_unicode(item, where)
        yield Row(number, where, _with_lists(item, lists, where, is_lenient=is_lenient))
    if not number:
        raise NoItems(f"{path}: found no items, expected at least one")


def _is_array(path: Path) -> bool:
    """Return True if a file begins as an array does, which may be one line of any length."""
    with contextlib.suppress(OSError, ValueError), open_binary(path) as file:
        return file.read(CHUNK).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")
    return False  # reading the items reports why


def _with_lists(
    item: dict[str, Any], lists: Collection[str], where: str, *, is_lenient: bool
) -> dict[str, Any]:
    """Parse JSON text of lists in place.

    Args:
        is_lenient: accept NaN and infinities, and leave empty text as it is; otherwise it is null.
    """
    for name in lists:
        text = item.get(name)
        if not isinstance(text, str):
            continue
        if not (is_lenient or text.strip()):
            item[name] = None
        elif (value := _parse_list(text, LENIENT if is_lenient else STRICT)) is not None:
            if not is_lenient:
                check_unicode(value, where)
            item[name] = value
    return item


def _parse_list(text: str, decoder: json.JSONDecoder) -> list[Any] | None:
    """Return the list that a JSON text contains, or None if it contains something else."""
    with contextlib.suppress(ValueError, RecursionError):
        value = decoder.decode(text)
        if isinstance(value, list) and not nests_beyond(value, MOST_NESTED):
            return value
    return None


def _renamed(rows: Iterable[Row], columns: Mapping[str, str]) -> Iterator[Row]:
    left_out = {*columns, *columns.values()}
    for k, row in enumerate(rows):
        if not k:
            _check_columns(row, columns)
        item = {name: value for name, value in row.item.items() if name not in left_out}
        item |= {field: row.item[name] for field, name in columns.items() if name in row.item}
        yield row._replace(item=item)


def _check_columns(row: Row, columns: Mapping[str, str]) -> None:
    for field, name in columns.items():
        if name in row.item:
            continue
        like = near(name, row.item)
        hint = "" if like is None else f"is it {like!r}? "
        raise InputError(
            f"{row.where}: no column {name!r}, which should be {field!r}; {hint}there are "
            f"{', '.join(map(repr, row.item)) or 'none'}"
        )


def read_previous_output(path: Path) -> list[dict[str, Any]]:
    """Read the array that an earlier run wrote to this run's output; empty if no file exists.

    Raises:
        InputError: the file is not an array of objects.
    """
    if is_stream(path) or not path.is_file() or not path.stat().st_size:
        return []
    try:
        return read_array(path)
    except InputError as problem:
        raise InputError(
            f"{problem}; this run would continue the file: delete it, or give another --output"
        ) from None


def item_label(index: int, item: dict[str, Any]) -> str:
    """Return an item's label for messages: its position from 1 and its name, "item 3 (id s2)".

    Unprintable characters are escaped: an id must not control the terminal.
    """
    return named(f"item {index + 1}", item)


def named(where: str, item: dict[str, Any]) -> str:
    """Return a location with the item's name, if it has one; see `item_label`."""
    for field in NAME_FIELDS:
        if isinstance(item.get(field), (str, int)):
            name = " ".join(str(item[field]).split())[:60]
            return f"{where} ({field} {one_line(name)})"
    return where

"""Reads rows of CSV, TSV and Parquet files and of folders of `datasets` as JSON values."""

import contextlib
import csv
import datetime
import decimal
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError, NoItems
from jaxscore.io.json_input import check_column_names, json_kind, read_lines, unreadable_file
from jaxscore.io.streams import form_of, refuse_compressed

DELIMITERS = {".csv": ",", ".tsv": "\t"}  # ending -> delimiter
TABLE_FORMS = (*DELIMITERS, ".parquet")
LONGEST_CELL = 1 << 24  # characters; a longer cell has an unclosed quote
INSTALL = "pip install pyarrow"
TOGETHER = 256  # rows in memory at a time
DATASET, SPLITS = "state.json", "dataset_dict.json"  # files that `save_to_disk` writes


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Read each row that is not empty as (its first line, column -> text).

    The first row has the column names. Quoting follows RFC 4180. If that row is one name with
    semicolons or tabs, as Excel writes it in many countries, these separate the cells.

    Raises:
        InputError: the file cannot be read, lacks rows, has two columns of one name or unmatched
            quotes; a row differs from the first one in its number of cells; a cell has more than
            `LONGEST_CELL` characters.
    """
    # The limit is global to the process, so it is only ever raised.
    csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))
    lines = (text for _, text in read_lines(path, ends=True))
    first_line = next(lines, "")
    delimiter = _delimiter(first_line, DELIMITERS[form_of(path)])
    rows = csv.reader(itertools.chain([first_line], lines), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    has_rows = False
    while True:
        first = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as problem:
            raise InputError(
                f"{path}:{first}: the row that begins here is not valid "
                f"{form_of(path)[1:].upper()} ({problem}); look for a quote that is not "
                "closed or not doubled"
            ) from None
        if row is None:
            break
        if not row:
            continue
        if names is None:
            names = row
            check_column_names(names, f"{path}:{first}")
            continue
        if len(row) != len(names):
            raise InputError(
                f"{path}:{first}: found {len(row)} cells, expected {len(names)}, one for each "
                f"column of the first row ({', '.join(map(repr, names))})"
            )
        has_rows = True
        yield first, dict(zip(names, row, strict=True))
    if not has_rows:
        raise NoItems(
            f"{path}: {'the file is empty' if names is None else 'found no rows'}, expected the "
            "names of the columns and at least one row"
        )


def _delimiter(line: str, usual: str) -> str:
    """Return the delimiter of a table by its first line."""
    names: list[str] = []
    with contextlib.suppress(csv.Error):  # reading the rows reports it
        names = next(csv.reader([line], delimiter=usual), names)
    if len(names) != 1:
        return usual
    return next((other for other in ("\t", ";", ",") if other in names[0]), usual)


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a Parquet file or a folder of `datasets`, `TOGETHER` at a time.

    NaN becomes null, as pandas writes missing values; dates and times become ISO 8601 strings, and
    decimals numbers.

    Raises:
        InputError: see `open_batches`; a column has values that JSON lacks.
    """
    number = 0
    with open_batches(path) as (_, batches):
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield plain_row(row, f"{path}: item {number}")


def read_parquet_records(path: Path, lists: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Read the rows of a table that `parquet_writer` wrote, without `extra`.

    Args:
        lists: names of the list columns to read. Most are values per token, which take much
            longer to read than the rest.

    Raises:
        InputError: pyarrow is not installed, or the file is not such a table.
    """
    with _open_parquet(path) as table:
        from pyarrow.types import is_nested

        columns = [
            field.name
            for field in table.schema_arrow
            if field.name in lists or not (is_nested(field.type) or field.name == "extra")
        ]
        for batch in table.iter_batches(columns=columns):
            yield from batch.to_pylist()


@contextlib.contextmanager
def _open_parquet(path: Path, remedy: str = "") -> Iterator[Any]:
    """Open a Parquet file; failures in the block are `InputError`s too."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path}: a .parquet file is read with pyarrow, which is not installed; {INSTALL}"
            f"{remedy}"
        ) from None
    refuse_compressed(path)
    try:
        # Opened here: pyarrow takes a folder of files too, and names neither file nor reason.
        with path.open("rb") as file, parquet.ParquetFile(file) as table:
            yield table
    except (OSError, pyarrow.ArrowException, ValueError) as problem:  # a damaged file raises any
        raise _unreadable(path, problem, "a readable Parquet file") from None


def is_dataset(path: Path) -> bool:
    """Return True if `save_to_disk` of `datasets` wrote the folder."""
    return (path / DATASET).is_file() or (path / SPLITS).is_file()


@contextlib.contextmanager
def open_batches(path: Path) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Open a Parquet file or a folder of `datasets` as its schema and its record batches.

    Raises:
        InputError: its package is not installed; it cannot be read, has two columns of one name,
            or is a folder of several splits.
    """
    if not is_dataset(path):
        with _open_parquet(path, ", or save the items as .json") as file:
            check_column_names(file.schema_arrow.names, str(path))
            yield file.schema_arrow, file.iter_batches(batch_size=TOGETHER)
        return
    if (path / SPLITS).is_file():
        splits = sorted(split.name for split in path.iterdir() if (split / DATASET).is_file())
        raise InputError(
            f"{path}: found a DatasetDict, whose splits are {', '.join(splits) or 'none'}; "
            "give the folder of one split, "
            f"such as {path / (splits[0] if splits else 'test')}"
        )
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"{path}: a folder of save_to_disk is read with datasets, which is not installed; "
            "pip install datasets, or save the rows as .jsonl or .parquet"
        ) from None
    try:
        dataset = datasets.load_from_disk(str(path)).with_format("arrow")
        check_column_names(dataset.column_names, str(path))
        tables = dataset.iter(batch_size=TOGETHER)  # of the memory-mapped folder
        batches = (batch for table in tables for batch in table.to_batches())
        yield dataset.features.arrow_schema, batches
    except InputError:
        raise
    except Exception as problem:  # a damaged folder may raise anything
        raise _unreadable(path, problem, "a folder that save_to_disk of datasets wrote") from None


def _unreadable(path: Path, problem: Exception, expected: str) -> InputError:
    if isinstance(problem, OSError) and problem.strerror:
        return unreadable_file(path, problem, expected)
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return InputError(f"{path}: {lines[0]}; expected {expected}")


def plain_row(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert a row of a table to JSON values; `where` names it in messages."""
    return {name: _plain(value, f'{where}, column "{name}"') for name, value in row.items()}


def _plain(value: Any, where: str) -> Any:
    """Convert a table's value to a JSON value."""
    if isinstance(value, (list, tuple)):  # a map comes as pairs
        return [_plain(item, where) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item, where) for name, item in value.items()}
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        value = float(value)
    if isinstance(value, float) and value != value:
        return None
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise InputError(f"{where}: found {json_kind(value)}, which JSON cannot hold; leave it out")

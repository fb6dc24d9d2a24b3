"""Rows of a CSV or TSV file, all of them text."""

import csv
from collections.abc import Iterator
from pathlib import Path

from jaxscore.errors import InputError
from jaxscore.io.json_input import check_names, read_lines

DELIMITERS = {".csv": ",", ".tsv": "\t"}  # ending of the name -> what separates two cells
MOST = 1 << 24  # characters of a cell; where more come, a quote is not closed


def read_csv(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line on which the row begins, column -> cell) of every row that is not blank.

    The first row has the names of the columns. A cell that holds the delimiter, a quote or a line
    end stands in double quotes, and a quote in it is doubled (RFC 4180).

    Raises:
        InputError: the file cannot be read, has no row, has two columns of one name, or quotes
            that match nothing; a row has more or fewer cells than the first one; a cell has more
            than `MOST` characters.
    """
    # The limit belongs to the whole process. It is only ever raised.
    csv.field_size_limit(max(MOST, csv.field_size_limit()))
    lines = (text for _, text in read_lines(path, ends=True))
    rows = csv.reader(lines, delimiter=DELIMITERS[path.suffix.lower()], strict=True)
    names: list[str] | None = None
    found = False
    while True:
        first = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as problem:
            raise InputError(
                f"{path}:{first}: the row that begins here is no {path.suffix.lower()[1:]} "
                f"({problem}); look for a quote that is not closed or not doubled"
            ) from None
        if row is None:
            break
        if not row:
            continue
        if names is None:
            names = row
            check_names(names, f"{path}:{first}")
            continue
        if len(row) != len(names):
            raise InputError(
                f"{path}:{first}: found {len(row)} cells, expected {len(names)}, one for each "
                f"column of the first row ({', '.join(map(repr, names))})"
            )
        found = True
        yield first, dict(zip(names, row, strict=True))
    if not found:
        raise InputError(
            f"{path}: {'the file is empty' if names is None else 'there is no row'}, expected the "
            "names of the columns and at least one row"
        )

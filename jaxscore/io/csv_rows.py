"""Rows of a csv file, readable again whatever their cells hold."""

import csv
import io
from collections.abc import Iterable


def csv_line(row: Iterable[object], delimiter: str = ",") -> str:
    """One row of the table, its line end included.

    Before Python 3.13 a cell is quoted only for those line ends that are the writer's own, and a
    reader takes a carriage return without quotes for the end of its row.
    """
    line = io.StringIO(newline="")
    csv.writer(line, delimiter=delimiter, lineterminator="\r\n").writerow(row)
    return line.getvalue().removesuffix("\r\n") + "\n"

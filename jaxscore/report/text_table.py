"""Rows of words as columns of text."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, numbers to the right of a name."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )

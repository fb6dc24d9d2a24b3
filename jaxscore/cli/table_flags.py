"""Flags of files of items: --input, --output and --column."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxscore.errors import InputError, near
from jaxscore.io import records
from jaxscore.io.config_file import TAKES_ONE
from jaxscore.io.streams import form_of

TABLES = (".jsonl", ".csv", ".tsv", ".parquet")  # forms of the input that no array has
FORMS = "JSONL, a JSON array, .csv, .tsv, .parquet, or a folder of datasets' save_to_disk"


def add(parser: argparse._ActionsContainer, fields: Sequence[str]) -> None:
    """Declare --column for the fields that the command reads."""
    parser.add_argument(
        "--column",
        nargs="+",
        action="extend",
        default=[],
        metavar="FIELD=NAME",
        help=f"names of the input for the fields {', '.join(fields)}",
    )


def add_input(
    parser: argparse._ActionsContainer, what: str, fields: Sequence[str], *aliases: str
) -> None:
    """Declare --input, a file of items in any of `FORMS`, and `add` --column.

    Args:
        what: what an item is, as a plural, and further forms.
        aliases: further spellings of --input.
    """
    help = f"{what} {FORMS}"
    help += "; also several files, patterns, folders, addresses such as s3://bucket/file, or -"
    action = parser.add_argument(
        "--input",
        *aliases,
        required=True,
        type=Path,
        nargs="+",
        action="extend",
        metavar="FILE",
        help=help,
    )
    setattr(action, TAKES_ONE, True)
    add(parser, fields)


def add_array_output(parser: argparse._ActionsContainer, name: str) -> None:
    """Declare --output, one JSON array.

    Args:
        name: how its default name ends.
    """
    parser.add_argument(
        "--output",
        "--output-file",
        type=Path,
        metavar="FILE",
        help=f"JSON (default: beside the input, its name with {name}); - is stdout",
    )


def array_path(args: argparse.Namespace, ending: str) -> Path:
    """--output, or the input's name with an ending, in the input's folder.

    Raises:
        InputError: the name is that of a table.
    """
    path: Path = args.output or args.input.with_name(f"{args.input.stem}{ending}.json")
    if form_of(path) in TABLES:
        raise InputError(f"--output {path}: the output is JSON; give a name ending in .json")
    return path


def add_output(parser: argparse._ActionsContainer, what: str, *, is_array: bool = False) -> None:
    """Declare --output, whose ending decides its form unless it is one JSON array.

    `what` is the records, as a plural.
    """
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help=f"{f'JSON of {what}' if is_array else f'{what}: {records.FORMS}'}; - is stdout",
    )


def columns(given: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """Parse FIELD=NAME words into {field: its name in the file}.

    Raises:
        InputError: a word is no pair, or its field is unknown or given twice.
    """
    out: dict[str, str] = {}
    for word in given:
        field, equals, name = word.partition("=")
        if not (field and equals and name):
            raise InputError(
                f"--column {word}: expected FIELD=NAME, such as {fields[0]}=NAME, where NAME is "
                "what the file calls it"
            )
        if field not in fields:
            like = near(field, fields)
            hint = f"is it {like}?" if like else "the other way round?" if name in fields else ""
            raise InputError(
                f"--column {word}: no field {field!r} is read; {hint or 'expected one of them'}; "
                f"the fields are {', '.join(fields)}"
            )
        if field in out:
            raise InputError(f"--column {word}: {field} is given twice")
        out[field] = name
    return out

"""Flags of files of items: where they are, in which form, and what the file calls their fields."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli.help_pages import near
from jaxscore.errors import InputError
from jaxscore.io import records

TABLES = (".jsonl", ".csv", ".tsv", ".parquet")  # forms of the input that no array has
FORMS = "JSONL, a JSON array, .csv, .tsv, .parquet, or a folder of datasets' save_to_disk"


class _Pairs(argparse.Action):
    """Adds the words to those of the flag's earlier places."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        before = getattr(namespace, self.dest, None)
        kept = before if isinstance(before, list) else []
        setattr(namespace, self.dest, [*kept, *values])


def add(parser: argparse._ActionsContainer, fields: Sequence[str]) -> None:
    """Declare the flag.

    Args:
        fields: those that the command reads.
    """
    parser.add_argument(
        "--column",
        action=_Pairs,
        nargs="+",
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
    parser.add_argument("--input", *aliases, required=True, type=Path, metavar="FILE", help=help)
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
    if path.suffix.lower() in TABLES:
        raise InputError(f"--output {path}: the output is JSON; give a name ending in .json")
    return path


def add_output(parser: argparse._ActionsContainer, what: str) -> None:
    """Declare --output, whose ending decides its form.

    Args:
        what: what a record is, as a plural.
    """
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help=f"{what}: {records.FORMS}; - is stdout",
    )


def columns(given: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """Field -> its name in the file.

    Raises:
        InputError: a word that is no pair, a field that the command does not read, or one that is
            given twice.
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

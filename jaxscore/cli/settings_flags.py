"""Settings of a system from the values of its flags, and words of --column."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError, near
from jaxscore.io.input_files import InputFiles
from jaxscore.shell.flags import flag, flags_of


def values(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The settings that the flags give, as arguments of `jaxscore.evaluate`.

    Raises:
        InputError: a file cannot be read, or two flags give one value.
    """
    out: dict[str, Any] = {}
    for setting in flags_of(settings):
        for option in (setting, *setting.also):
            value = getattr(args, option.dest, None) if option.names else None
            if value is None or value is False or value == []:
                continue
            if setting.field in out and not setting.type.is_list:
                raise InputError(
                    f"{setting.names[0]} and {option.names[0]}: both give the "
                    f"{setting.field.replace('_', ' ')}; give one of them"
                )
            value = value if option.load is None else option.load(value)
            if setting.type.is_list:
                value = [*out.get(setting.field, ()), *value]
            out[setting.field] = value
    return out


def input_files(args: argparse.Namespace, settings: type) -> dict[str, Path]:
    """The files that `values` reads, by the names of their flags."""
    options = [option for setting in flags_of(settings) for option in setting.also]
    paths = {each.dest: getattr(args, each.dest) for each in options if each.type.base is Path}
    return {name: path for name, path in paths.items() if path is not None}


def about_files(args: argparse.Namespace, settings: type, files_read: InputFiles) -> dict[str, Any]:
    """Return name and digest of the files whose settings have no other flag."""
    out: dict[str, Any] = {}
    names = {
        each.dest for setting in flags_of(settings) if not setting.names for each in setting.also
    }
    for name, path in input_files(args, settings).items():
        if name in names:
            out |= {name: str(path), f"{name}_sha256": files_read.digest(path)}
    return out


FORMS = "JSONL, a JSON array, .csv, .tsv, .parquet, or a folder of datasets' save_to_disk"


def column_flag(fields: Sequence[str]) -> Any:
    """Declare --column for the fields that the command reads."""
    names = ", ".join(fields)
    return flag([], metavar="FIELD=NAME", help=f"names of the input for the fields {names}")


def parse_columns(words: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
    """Parse FIELD=NAME words into {field: its name in the file}.

    Raises:
        InputError: a word is not a pair, or its field is unknown or given twice.
    """
    out: dict[str, str] = {}
    for word in words:
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

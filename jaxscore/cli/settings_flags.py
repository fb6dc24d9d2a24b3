"""Settings of a system from the values of its flags, and words of --column."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli.flags import flag_name
from jaxscore.errors import InputError, near
from jaxscore.io.input_files import InputFiles
from jaxscore.io.streams import form_of
from jaxscore.shell.settings import FileFlag, SettingField, fields_of


def values(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The settings that the flags give, as arguments of `jaxscore.evaluate`.

    Raises:
        InputError: a file cannot be read, or two flags give one value.
    """
    out: dict[str, Any] = {}
    for field in fields_of(settings):
        if field.flag.choice_flags:
            for value, (name, _) in field.flag.choice_flags.items():
                if getattr(args, _dest(name)):
                    out[field.name] = value
        elif field.flag.is_flag and hasattr(args, _dest(flag_name(field))):
            value = getattr(args, _dest(flag_name(field)))
            out[field.name] = value != field.default if field.kind is bool else value
        file = field.flag.file
        if file is not None and (path := getattr(args, _dest(file.name))) is not None:
            out[field.name] = _with_file(field, out.get(field.name), file, path)
        if field.is_list and not out.get(field.name):
            out.pop(field.name, None)  # no flag of it is given: the default holds
    return out


def _with_file(field: SettingField, value: Any, file: FileFlag, path: Path) -> Any:
    """The value of a setting from its file."""
    if field.is_list:
        return [*(value or ()), *file.read(path)]
    if value is not None:
        raise InputError(
            f"--{flag_name(field)} and --{file.name}: both give the "
            f"{field.name.replace('_', ' ')}; give one of them"
        )
    return file.read(path)


def input_files(args: argparse.Namespace, settings: type) -> dict[str, Path]:
    """The files that `values` reads, by the names of their flags."""
    files = [field.flag.file for field in fields_of(settings) if field.flag.file is not None]
    paths = {_dest(file.name): getattr(args, _dest(file.name)) for file in files}
    return {name: path for name, path in paths.items() if path is not None}


def about_files(args: argparse.Namespace, settings: type, files_read: InputFiles) -> dict[str, Any]:
    """Return name and digest of the files whose settings have no other flag."""
    out: dict[str, Any] = {}
    for field in fields_of(settings):
        if not field.flag.is_flag and (file := field.flag.file) is not None:
            name = _dest(file.name)
            if (path := getattr(args, name)) is not None:
                out |= {name: str(path), f"{name}_sha256": files_read.digest(path)}
    return out


def _dest(name: str) -> str:
    return name.replace("-", "_")


TABLES = (".jsonl", ".csv", ".tsv", ".parquet")  # forms of the input that no array has
FORMS = "JSONL, a JSON array, .csv, .tsv, .parquet, or a folder of datasets' save_to_disk"


def array_path(args: argparse.Namespace, ending: str) -> Path:
    """--output, or the input's name with an ending, in the input's folder.

    Raises:
        InputError: the name ends like a table's.
    """
    path: Path = args.output or args.input.with_name(f"{args.input.stem}{ending}.json")
    if form_of(path) in TABLES:
        raise InputError(f"--output {path}: the output is JSON; give a name ending in .json")
    return path


def parse_columns(given: Sequence[str], fields: Sequence[str]) -> dict[str, str]:
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

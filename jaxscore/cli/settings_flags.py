"""Flags of a system, from the declaration of its settings; --input, --output and --column."""

import argparse
import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli.help_pages import advanced
from jaxscore.errors import InputError, near
from jaxscore.io import records
from jaxscore.io.config_file import TAKES_ONE
from jaxscore.io.input_files import InputFiles
from jaxscore.io.streams import form_of
from jaxscore.shell.settings import MODEL_GROUP, FileFlag, SettingField, fields_of


def add(
    parser: argparse._ActionsContainer,
    settings: type,
    group: str | None = None,
    omitted: Collection[str] = (),
) -> None:
    """Declare the flags of the settings of one section of the help; None is the main one."""
    for field in fields_of(settings):
        if field.flag.group != group or field.name in omitted:
            continue
        if field.flag.choice_flags:
            choices = parser.add_mutually_exclusive_group()
            for name, help in field.flag.choice_flags.values():
                choices.add_argument(f"--{name}", action="store_true", help=_escaped(help))
        elif field.flag.is_flag:
            _add_flag(
                parser,
                (f"{'-' if len(_name(field)) == 1 else '--'}{_name(field)}", *field.flag.aliases),
                field.flag.advanced,
                {"dest": _dest(_name(field)), "help": _escaped(field.flag.help), **_kind(field)},
            )
        if (file := field.flag.file) is not None:
            options = {"type": Path, "metavar": "FILE", "help": _escaped(file.help)}
            _add_flag(parser, (f"--{file.name}",), file.advanced, options)


def _add_flag(
    parser: argparse._ActionsContainer,
    names: Sequence[str],
    is_advanced: bool,
    options: dict[str, Any],
) -> None:
    if is_advanced:
        advanced(parser, *names, **options)
    else:
        parser.add_argument(*names, **options)


def add_groups(parser: argparse.ArgumentParser, settings: type) -> None:
    """Declare the flags of the help's sections that the settings name, but for the model's."""
    groups = dict.fromkeys(field.flag.group for field in fields_of(settings))
    for title in groups:
        if title not in (None, MODEL_GROUP):
            add(parser.add_argument_group(title), settings, title)


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
        elif field.flag.is_flag and hasattr(args, _dest(_name(field))):
            value = getattr(args, _dest(_name(field)))
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
            f"--{_name(field)} and --{file.name}: both give the {field.name.replace('_', ' ')}; "
            "give one of them"
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


def whole_number(text: str, least: int | None = None) -> int:
    """argparse type: a whole number, of at least `least`."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if least is not None and value < least:
        bound = "not above 0" if least == 1 else f"below {least}"
        raise argparse.ArgumentTypeError(f"{value} is {bound}")
    return value


def _split(separator: str, text: str) -> tuple[str, ...]:
    """argparse type: texts in one word."""
    return tuple(name.strip() for name in text.split(separator) if name.strip())


def _name(field: SettingField) -> str:
    """The flag: `--no-shuffle` for a setting that is on by default."""
    name = field.flag.name or field.name.replace("_", "-")
    return f"no-{name}" if field.default is True else name


def _dest(name: str) -> str:
    return name.replace("-", "_")


def _escaped(help: str) -> str:
    return help.replace("%", "%%")


def _kind(field: SettingField) -> dict[str, Any]:
    """What argparse knows of a value's type."""
    if field.kind is bool:
        return {"action": "store_true"}
    options: dict[str, Any] = {"default": field.default, "metavar": field.flag.metavar}
    if field.is_required:
        options = {"required": True, "metavar": field.flag.metavar}
    if field.is_list:
        options |= {"action": "extend", "default": []}  # it would extend the setting's default
        if field.flag.separator is not None:
            return options | {"type": functools.partial(_split, field.flag.separator)}
        options["nargs"] = "+"
    if field.choices:
        del options["metavar"]
        options["choices"] = field.choices
    elif field.kind is int:
        options["type"] = functools.partial(whole_number, least=field.flag.least)
    elif field.kind is float:
        options["type"] = float
    return options


TABLES = (".jsonl", ".csv", ".tsv", ".parquet")  # forms of the input that no array has
FORMS = "JSONL, a JSON array, .csv, .tsv, .parquet, or a folder of datasets' save_to_disk"


def add_columns(parser: argparse._ActionsContainer, fields: Sequence[str]) -> None:
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
    """Declare --input, a file of items in any of `FORMS`, and --column.

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
    add_columns(parser, fields)


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
        InputError: the name ends like a table's.
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

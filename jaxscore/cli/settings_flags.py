"""Flags of a system, from the declaration of its settings."""

import argparse
import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli.help_pages import advanced
from jaxscore.errors import InputError
from jaxscore.io.run_files import file_digest
from jaxscore.systems.settings import MODEL_GROUP, FileFlag, SettingField, fields_of


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
    """The value of a setting whose file is given."""
    if field.is_list:
        return [*(value or ()), *file.read(path)]
    if value is not None:
        raise InputError(
            f"--{_name(field)} and --{file.name}: both give the {field.name.replace('_', ' ')}; "
            "give one of them"
        )
    return file.read(path)


def input_files(args: argparse.Namespace, settings: type) -> list[Path]:
    """The files that `values` reads."""
    files = [field.flag.file for field in fields_of(settings) if field.flag.file is not None]
    paths = (getattr(args, _dest(file.name)) for file in files)
    return [path for path in paths if path is not None]


def file_digests(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Digests of the files that `values` reads, by the names of their flags, for the manifest."""
    files = [field.flag.file for field in fields_of(settings) if field.flag.file is not None]
    paths = {_dest(file.name): getattr(args, _dest(file.name)) for file in files}
    return {f"{name}_sha256": file_digest(path) for name, path in paths.items() if path is not None}


def about_files(args: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Name and digest of the files whose settings have no other flag, for report and manifest."""
    out: dict[str, Any] = {}
    for field in fields_of(settings):
        if not field.flag.is_flag and (file := field.flag.file) is not None:
            name = _dest(file.name)
            if (path := getattr(args, name)) is not None:
                out |= {name: str(path), f"{name}_sha256": file_digest(path)}
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

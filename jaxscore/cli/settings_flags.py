"""Flags of a system, from the declaration of its settings."""

import argparse
import functools
from typing import Any

from jaxscore.cli.help_pages import advanced
from jaxscore.systems.settings import MODEL_GROUP, SettingField, fields_of


def add(parser: argparse._ActionsContainer, settings: type, group: str | None = None) -> None:
    """Declare the flags of the settings of one section of the help; None is the main one."""
    for field in fields_of(settings):
        if field.flag.is_flag and field.flag.group == group:
            names = (f"--{field.name.replace('_', '-')}", *field.flag.aliases)
            options: dict[str, Any] = {"dest": field.name, "help": _escaped(field), **_kind(field)}
            if field.flag.advanced:
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
    """The settings that the flags give, as arguments of `jaxscore.evaluate`."""
    return {
        field.name: getattr(args, field.name)
        for field in fields_of(settings)
        if field.flag.is_flag and hasattr(args, field.name)
    }


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


def _escaped(field: SettingField) -> str:
    return field.flag.help.replace("%", "%%")


def _kind(field: SettingField) -> dict[str, Any]:
    """What argparse knows of a value's type."""
    if field.kind is bool:
        return {"action": "store_true"}
    options: dict[str, Any] = {"default": field.default, "metavar": field.flag.metavar}
    if field.is_list and field.flag.separator is not None:
        return options | {"type": functools.partial(_split, field.flag.separator)}
    if field.is_list:
        options |= {"nargs": "+", "default": list(field.default)}
    if field.choices:
        del options["metavar"]
        options["choices"] = field.choices
    elif field.kind is int:
        options["type"] = functools.partial(whole_number, least=field.flag.least)
    elif field.kind is float:
        options["type"] = float
    return options

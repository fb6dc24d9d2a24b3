"""`jaxscore schema`: JSON Schema (draft 2020-12) of a system's items, settings and records.

It follows from the system's declaration. pydantic's `TypeAdapter` refuses `typing.TypedDict` on
Python 3.11, and would add a dependency that only the server has; `flag` and `Metric` already
declare descriptions, choices and lower bounds.
"""

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from jaxscore.cli.app import Command
from jaxscore.io.json_output import json_text
from jaxscore.shell.fields import Decision, Metric, is_per_token, metadata_of
from jaxscore.shell.flags import Flag, flag, flags_of, options_of
from jaxscore.shell.items import UNLESS
from jaxscore.shell.system import System, id_field
from jaxscore.systems import SYSTEMS, declaration
from jaxscore.version import RECORDS

DESCRIPTION = """\
Print the JSON Schema (draft 2020-12) of a system's input, settings and output.

  python -m jaxscore schema choose
  python -m jaxscore schema choose item > item.schema.json

output, on stdout, one schema whose $defs are
  item      an object of the input; other fields are allowed, and repeated in
            the output
  settings  arguments of jaxscore.evaluate, and with hyphens in place of
            underscores most flags and keys of --config: type, choices, lowest
            value, default, help
  record    an object of the output
  With one of these as second word the schema is that of this part.

exit code: 0 printed, 2 no such system.
"""


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `schema`."""

    system: Literal[tuple(SYSTEMS)] = flag(  # type: ignore[valid-type]
        is_positional=True, metavar="SYSTEM", help=", ".join(SYSTEMS)
    )
    part: Literal["item", "settings", "record"] | None = flag(
        None, is_positional=True, metavar="PART", help="one of item, settings, record"
    )


def run(args: argparse.Namespace) -> int:
    """Print the schema."""
    print(json_text(schema_of(declaration(args.system), args.part)), end="")
    return 0


DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER = {
    "description": "null if it is not known, a text if it is infinite",
    "anyOf": [{"type": ["number", "null"]}, {"enum": ["Infinity", "-Infinity"]}],
}
SIMPLE = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    Path: "string",
    np.int32: "integer",
    np.float32: "number",
}
ATTRIBUTE = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n {4,}.*)*)", re.MULTILINE)


def schema_of(system: System, component: str | None = None) -> dict[str, Any]:
    """Return the schema of one part of a declaration, with all parts as `$defs`.

    Args:
        component: `item`, `settings` or `record`; None is a schema with the definitions alone.
    """
    return {
        "$schema": DIALECT,
        "title": system.name,
        **({} if component is None else {"$ref": f"#/$defs/{component}"}),
        "$defs": {
            "item": _item(system),
            "settings": _settings(system.settings),
            "record": _record(system),
            "number": NUMBER,
        },
    }


def _item(system: System) -> dict[str, Any]:
    """An input object. Other fields are allowed: the record repeats them."""
    is_typed_dict = typing.is_typeddict(system.item)
    schema = (_typed_dict if is_typed_dict else _dataclass)(system.item)
    if id_field(system) == "id":
        schema["properties"] = {"id": {"type": ["string", "integer"]}, **schema["properties"]}
    return schema


def _settings(settings: type) -> dict[str, Any]:
    required = [each.field for each in flags_of(settings) if each.is_required]
    return {
        **_described(settings),
        "type": "object",
        "properties": {each.field: _setting(each) for each in flags_of(settings)},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _setting(setting: Flag) -> dict[str, Any]:
    value_type, default = setting.type, setting.default
    value: dict[str, Any] = _type(value_type.base)
    if value_type.choices:
        value = {"enum": [*value_type.choices]}
    if value_type.least is not None:
        value["minimum"] = value_type.least
    if value_type.is_list:
        value = {"type": "array", "items": value}
    if value_type.is_optional:
        value = _any_of([value, {"type": "null"}])
    if setting.is_required:
        return {"description": setting.help, **value}
    off = "false: " if default is True else ""  # the flag turns it off, and the help says so
    help_text = {"description": f"{off}{setting.help}"} if setting.help else {}
    return {**help_text, **value, "default": [*default] if isinstance(default, tuple) else default}


def _record(system: System) -> dict[str, Any]:
    """Return the schema of an output line: declared fields, the input's fields, and `error`."""
    schema = _typed_dict(system.record)
    if named := system.settings.named_fields:
        schema["patternProperties"] = {
            f"^{prefix}": _output_field(hint) for prefix, hint in named.items()
        }
    schema["properties"]["error"] = {"type": "string", "description": "why the item failed"}
    return {"title": f"record of {system.name}, version {RECORDS}", **schema}


def _typed_dict(record: type) -> dict[str, Any]:
    compared: list[tuple[str, Decision | Metric]]
    compared = [*metadata_of(record, Decision), *metadata_of(record, Metric)]
    titles = {  # of fields that are the number or the decision themselves
        name: entry.title for name, entry in compared if entry.value is None
    }
    titles = {**_attributes(record), **titles}
    properties = {}
    for name, hint in typing.get_type_hints(record, include_extras=True).items():
        description = {"description": titles[name]} if name in titles else {}
        properties[name] = {**description, **_output_field(hint)}
    required = sorted(record.__required_keys__)  # type: ignore[attr-defined]
    return {
        **_described(record),
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
    }


def _output_field(hint: Any) -> dict[str, Any]:
    value = _type(hint, is_output=True)
    if is_per_token(hint):
        value["items"] = _any_of([value["items"], {"type": "null"}])
    return value


def _dataclass(declared: type) -> dict[str, Any]:
    hints = typing.get_type_hints(declared)
    described = _attributes(declared)
    properties, required, alternatives = {}, [], {}
    for field in dataclasses.fields(declared):
        value = _type(hints[field.name])
        if field.name in described:
            value = {"description": described[field.name], **value}
        if field.default is dataclasses.MISSING:
            required.append(field.name)
        elif (other := field.metadata.get(UNLESS)) is not None:
            alternatives = {"anyOf": [{"required": [field.name]}, {"required": [other]}]}
        else:
            value["default"] = field.default
        properties[field.name] = value
    schema = {"type": "object", "properties": properties, "required": required}
    return {**_described(declared), **schema, **alternatives}


def _type(hint: Any, *, is_output: bool = False) -> dict[str, Any]:
    """Return the schema of a type.

    Args:
        is_output: a number may be null, or infinite as a text.

    Raises:
        TypeError: no JSON value has this type.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], is_output=is_output)
    if hint is Any:
        return {}
    if is_output and hint in (float, np.float32):
        return {"$ref": "#/$defs/number"}
    if hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    if origin is Literal:
        return {"enum": [*arguments]}
    if origin in (types.UnionType, typing.Union):
        return _any_of([_type(argument, is_output=is_output) for argument in arguments])
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": _type(arguments[0], is_output=is_output)}
    if origin in (dict, Mapping):
        return {
            "type": "object",
            "additionalProperties": _type(arguments[1], is_output=is_output),
        }
    if hint in (list, dict):
        return {"type": "array" if hint is list else "object"}
    if typing.is_typeddict(hint):
        return _typed_dict(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(typing.cast(type, hint))
    raise TypeError(f"{hint} cannot be described by JSON Schema")


def _any_of(schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a schema for any of several; simple types become one list."""
    if all(set(schema) == {"type"} for schema in schemas):
        return {"type": [schema["type"] for schema in schemas]}
    return {"anyOf": [*schemas]}


def _described(declared: type) -> dict[str, str]:
    """Return the first line of a class's docstring as its description."""
    lines = _docstring(declared).splitlines()
    return {"description": lines[0]} if lines else {}


def _docstring(declared: type) -> str:
    """Return a class's docstring, not that of `dict` or the signature that `dataclass` writes."""
    text = vars(declared).get("__doc__") or ""
    return "" if text.startswith(f"{declared.__name__}(") else inspect.cleandoc(text)


def _attributes(declared: type) -> dict[str, str]:
    """Return the descriptions of attributes in a class's docstring."""
    _, _, section = _docstring(declared).partition("Attributes:\n")
    return {
        name: " ".join(text.split())
        for names, text in ATTRIBUTE.findall(inspect.cleandoc(section))
        for name in names.split(", ")
    }


COMMAND = Command("schema", DESCRIPTION, options_of(Flags), run)

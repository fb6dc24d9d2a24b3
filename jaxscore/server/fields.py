"""Fields of requests: which there are, and which values each takes.

Types are strict: "5" and true are no numbers. A field that would change the numbers and is not
handled is taken with its neutral value alone; a field that nobody knows is refused by name.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxscore.io.json_input import json_kind
from jaxscore.server.errors import ApiError, refused

Test = Callable[[Any], bool]
SHOWN = 60  # characters of what a client wrote, in a message


@dataclasses.dataclass(frozen=True)
class Field:
    """What one field takes.

    Attributes:
        expected: the values, for people.
        takes: whether a value is one of them; null is asked about by `required` alone.
        default: in place of null and of a field that is absent.
        required: neither null nor absent.
    """

    expected: str
    takes: Test
    default: Any = None
    required: bool = False


def is_int(value: Any) -> bool:
    """A whole number; true is none."""
    return type(value) is int


def is_number(value: Any) -> bool:
    """A number; true is none."""
    return type(value) in (int, float)


def is_bool(value: Any) -> bool:
    """True or false."""
    return type(value) is bool


def is_string(value: Any) -> bool:
    """A string."""
    return type(value) is str


def flag(default: bool = False) -> Field:
    """A field that is true or false."""
    return Field("true or false", is_bool, default)


def whole(least: int, most: int | None = None, default: Any = None) -> Field:
    """A field of a whole number between two."""
    words = f"from {least}" if most is None else f"from {least} to {most}"
    return Field(
        f"a whole number {words}",
        lambda value: is_int(value) and least <= value and (most is None or value <= most),
        default,
    )


def one_of(*words: str, default: Any = None) -> Field:
    """A field with a few words to choose from."""
    shown = " or ".join(f'"{word}"' for word in words)
    return Field(shown, lambda value: is_string(value) and value in words, default)


def read(
    body: Mapping[str, Any],
    fields: Mapping[str, Field],
    neutral: Mapping[str, tuple[Any, ...]] | None = None,
) -> dict[str, Any]:
    """Every field's value, or its default.

    Args:
        body: what the client sent.
        fields: those that are handled, by name.
        neutral: those that are not, with the values that change nothing.

    Raises:
        ApiError: 400 with the field as `param`.
    """
    known = dict(neutral or {})
    for name, value in body.items():
        if name in fields:
            continue
        if name not in known:
            raise _unknown(name, fields)
        if value is not None and not _among(value, known[name]):
            shown = ", ".join(map(_json, ("null", *known[name])))
            raise refused(
                name,
                f"{name} is {told(value)}, which this server does not apply; leave it out, or "
                f"give a value that changes nothing: {shown}",
                "unsupported_parameter",
            )
    return {name: _taken(body, name, field) for name, field in fields.items()}


def _taken(body: Mapping[str, Any], name: str, field: Field) -> Any:
    value = body.get(name)
    if value is None and not field.required:
        return field.default
    if value is None or not field.takes(value):
        found = "missing" if name not in body else told(value)
        raise refused(name, f"{name} is {found}; expected {field.expected}")
    return value


def _unknown(name: str, fields: Mapping[str, Field]) -> ApiError:
    shown = name if len(name) <= SHOWN else f"{name[:SHOWN]}…"
    return refused(
        shown,
        f"unrecognized field {told(name)}; expected {', '.join(fields)}",
        "unknown_parameter",
    )


def _among(value: Any, some: tuple[Any, ...]) -> bool:
    """Equality that tells true from 1."""
    return any(value == one and (isinstance(value, bool) == isinstance(one, bool)) for one in some)


def _json(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if is_bool(value) else str(value)


def told(value: Any) -> str:
    """A value for people: short ones themselves, others by their kind."""
    if is_string(value):
        return f'"{value}"' if len(value) <= SHOWN else f"a string of {len(value)} characters"
    if is_number(value):
        return str(value)
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return json_kind(value)

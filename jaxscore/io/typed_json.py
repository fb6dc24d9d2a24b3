"""Small JSON files that commands wrote and people may have edited: parsed strictly, and typed.

A type is one of Python's: `TypedDict`, `list[X]`, `tuple[X, Y]`, `dict[str, X]`, unions, `Any`, and
those of single values. Messages have file, line, the value found and the values expected.
"""

import json
import math
import re
import types
import typing
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.json_input import (
    MOST_BYTES,
    MOST_NESTED,
    NAMES,
    TOO_DEEP,
    check_regular,
    decode_text,
    json_kind,
    nests_beyond,
    unreadable_file,
)

# Path of a value in a file: names of fields and indices of lists, outermost first.
Keys = tuple[str | int, ...]
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]|:')
COUNT = re.compile(r"n_.*|.*_from_before", re.DOTALL)  # names of counts, which `merge` adds up
MOST = 1 << 64  # bound of whole numbers; a longer one may have thousands of digits


def read_bytes(path: Path) -> bytes | None:
    """Return the bytes of a small local or remote file, or None if it is missing.

    Raises:
        InputError: it cannot be read, or a local file has more than MOST_BYTES.
    """
    if remote.address_of(path) is not None:
        return remote.read_bytes(path)
    check_regular(path)
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise InputError(f"{path}: found {size:,} bytes, expected at most {MOST_BYTES:,}")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise unreadable_file(path, problem, "a readable file") from None


def read_typed(path: Path, hint: Any, file_type: str, remedy: str) -> Any:
    """Read a local or remote JSON file, or return None if it is missing.

    Args:
        hint: the type of its value.
        file_type: name of the file for messages, such as "a manifest".
        remedy: the remedy for a damaged file.

    Raises:
        InputError: it is not strict JSON, or has another type.
    """
    if (raw := read_bytes(path)) is None:
        return None
    end = f"expected {file_type}, as a run writes it; {remedy}"
    text = decode_text(path, raw)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as problem:
        actual = "an empty file" if not text.strip() else f"not JSON ({problem.msg})"
        raise InputError(f"{path}:{problem.lineno}: {actual}; {end}") from None
    except _Refused as problem:
        line = text.count("\n", 0, max(0, text.find(problem.token))) + 1
        raise InputError(f"{path}:{line}: found {problem}; {end}") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path}: not usable JSON ({problem}); {end}") from None
    if nests_beyond(value, MOST_NESTED):
        raise InputError(f"{path}: not usable JSON ({TOO_DEEP}); {end}")
    if (wrong := type_problem(value, hint)) is not None:
        keys, why = wrong
        raise InputError(f"{path}:{line_of(text, keys)}: {why}; {remedy}")
    return value


def type_problem(value: Any, hint: Any, keys: Keys = ()) -> tuple[Keys, str] | None:
    """Return the path of the first part of a JSON value with a wrong type, and a message, or None.

    Args:
        keys: path of the value itself, if it is a part of another one.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return None
    if origin in (types.UnionType, typing.Union):
        problems = [type_problem(value, argument, keys) for argument in arguments]
        if None in problems:
            return None
        # The deepest problem is the most specific one, such as a field of an object.
        deepest = max(filter(None, problems), key=lambda problem: len(problem[0]))
        return deepest if len(deepest[0]) > len(keys) else _problem(value, hint, keys)
    if typing.is_typeddict(hint):
        return _object_problem(value, hint, keys)
    if origin is typing.Literal:
        return None if value in arguments else _problem(value, hint, keys)
    container = origin or hint
    expected = list if container is tuple else container
    if not _is_of(value, expected):
        return _problem(value, hint, keys)
    parts: list[tuple[str | int, Any, Any]] = []
    if container is list:
        if _is_plain(value, arguments[0]):
            return None
        parts = [(index, entry, arguments[0]) for index, entry in enumerate(value)]
    elif container is tuple:
        if len(value) != len(arguments):
            return keys, f"{_name(keys)} has {len(value)} entries, expected {len(arguments)}"
        parts = [(index, *pair) for index, pair in enumerate(zip(value, arguments, strict=True))]
    elif expected is dict:
        parts = [(name, entry, arguments[1]) for name, entry in value.items()]
    problems_of_parts = (type_problem(entry, hint, (*keys, key)) for key, entry, hint in parts)
    return next(filter(None, problems_of_parts), None)


def _object_problem(value: Any, hint: Any, keys: Keys) -> tuple[Keys, str] | None:
    """Check an object against a `TypedDict`, see `type_problem`.

    A field that is not declared may have any value, except that a count is a whole number.
    """
    if not isinstance(value, dict):
        return _problem(value, dict, keys)
    for name in sorted(hint.__required_keys__ - value.keys()):
        there = ", ".join(map(repr, sorted(value)[:8])) or "none"
        return keys, f'{_name(keys)} lacks the field "{name}"; there are {there}'
    hints = typing.get_type_hints(hint)
    problems = (
        type_problem(entry, hints.get(name, int if COUNT.fullmatch(name) else Any), (*keys, name))
        for name, entry in value.items()
    )
    return next(filter(None, problems), None)


def _is_of(value: Any, expected: Any) -> bool:
    if expected is float:
        expected = int | float
    if isinstance(value, bool):
        return expected is bool
    if isinstance(value, int) and not -MOST < value < MOST:
        return False
    return isinstance(value, expected)


def _is_plain(values: list[Any], hint: Any) -> bool:
    """Return True if all values have the types of single values that a hint names; fast."""
    types_of_values = {*map(type, values)}
    expected = {*(typing.get_args(hint) or (hint,))}
    return int not in types_of_values and types_of_values <= expected


def _problem(value: Any, hint: Any, keys: Keys) -> tuple[Keys, str]:
    hints = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    types_ = [typing.get_origin(one_hint) or one_hint for one_hint in hints]
    types_ = [dict if typing.is_typeddict(type_) else type_ for type_ in types_]
    types_ = [{tuple: list, typing.Literal: str}.get(type_, type_) for type_ in types_]
    expected = " or ".join(NAMES.get(type_, str(type_)) for type_ in dict.fromkeys(types_))
    actual = json_kind(value)
    if isinstance(value, int) and not -MOST < value < MOST:
        actual = "a number beyond 2^64"
    return keys, f"{_name(keys)} is {actual}, expected {expected}"


def _name(keys: Keys) -> str:
    """Return the name of a value for a message."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return f"field {text.removeprefix('.')!a}" if text else "the file"


def line_of(text: str, keys: Keys) -> int:
    """Return the line of a value in a JSON text, from 1; of its object if it is missing."""
    path: list[str | int | None] = []  # None before the first name of an object
    last = ""
    for token in TOKEN.finditer(text):
        sign = token[0]
        if sign == ":" and path:
            path[-1] = json.loads(last)
        elif sign in "{[":
            path.append(None if sign == "{" else 0)
        elif sign in "}]":
            path.pop()
        elif sign == "," and path and isinstance(path[-1], int):
            path[-1] += 1
        if keys and (*path,) == keys:
            return text.count("\n", 0, token.start()) + 1
        last = sign
    return 1


class _Refused(ValueError):
    """A number that no command writes.

    Attributes:
        token: the number's text in the file.
    """

    def __init__(self, token: str, why: str) -> None:
        super().__init__(f"{token[:20]}, {why}")
        self.token = token


def _constant(token: str) -> Any:
    raise _Refused(token, "which is not a JSON number")


def _float(token: str) -> float:
    if not math.isfinite(value := float(token)):
        raise _Refused(token, "a number beyond 1e308")
    return value


def _int(token: str) -> int:
    if len(token) > 40:  # converting thousands of digits takes time, or fails
        raise _Refused(token, "a number beyond 2^64")
    return int(token)


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_float, parse_int=_int)

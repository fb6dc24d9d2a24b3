"""Users' files, with the file and the line in every complaint."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of a UTF-8 file, without line ends or a byte-order mark.

    Raises:
        InputError: missing, a folder, unreadable, or not UTF-8.
    """
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as problem:
                    raise InputError(
                        f"{path}:{number}: byte {problem.start + 1} is not UTF-8; "
                        "save the file as UTF-8"
                    ) from None
                yield number, text.rstrip("\r\n")
    except OSError as problem:
        raise InputError(
            f"{path}: {problem.strerror}; expected a readable file of UTF-8 text"
        ) from None


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank.

    Raises:
        InputError: as `read_lines`; a line that is no JSON object; no line at all.
    """
    found = False
    for number, text in read_lines(path):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        if not found and text.lstrip().startswith("["):
            raise InputError(
                f"{where}: found a JSON array, expected JSONL: one object a line, "
                "without brackets around them or commas between"
            )
        found = True
        yield number, _object(text, where)
    if not found:
        raise InputError(f"{path}: the file is empty, expected one JSON object a line")


def _object(text: str, where: str) -> dict[str, Any]:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            f"{where}: a string has half a surrogate pair, which is no character; "
            "write the character itself in UTF-8"
        ) from None
    except json.JSONDecodeError as problem:
        raise InputError(
            f"{where}: not JSON at column {problem.colno} ({problem.msg}); "
            "expected one object a line"
        ) from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{where}: not usable JSON ({problem})") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: found {_kind(value)}, expected an object")
    return value


def take(item: dict[str, Any], name: str, kinds: type | tuple[type, ...], where: str) -> Any:
    """A field that must be there and of one of these types.

    Raises:
        InputError: it is missing or of another type; lists the fields that are there.
    """
    wanted = " or ".join(NAMES[kind] for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    if name not in item:
        raise InputError(
            f'{where}: no field "{name}", expected {wanted}; '
            f"there are {', '.join(map(repr, sorted(item))) or 'none'}"
        )
    value = item[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in _tuple(kinds)):
        raise InputError(f'{where}: field "{name}" is {_kind(value)}, expected {wanted}')
    return value


def _tuple(kinds: type | tuple[type, ...]) -> tuple[type, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)


NAMES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def _kind(value: Any) -> str:
    return NAMES.get(type(value), type(value).__name__)

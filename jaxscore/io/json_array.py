"""A JSON array of objects."""

from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import MOST_NESTED, kind_of, nests_beyond, parse_json, read_text


def read_array(path: Path, *, lone_object: bool = False) -> list[dict[str, Any]]:
    """The objects of a JSON array.

    Args:
        lone_object: read a file that is one object as an array of it.

    Raises:
        InputError: the file cannot be read or holds no array of objects.
    """
    expected = "an array of objects: brackets around them and commas between"
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path}: the file is empty, expected a JSON array of objects")
    found = parse_json(text, path, expected)
    if lone_object and isinstance(found, dict):
        found = [found]
    if not isinstance(found, list):
        raise InputError(f"{path}: found {kind_of(found)}, expected a JSON array of objects")
    for number, item in enumerate(found, start=1):
        if not isinstance(item, dict):
            raise InputError(f"{path}: item {number} is {kind_of(item)}, expected an object")
        if nests_beyond(item, MOST_NESTED):
            raise InputError(f"{path}: item {number} is nested more than {MOST_NESTED} deep")
    return found

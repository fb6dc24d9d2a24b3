"""One line of a JSONL file, numbers in arrays included."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import orjson

from jaxscore.io.atomic import json_safe

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
SAFE = {str, int, bool, type(None)}  # types whose values JSON has, all of them
WRITTEN = SAFE | {np.ndarray}  # and those that orjson writes as they should stand


def json_line(record: Mapping[str, Any]) -> bytes:
    """An object with a line end, in UTF-8; float32 in its shortest form, NaN of an array as null.

    Numbers that JSON does not have stand as in `json_number`, outside arrays.

    Raises:
        TypeError: something in it has no JSON.
    """
    value = {
        key: item if type(item) in WRITTEN or _is_safe(item) else json_safe(item)
        for key, item in record.items()
    }
    try:
        return orjson.dumps(value, option=OPTIONS)
    except TypeError:  # a whole number beyond 64 bits: only Python's own library writes it
        lists = {
            key: _plain(item) if isinstance(item, np.ndarray) else item
            for key, item in value.items()
        }
        text = json.dumps(lists, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"{text}\n".encode()


def extra(record: Mapping[str, Any], columns: Collection[str]) -> str | None:
    """The fields of a record that are none of a table's columns, as JSON text; None without one."""
    others = {name: value for name, value in record.items() if name not in columns}
    return json_line(others).decode().rstrip() if others else None


def _plain(array: np.ndarray) -> Any:
    """A list of the numbers that the other records of a file have for such an array."""
    try:
        return orjson.loads(orjson.dumps(np.asarray(array, order="C"), option=OPTIONS))
    except TypeError:  # of texts, objects or another byte order
        return json_safe(array.tolist())


def _is_safe(item: Any) -> bool:
    """Whether orjson writes a value of another type than `WRITTEN` as it should stand."""
    if type(item) is float:
        return math.isfinite(item)
    return type(item) is list and SAFE.issuperset(map(type, item))

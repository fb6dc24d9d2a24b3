"""One line of a JSONL file, numbers in arrays included."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from jaxscore.files.atomic import json_safe

OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE


def json_line(record: Mapping[str, Any]) -> str:
    """An object with a line end; float32 in its shortest form, NaN of an array as null.

    Numbers that JSON does not have stand as in `json_number`, outside arrays.

    Raises:
        TypeError: something in it has no JSON.
    """
    value = {
        key: item if isinstance(item, np.ndarray) else json_safe(item)
        for key, item in record.items()
    }
    try:
        return orjson.dumps(value, option=OPTIONS).decode()
    except TypeError:  # a whole number beyond 64 bits: only Python's own library writes it
        lists = {
            key: json_safe(item.tolist()) if isinstance(item, np.ndarray) else item
            for key, item in value.items()
        }
        text = json.dumps(lists, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"{text}\n"

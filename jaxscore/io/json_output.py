"""What a report's JSON file holds."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from jaxscore.io.atomic import json_number

HALF_PAIR = re.compile("[\ud800-\udfff]")  # a half surrogate pair, which UTF-8 does not have


def plain(value: Any) -> Any:
    """What JSON has: a dataclass becomes a dict of its fields, a tuple a list; see `json_number`.

    What is none of these stays as it is.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


def json_text(value: Any) -> str:
    """Strict JSON, indented, with a line end; a dataclass is an object of its fields.

    Numbers that JSON does not have stand as in `json_number`, and a half surrogate pair, which
    a user's JSON may hold and UTF-8 does not have, as its escape.

    Raises:
        TypeError: something in it is neither JSON's nor a dataclass.
    """
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2)
    return HALF_PAIR.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n"

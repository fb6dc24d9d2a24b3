"""What a report's JSON file holds."""

import dataclasses
import json
import re
from typing import Any

from jaxscore.files.atomic import json_safe

HALF_PAIR = re.compile("[\ud800-\udfff]")  # a half surrogate pair, which UTF-8 does not have


def json_text(value: Any) -> str:
    """Strict JSON, indented, with a line end; a dataclass is an object of its fields.

    Numbers that JSON does not have stand as in `json_number`, and a half surrogate pair, which
    a user's JSON may hold and UTF-8 does not have, as its escape.

    Raises:
        TypeError: something in it is neither JSON's nor a dataclass.
    """

    def fields(one: Any) -> Any:
        return json_safe(dataclasses.asdict(one))

    text = json.dumps(
        json_safe(value), ensure_ascii=False, allow_nan=False, indent=2, default=fields
    )
    return HALF_PAIR.sub(lambda found: f"\\u{ord(found.group()):04x}", text) + "\n"

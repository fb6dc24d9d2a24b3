"""What a report's JSON file holds."""

import dataclasses
import json
from typing import Any

from jaxscore.files.atomic import json_safe


def json_text(value: Any) -> str:
    """Strict JSON, indented, with a line end; a dataclass is an object of its fields.

    Numbers that JSON does not have stand as in `json_number`.

    Raises:
        TypeError: something in it is neither JSON's nor a dataclass.
    """

    def fields(one: Any) -> Any:
        return json_safe(dataclasses.asdict(one))

    text = json.dumps(
        json_safe(value), ensure_ascii=False, allow_nan=False, indent=2, default=fields
    )
    return f"{text}\n"

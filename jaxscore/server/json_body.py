"""Bytes of a request to a JSON object, or why they are none."""

from typing import Any

import orjson

from jaxscore.io.json_input import json_kind
from jaxscore.server.errors import ApiError


def parse(raw: bytes, what: str = "the body") -> dict[str, Any]:
    """The object; strict UTF-8 and strict JSON.

    Raises:
        ApiError: 400 for anything else: NaN, numbers beyond a double, text behind the object, a
            nesting beyond 1,024, half a surrogate pair.
    """
    try:
        value = orjson.loads(raw)
    except (orjson.JSONDecodeError, RecursionError) as problem:
        raise ApiError(
            400, f"{what} is no JSON ({problem}); expected one object in UTF-8", code="invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise ApiError(400, f"{what} is {json_kind(value)}, expected an object")
    return value

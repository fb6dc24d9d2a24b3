"""Server-sent events: an object each, and a last line that says that there are no more."""

from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """One object; NumPy's numbers as JSON's."""
    return b"data: " + orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n\n"


def broken(error: bytes) -> bytes:
    """The end of a stream after an error, from the error's object."""
    return b"data: " + error + b"\n\n" + DONE

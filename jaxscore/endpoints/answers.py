"""Validation of servers' answers: JSON in which any field may be missing or of another type.

A server may be broken or hostile, so every field is checked before it is used. Text of an answer is
shortened, made printable, and stripped of the API key before it is displayed.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.json_input import MOST_NESTED, TOO_DEEP, check_unicode, nests_beyond
from jaxscore.types.results import Generated

KEY_VARIABLE = "OPENAI_API_KEY"
QUOTED = 300  # maximum length of a server's message in characters


class Failed(Exception):
    """A failed request; others may succeed.

    Attributes:
        status: the HTTP status of the answer, or None without an answer.
        misdirected: True if the URL, the key or the model's name is wrong, so that every request
            would fail.
    """

    def __init__(
        self, message: str, *, status: int | None = None, misdirected: bool = False
    ) -> None:
        super().__init__(message)
        self.status, self.misdirected = status, misdirected


class Reply(NamedTuple):
    """A server's answer.

    Attributes:
        content: the body, truncated if it exceeds the limit.
        is_whole: False if the body is truncated.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    is_whole: bool


def api_key() -> str | None:
    """Return the API key in the environment, or None.

    Raises:
        InputError: the key is malformed; the message does not contain it.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"the environment variable {KEY_VARIABLE} contains a space, a newline or another "
            "invalid character; set it again (its value is not shown here)"
        )
    return key or None


def quote(text: str) -> str:
    """Return a server's text for display: one truncated line without the key."""
    key = api_key()
    if key is not None:
        text = text.replace(key, f"[{KEY_VARIABLE}]")
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= QUOTED else line[:QUOTED] + "…"


def _quote_content(reply: Reply) -> str:
    return quote(reply.content[: 8 * QUOTED].decode("utf-8", "replace"))


class _RepeatedField(ValueError):
    """An object has two fields with the same name."""


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise _RepeatedField(name)
        fields[name] = value
    return fields


def _parse(content: bytes) -> Any:
    """Parse JSON. NaN and infinities are accepted, since servers in Python write them.

    Raises:
        ValueError, RecursionError: the content is not JSON, or cannot be serialised again.
    """
    value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique_fields)
    if nests_beyond(value, MOST_NESTED):
        raise InputError(TOO_DEEP)
    check_unicode(value, "in it")
    return value


def json_object(url: str, reply: Reply, max_bytes: int) -> dict[str, Any]:
    """Parse the JSON object in a successful answer.

    Args:
        max_bytes: the size limit of the answer, for the message.

    Raises:
        Failed: the answer is truncated, encoded, or not a JSON object.
    """

    def unusable(why: str) -> Failed:
        return Failed(f"{url}: the answer {why}", status=reply.status)

    if not reply.is_whole:
        raise unusable(f"has more than {max_bytes} bytes, expected less for this request")
    encoding = reply.headers.get("Content-Encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise unusable(f"is encoded as {quote(encoding)!a}, which was not requested")
    try:
        value = _parse(reply.content)
    except _RepeatedField as problem:
        name = quote(str(problem))
        raise unusable(f"has the field {name!a} twice, possibly with different values") from None
    except InputError as problem:
        raise unusable(f"is not usable JSON ({problem})") from None
    except (ValueError, RecursionError):
        raise unusable(f"is not JSON ({_quote_content(reply)!a})") from None
    if not isinstance(value, dict):
        raise unusable(f"is a {type(value).__name__}, expected a JSON object")
    return value


def error_message(reply: Reply) -> str:
    """Return the message of an error answer: a field of its JSON, or its text."""
    try:
        value = _parse(reply.content)
    except (ValueError, RecursionError, InputError):
        return _quote_content(reply)
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return quote(value if isinstance(value, str) else json.dumps(value))


def field(value: dict[str, Any], name: str, expected_type: type, where: str = "the answer") -> Any:
    """Return a required field of an object.

    Args:
        where: the name of the object, for the message.

    Raises:
        Failed: the field is missing or of another type; the message quotes the server's error.
    """
    content = value.get(name)
    if isinstance(content, expected_type):
        return content
    error = value.get("error")
    error = error.get("message") if isinstance(error, dict) else error
    raise Failed(
        f'{where} has {"no" if content is None else "an unusable"} "{name}"'
        + (f"; the server's error: {quote(error)}" if isinstance(error, str) else "")
    )


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the first choice of an OpenAI-compatible answer.

    Raises:
        Failed: the answer does not have one.
    """
    choices = field(answer, "choices", list)
    if not choices or not isinstance(choices[0], dict):
        raise Failed('the answer has nothing in "choices"')
    return choices[0]


def generated(
    id: str | int, text: str, *, reason: object, stop_reason: object, stop: Sequence[str]
) -> Generated:
    """Build the result of a generated text.

    Args:
        reason: "length", or any other value if the text ended by itself.
        stop_reason: the stop string that ended the text, if the server reports it.
        stop: the stop strings of the request.
    """
    ends = [index for index in map(text.find, stop) if index >= 0]
    if ends or isinstance(stop_reason, str):
        finish = "stop"
    else:
        finish = "length" if reason == "length" else "eos"
    return Generated(id, text[: min(ends, default=len(text))], np.zeros(0, np.int32), finish)

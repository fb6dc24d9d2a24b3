"""Reads servers' answers: JSON in which any field may be missing or of another type.

A server may be broken or hostile, so nothing of an answer is used unchecked, and what is displayed
of it is short, printable, and without the key.
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
QUOTED = 300  # characters of a server's message


class Failed(Exception):
    """A request that failed; others may succeed.

    Attributes:
        status: HTTP status of the answer, or None without one.
        misdirected: whether the URL, the key or the model's name is wrong, so that every request
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
        content: its body, truncated if it exceeds the limit.
        is_whole: whether that is the whole body.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes
    is_whole: bool


def api_key() -> str | None:
    """The key in the environment, or None.

    Raises:
        InputError: it cannot be a key; the message does not contain it.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"the environment variable {KEY_VARIABLE} holds a blank, a line end or another "
            "character that is in no key; set it again (its value is not shown here)"
        )
    return key or None


def quote(text: str) -> str:
    """A server's text for a message: one truncated line, without the key."""
    key = api_key()
    if key is not None:
        text = text.replace(key, f"[{KEY_VARIABLE}]")
    line = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return line if len(line) <= QUOTED else line[:QUOTED] + "…"


def _quote_content(reply: Reply) -> str:
    return quote(reply.content[: 8 * QUOTED].decode("utf-8", "replace"))


class _RepeatedField(ValueError):
    """An object has two fields of one name."""


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise _RepeatedField(name)
        fields[name] = value
    return fields


def _parse(content: bytes) -> Any:
    """Parse JSON. NaN and infinities pass, since servers in Python write them.

    Raises:
        ValueError, RecursionError: it is no JSON, or cannot be written again.
    """
    value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique_fields)
    if nests_beyond(value, MOST_NESTED):
        raise InputError(TOO_DEEP)
    check_unicode(value, "in it")
    return value


def json_object(url: str, reply: Reply, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a successful answer.

    Args:
        max_bytes: the limit of the answer, for the message.

    Raises:
        Failed: the answer is incomplete, encoded, or no JSON object.
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
        raise unusable(f"has the field {name!a} twice, and they may differ") from None
    except InputError as problem:
        raise unusable(f"is no usable JSON ({problem})") from None
    except (ValueError, RecursionError):
        raise unusable(f"is no JSON ({_quote_content(reply)!a})") from None
    if not isinstance(value, dict):
        raise unusable(f"is a {type(value).__name__}, expected a JSON object")
    return value


def error_message(reply: Reply) -> str:
    """The message in an error answer: the field of its JSON, or its text."""
    try:
        value = _parse(reply.content)
    except (ValueError, RecursionError, InputError):
        return _quote_content(reply)
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(name):
            value = value[name]
    return quote(value if isinstance(value, str) else json.dumps(value))


def field(value: dict[str, Any], name: str, kind: type, where: str = "the answer") -> Any:
    """A required field of a type.

    Args:
        where: name of the object, for the message.

    Raises:
        Failed: it is missing or of another type; with the server's own error if there is one.
    """
    found = value.get(name)
    if isinstance(found, kind):
        return found
    error = value.get("error")
    error = error.get("message") if isinstance(error, dict) else error
    raise Failed(
        f'{where} has {"no" if found is None else "an unusable"} "{name}"'
        + (f"; the server says: {quote(error)}" if isinstance(error, str) else "")
    )


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """The first of an OpenAI-compatible answer's choices.

    Raises:
        Failed: there is none.
    """
    choices = field(answer, "choices", list)
    if not choices or not isinstance(choices[0], dict):
        raise Failed('the answer has nothing in "choices"')
    return choices[0]


def generated(
    id: str | int, text: str, *, reason: object, stop_reason: object, stop: Sequence[str]
) -> Generated:
    """Make the result of a generated text.

    Args:
        reason: "length", or anything else if the text ended by itself.
        stop_reason: the stop string that ended it, if the server reports it.
        stop: stop strings of the request.
    """
    ends = [at for at in map(text.find, stop) if at >= 0]
    if ends or isinstance(stop_reason, str):
        finish = "stop"
    else:
        finish = "length" if reason == "length" else "eos"
    return Generated(id, text[: min(ends, default=len(text))], np.zeros(0, np.int32), finish)

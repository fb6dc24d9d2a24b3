"""A request as an endpoint's function sees it, and what the function gives back."""

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from jaxscore.server.service import Service

JSON, NDJSON, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"


@dataclasses.dataclass(frozen=True)
class Call:
    """One request whose body has arrived.

    Attributes:
        service: what answers it.
        body: its bytes, empty for GET.
        headers: by lower-case name; of several alike the last one.
        path: what stands in the path in place of the pattern's names.
        query: behind the question mark, by name.
    """

    service: Service
    body: bytes
    headers: Mapping[str, str]
    path: Mapping[str, str]
    query: Mapping[str, str]

    @property
    def content_type(self) -> str:
        """The type of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Answer(NamedTuple):
    """A whole answer of status 200."""

    body: bytes
    content_type: str = JSON


class Stream(NamedTuple):
    """An answer in parts.

    Attributes:
        parts: bytes; an error before the first part is an answer with its status.
        content_type: of all parts together.
        broken: the last bytes after an error that comes later, from the error's object.
    """

    parts: AsyncGenerator[bytes, None]
    content_type: str
    broken: Callable[[bytes], bytes]


Function = Callable[[Call], Awaitable[Answer | Stream]]


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The headers of an ASGI scope, by lower-case name."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def query_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """The query of an ASGI scope; of several alike the last one."""
    text = scope.get("query_string", b"").decode("latin-1")
    return dict(parse_qsl(text, keep_blank_values=True, errors="replace"))

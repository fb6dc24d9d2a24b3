"""The body of a request, within its limits."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from jaxscore.server.errors import ApiError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client has closed the connection, so nobody reads an answer."""


async def body(receive: Receive, headers: Mapping[str, str], most: int) -> bytes:
    """All bytes of a body.

    The length that the client states is checked before anything is read, and what arrives is
    counted, since a chunked body states none.

    Raises:
        ApiError: 413, more than `most` bytes; 400, a length that is none.
        ClientGone: the client went away.
    """
    stated = headers.get("content-length")
    if stated is not None:
        if not (stated.isascii() and stated.isdigit()):
            raise ApiError(400, "the Content-Length is no number of bytes")
        if len(stated) > 18 or int(stated) > most:
            raise _too_large(most)
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def disconnect(receive: Receive) -> None:
    """Wait until the client goes away; what it still sends is not looked at."""
    while (await receive())["type"] != "http.disconnect":
        pass


def check_type(headers: Mapping[str, str], taken: tuple[str, ...]) -> None:
    """See that a body is what an endpoint reads.

    A web page can post `text/plain` to any server without asking it first, so that is refused.

    Raises:
        ApiError: 415, another type, or an encoding.
    """
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in taken:
        raise ApiError(
            415,
            f"the Content-Type is {found or 'missing'}, expected {' or '.join(taken)}",
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(
            415, f"the Content-Encoding is {encoding}; send the body as it is, without one"
        )


def _too_large(most: int) -> ApiError:
    # What of the body is still under way would be read as the next request.
    return ApiError(
        413,
        f"the body is larger than {most} bytes; send fewer prompts in one request",
        headers={"Connection": "close"},
    )

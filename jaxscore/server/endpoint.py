"""One route as an ASGI application: reads the body, runs a handler, watches for a disconnect.

A second task reads `receive` to see the disconnect. No other code may read it, so Starlette's
BaseHTTPMiddleware cannot be used.
"""

import asyncio
import contextlib
import dataclasses
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from jaxscore.server import CONTEXT_LENGTH, ApiError
from jaxscore.server.request_models import NDJSON
from jaxscore.server.service import Service
from jaxscore.text.bounded_tokenizer import TextError, TooLongError

JSON, EVENTS = "application/json", "text/event-stream"
LAST_PART = 5.0  # seconds for sending the error of a timeout

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection, so no answer can be sent."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A request for a handler.

    Attributes:
        service: the served model.
        body: the body, empty for GET.
        headers: the headers by lower-case name; of equal names the last.
        path: the parameters of the route's pattern.
        query: the parameters of the query by name.
    """

    service: Service
    body: bytes
    headers: Mapping[str, str]
    path: Mapping[str, str]
    query: Mapping[str, str]

    @property
    def has_lines(self) -> bool:
        """True if the body has a JSON object per line."""
        return content_type(self.headers) == NDJSON


class Answer(NamedTuple):
    """A complete answer of status 200, with further headers."""

    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str] = MappingProxyType({})


class Stream(NamedTuple):
    """An answer in parts.

    Attributes:
        parts: the bytes; an error before the first part becomes an answer with its status.
        content_type: the content type of the answer.
        end_with: a function from a later error's object to the last bytes.
    """

    parts: AsyncGenerator[bytes, None]
    content_type: str
    end_with: Callable[[bytes], bytes]


Handler = Callable[[Call], Awaitable[Answer | Stream]]


class Endpoint:
    """A route.

    Attributes:
        handlers: the handlers by method.
        types: the content types of bodies that it reads.
    """

    def __init__(
        self, service: Service, handlers: Mapping[str, Handler], types: tuple[str, ...] = (JSON,)
    ) -> None:
        self._service, self.handlers, self.types = service, handlers, types

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        """Answer one request."""
        response = Response(send)
        try:
            call, handler = await self._read(scope, receive)
            await self._answer_client(handler, call, receive, response)
        except ClientGone:
            self._service.metrics.cancelled.inc()
        except ApiError as error:
            await response.send_error(error)
        except TextError as error:
            code = CONTEXT_LENGTH if isinstance(error, TooLongError) else None
            await response.send_error(ApiError(400, str(error), code=code))
        except Exception:
            traceback.print_exc()
            message = "internal error of the server; see its log"
            await response.send_error(ApiError(500, message, code="internal"))

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Call, Handler]:
        headers, method = headers_of(scope), scope["method"]
        handler = self.handlers.get("GET" if method == "HEAD" else method)
        if handler is None:
            allowed = ", ".join(self.handlers)
            raise ApiError(
                405, f"the method is {method}, expected {allowed}", headers={"Allow": allowed}
            )
        body = b""
        if method == "POST":
            check_content_type(headers, self.types)
            body = await read_body(receive, headers, self._service.settings.max_body)
        text = scope.get("query_string", b"").decode("latin-1")
        query = dict(parse_qsl(text, keep_blank_values=True, errors="replace"))
        return Call(self._service, body, headers, scope.get("path_params", {}), query), handler

    async def _answer_client(
        self, handler: Handler, call: Call, receive: Receive, response: "Response"
    ) -> None:
        """Answer, unless the client disconnects first."""
        work = asyncio.ensure_future(self._answer_in_time(handler, call, response))
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            work.result()
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer_in_time(self, handler: Handler, call: Call, response: "Response") -> None:
        seconds = self._service.settings.request_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._answer(await handler(call), response)
        except TimeoutError:
            message = f"no answer within {seconds:g} seconds; request less, or try again later"
            # A client that reads nothing would hold the last part of its stream forever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_PART):
                    await response.send_error(ApiError(503, message, code="timeout"))

    async def _answer(self, answer: Answer | Stream, response: "Response") -> None:
        if isinstance(answer, Answer):
            await response.send_whole(200, answer.body, answer.content_type, answer.headers)
            return
        response.stream = answer
        try:
            async with contextlib.aclosing(answer.parts) as parts:
                async for chunk in parts:
                    await response.send_part(chunk)
            await response.finish()
        except ApiError as error:
            await response.send_error(error)


class Response:
    """Sends one answer, and tracks if it has started and finished."""

    def __init__(self, send: Any) -> None:
        self._send, self._is_started, self._is_finished = send, False, False
        self.stream: Stream | None = None

    async def send_whole(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str]
    ) -> None:
        """Send an answer in one piece."""
        await self._start(status, content_type, {"Content-Length": str(len(body)), **headers})
        self._is_finished = True
        await self._send({"type": "http.response.body", "body": body})

    async def send_part(self, body: bytes) -> None:
        """Send a part of the stream."""
        assert self.stream is not None
        if not self._is_started:
            await self._start(200, self.stream.content_type, {"Cache-Control": "no-store"})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self) -> None:
        """End the stream."""
        if not self._is_started:
            await self.send_part(b"")
        self._is_finished = True
        await self._send({"type": "http.response.body", "body": b""})

    async def send_error(self, error: ApiError) -> None:
        """Send an error with its status, or as the last part of a stream that has started."""
        if not self._is_started:
            await self.send_whole(error.status, error.body(), JSON, error.headers)
        elif self.stream is not None and not self._is_finished:
            await self.send_part(self.stream.end_with(error.body()))
            await self.finish()

    async def _start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self._is_started = True
        every = {"Content-Type": content_type, **headers}
        pairs = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in every.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


def headers_of(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an ASGI scope by lower-case name."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def check_framing(headers: Mapping[str, str]) -> None:
    """Refuse a body with two lengths, against request smuggling.

    A proxy may use the other length, and so read part of the body as the next request.

    Raises:
        ApiError: 400, which closes the connection.
    """
    if "content-length" in headers and "transfer-encoding" in headers:
        raise ApiError(
            400,
            "the request has a Content-Length and a Transfer-Encoding, expected one of them",
            headers={"Connection": "close"},
        )


def content_type(headers: Mapping[str, str]) -> str:
    """Return the type of a body without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def check_content_type(headers: Mapping[str, str], types: tuple[str, ...]) -> None:
    """Check that an endpoint reads bodies of this type.

    A web page can post `text/plain` to any server without a preflight request.

    Raises:
        ApiError: 415, another type, or an encoding.
    """
    actual = content_type(headers)
    if actual not in types:
        raise ApiError(
            415, f"the Content-Type is {actual or 'missing'}, expected {' or '.join(types)}"
        )
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, f"the Content-Encoding is {encoding}; send the body without one")


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """Read a body of at most `limit` bytes.

    Checks the Content-Length before reading, and counts the bytes read, since a chunked body has no
    such header.

    Raises:
        ApiError: 413, it is larger; 400, the Content-Length is not a number.
        ClientGone: the client disconnected.
    """
    # If the connection stayed open, the rest of the body would be read as the next request.
    too_large = ApiError(
        413,
        f"the body is larger than {limit} bytes; send fewer prompts in one request",
        headers={"Connection": "close"},
    )
    stated = headers.get("content-length")
    if stated is not None:
        if not (stated.isascii() and stated.isdigit()):
            raise ApiError(400, "the Content-Length is not a number of bytes")
        if len(stated) > 18 or int(stated) > limit:
            raise too_large
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large
        if not message.get("more_body", False):
            return b"".join(parts)


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client disconnects; ignore further messages."""
    while (await receive())["type"] != "http.disconnect":
        pass

"""One path as an ASGI application: reads the body, runs its function, watches for the client.

The client's going away is seen by a task that reads `receive` beside the function. So nothing
stands between the two that reads it too, as Starlette's BaseHTTPMiddleware would.
"""

import asyncio
import contextlib
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any

from jaxscore.server import receiving
from jaxscore.server.calls import JSON, Answer, Call, Function, Stream, headers_of, query_of
from jaxscore.server.errors import ApiError
from jaxscore.server.prompts import TOO_LONG
from jaxscore.server.service import Service
from jaxscore.text.bounded_tokenizer import TextError, TooLong

Scope = MutableMapping[str, Any]
LAST_PART = 5.0  # seconds to say that the time is over


class Endpoint:
    """A path with its methods.

    Attributes:
        functions: by method.
        types: of bodies that it reads.
    """

    def __init__(
        self, service: Service, functions: Mapping[str, Function], types: tuple[str, ...] = (JSON,)
    ) -> None:
        self._service, self.functions, self.types = service, functions, types

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer one request."""
        answering = _Answering(send)
        try:
            call, function = await self._call(scope, receive)
            await self._with_client(function, call, receive, answering)
        except receiving.ClientGone:
            self._service.metrics.cancelled.inc()
        except ApiError as problem:
            await answering.error(problem)
        except TextError as problem:
            code = TOO_LONG if isinstance(problem, TooLong) else None
            await answering.error(ApiError(400, str(problem), code=code))
        except asyncio.CancelledError:
            raise
        except Exception:
            await answering.error(_unexpected())

    async def _call(self, scope: Scope, receive: Any) -> tuple[Call, Function]:
        headers, method = headers_of(scope), scope["method"]
        function = self.functions.get("GET" if method == "HEAD" else method)
        if function is None:
            allowed = ", ".join(self.functions)
            raise ApiError(
                405, f"the method is {method}, expected {allowed}", headers={"Allow": allowed}
            )
        raw = b""
        if method == "POST":
            receiving.check_type(headers, self.types)
            raw = await receiving.body(receive, headers, self._service.settings.max_body)
        path = scope.get("path_params", {})
        return Call(self._service, raw, headers, path, query_of(scope)), function

    async def _with_client(
        self, function: Function, call: Call, receive: Any, answering: "_Answering"
    ) -> None:
        """Answer, unless the client goes away first."""
        work = asyncio.ensure_future(self._within_time(function, call, answering))
        gone = asyncio.ensure_future(receiving.disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise receiving.ClientGone
            work.result()
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _within_time(self, function: Function, call: Call, answering: "_Answering") -> None:
        seconds = self._service.settings.request_timeout
        try:
            async with asyncio.timeout(seconds):
                await self._answer(await function(call), answering)
        except TimeoutError:
            why = f"no answer within {seconds:g} seconds; ask for less, or again later"
            # A client that reads nothing would hold the last part of its stream for ever.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_PART):
                    await answering.error(ApiError(503, why, code="timeout"))

    async def _answer(self, found: Answer | Stream, answering: "_Answering") -> None:
        if isinstance(found, Answer):
            await answering.whole(200, found.body, found.content_type, {})
            return
        answering.stream = found
        try:
            async with contextlib.aclosing(found.parts) as parts:
                async for part in parts:
                    await answering.part(part)
            await answering.end()
        except ApiError as problem:
            await answering.error(problem)


class _Answering:
    """What of one answer is sent."""

    def __init__(self, send: Any) -> None:
        self._send, self._begun, self._ended = send, False, False
        self.stream: Stream | None = None

    async def whole(
        self, status: int, body: bytes, content_type: str, headers: Mapping[str, str]
    ) -> None:
        await self._head(status, content_type, {"Content-Length": str(len(body)), **headers})
        self._ended = True
        await self._send({"type": "http.response.body", "body": body})

    async def part(self, body: bytes) -> None:
        assert self.stream is not None
        if not self._begun:
            await self._head(200, self.stream.content_type, {"Cache-Control": "no-store"})
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        if not self._begun:
            await self.part(b"")
        self._ended = True
        await self._send({"type": "http.response.body", "body": b""})

    async def error(self, problem: ApiError) -> None:
        """An answer with the error's status; where one has begun, its last part."""
        if not self._begun:
            await self.whole(problem.status, problem.body(), JSON, problem.headers)
        elif self.stream is not None and not self._ended:
            await self.part(self.stream.broken(problem.body()))
            await self.end()

    async def _head(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self._begun = True
        every = {"Content-Type": content_type, **headers}
        pairs = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in every.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})


def _unexpected() -> ApiError:
    """The answer to an error of ours, which stderr has whole."""
    traceback.print_exc()
    return ApiError(500, "the server met an error of its own; its log has it", code="internal")

"""uvicorn's protocol with a time limit for receiving a request.

uvicorn has none: a client that sends a byte now and then holds its connection for ever.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxscore.server.errors import ApiError

INCOMPLETE_HEAD = 64 * 1024  # bytes of a head that has not ended


def with_deadline(seconds: float) -> type[H11Protocol]:
    """The protocol's class, for connections whose requests must arrive within so many seconds."""

    class Protocol(H11Protocol):
        """Closes a connection whose request is not whole in time."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._arm()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def _look(self) -> None:
            """Go on waiting while a request has begun and is not whole."""
            state = self.conn.their_state
            begun = state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0])
            if begun and not self.transport.is_closing():
                self._arm()
            else:
                self._disarm()

        def _arm(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self._too_late)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _too_late(self) -> None:
            if self.transport.is_closing():
                return
            cycle = self.cycle
            if cycle is None or cycle.response_complete or not cycle.response_started:
                self.transport.write(_late(seconds))
            self.transport.close()

    return Protocol


def _late(seconds: float) -> bytes:
    body = ApiError(408, f"the request did not arrive within {seconds:g} seconds").body()
    head = (
        "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body

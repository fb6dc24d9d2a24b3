"""uvicorn's protocol with time limits for clients that send or read slowly.

uvicorn has none: a client that sends a byte now and then, or reads nothing of its answer, holds
its connection for ever.
"""

import asyncio
import http
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxscore.server.errors import ApiError

INCOMPLETE_HEAD = 64 * 1024  # bytes of a head that has not ended


def with_deadline(seconds: float) -> type[H11Protocol]:
    """The protocol's class.

    Args:
        seconds: within which a request must arrive, and within which a client must read some of
            an answer that is finished.
    """

    class Protocol(H11Protocol):
        """Closes a connection whose request is not whole in time, or whose answer is not read."""

        _deadline: asyncio.TimerHandle | None = None
        _reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._arm()
            self._reading = self.loop.call_later(seconds, self._look_at_reading, 0)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._look()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            if self._reading is not None:
                self._reading.cancel()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            self._end(400, "the request is not valid HTTP")

        def _look(self) -> None:
            """Go on waiting while a request has begun and is not whole."""
            if self.transport.is_closing():
                self._disarm()
                return
            state = self.conn.their_state
            if state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0]):
                self._arm()
                return
            self._disarm()
            if self.conn.our_state is h11.IDLE and self.timeout_keep_alive_task is None:
                # The rest of a refused body has arrived, and uvicorn has cancelled its timer.
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def _arm(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self._too_late)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _too_late(self) -> None:
            if not self.transport.is_closing():
                self._end(408, f"the request did not arrive within {seconds:g} seconds")

        def _end(self, status: int, message: str) -> None:
            """Close the connection, with an error unless an answer has begun."""
            cycle = self.cycle
            if cycle is None or cycle.response_complete or not cycle.response_started:
                self.transport.write(_last(status, message))
            self.transport.close()

        def _look_at_reading(self, before: int) -> None:
            """Drop a connection that keeps an answer in memory for a client that reads nothing.

            An answer that is not finished ends with the time limit of its request.
            """
            waiting = self.transport.get_write_buffer_size()
            cycle = self.cycle
            finished = self.transport.is_closing() or cycle is None or cycle.response_complete
            if finished and waiting and waiting == before:
                self.transport.abort()
            else:
                self._reading = self.loop.call_later(seconds, self._look_at_reading, waiting)

    return Protocol


def _last(status: int, message: str) -> bytes:
    """An error as the last bytes of a connection."""
    body = ApiError(status, message).body()
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body

"""A server from its socket to its shutdown: warms up, answers, drains after a signal."""

import asyncio
import contextlib
import http
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from jaxscore.errors import InputError
from jaxscore.server import ApiError
from jaxscore.server.app import Log, app
from jaxscore.server.service import Service

BACKLOG = 2048  # connections that wait to be accepted
DRAIN = 25  # seconds for answering requests in flight; the rest gets status 503
LAST = 2  # seconds for sending that
WORK = 10.0  # seconds for the worker to finish after that
KEEP_ALIVE = 30  # seconds of a connection without a request
MAX_HEAD = 64 * 1024  # bytes of a request's head
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Address(NamedTuple):
    """An address to listen at."""

    family: int
    socket_type: int
    protocol: int
    name: tuple[Any, ...]

    @property
    def host(self) -> str:
        """The host as in a URL and a Host header: IPv6 in brackets."""
        name = str(self.name[0])
        return f"[{name}]" if ":" in name else name

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can connect."""
        return ipaddress.ip_address(str(self.name[0]).partition("%")[0]).is_loopback


def resolve(host: str, port: int) -> Address:
    """Resolve a name once, so that the address that is checked is the one that is used.

    Raises:
        InputError: no machine has this name.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            f"--host {host}: no machine has this name; give 127.0.0.1, or an address of this one"
        ) from None
    family, socket_type, protocol, _, name = addresses[0]
    return Address(family, socket_type, protocol, name)


def listen(address: Address) -> socket.socket:
    """Open a listening socket, so that a port in use is reported before the model is loaded.

    Raises:
        InputError: the address cannot be used.
    """
    listening = socket.socket(address.family, address.socket_type, address.protocol)
    try:
        if os.name == "posix":  # elsewhere it would share the port with another program
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address.name)
        listening.listen(BACKLOG)
    except OSError as problem:
        listening.close()
        host, port = address.name[:2]
        raise InputError(
            f"--host {host} --port {port}: cannot be used ({problem.strerror or problem}); give "
            "another one, or 0 for any free port"
        ) from None
    return listening


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    service: Service, listening: socket.socket, ready: Callable[[], None], log: Log | None = None
) -> None:
    """Serve until a signal.

    The first SIGTERM or Ctrl-C stops accepting connections and answers requests in flight; a second
    one ends the process at once, with code 128 plus the signal's number.

    Args:
        ready: called once, when the model has warmed up.
        log: called for every answer.

    Raises:
        Exception: the warm-up failed.
    """
    server = make_server(service, log)
    service.worker.start()
    asyncio.run(_serve(server, service, listening, ready))


class Deadlines(H11Protocol):
    """uvicorn's protocol with time limits for clients that send or read slowly.

    With uvicorn's, a client that sends a byte now and then, or does not read its answer, holds its
    connection forever.

    Attributes:
        receive_timeout: the seconds within which a request must arrive, and within which a client
            must read some of a finished answer.
    """

    receive_timeout: float
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect a request in time."""
        super().connection_made(transport)
        self._arm()
        self._reading = self.loop.call_later(self.receive_timeout, self._check_reading, 0)

    def data_received(self, data: bytes) -> None:
        """Check if the request is complete."""
        super().data_received(data)
        self._check_receiving()

    def on_response_complete(self) -> None:
        """Check if the next request has begun."""
        super().on_response_complete()
        self._check_receiving()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the timers."""
        self._disarm()
        if self._reading is not None:
            self._reading.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a message that is not HTTP."""
        self._close(400, "the request is not valid HTTP")

    def _check_receiving(self) -> None:
        """Keep the deadline while a request is incomplete."""
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
            self._deadline = self.loop.call_later(self.receive_timeout, self._time_out)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _time_out(self) -> None:
        if not self.transport.is_closing():
            self._close(408, f"the request did not arrive within {self.receive_timeout:g} seconds")

    def _close(self, status: int, message: str) -> None:
        """Close the connection, with an error unless an answer has begun."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = ApiError(status, message).body()
            head = (
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
                "Content-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

    def _check_reading(self, n_before: int) -> None:
        """Drop the connection of a client that stopped reading a finished answer.

        An unfinished answer ends with the time limit of its request.
        """
        n_buffered = self.transport.get_write_buffer_size()
        cycle = self.cycle
        is_finished = self.transport.is_closing() or cycle is None or cycle.response_complete
        if is_finished and n_buffered and n_buffered == n_before:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(
                self.receive_timeout, self._check_reading, n_buffered
            )


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, which raise signals again after serving."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `run`."""
        yield


def make_server(service: Service, log: Log | None = None) -> Server:
    """Return the server with its limits; its `serve` answers until `should_exit`."""
    limits = {"receive_timeout": service.settings.receive_timeout}
    return Server(
        uvicorn.Config(
            app(service, log),
            http=type("Protocol", (Deadlines,), limits),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # no lines for malformed requests of strangers
            access_log=False,
            server_header=False,
            headers=[("Server", "jaxscore")],
            h11_max_incomplete_event_size=MAX_HEAD,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=DRAIN + LAST,
            backlog=BACKLOG,
        )
    )


async def _serve(
    server: Server, service: Service, listening: socket.socket, ready: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        service.is_ending = True
        server.should_exit = True
        loop.call_later(DRAIN, service.worker.abort)

    with _signals(loop, end):
        try:
            await _answer(server, service, listening, ready, end)
        finally:
            service.chat_threads.shutdown(wait=False, cancel_futures=True)
            stopped = await asyncio.to_thread(service.worker.stop, WORK)
        if not stopped:
            _exit(0)  # no client waits for its window


async def _answer(
    server: Server,
    service: Service,
    listening: socket.socket,
    ready: Callable[[], None],
    end: Callable[[], None],
) -> None:
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    warm = asyncio.wrap_future(service.worker.ready)
    await asyncio.wait({serving, warm}, return_when=asyncio.FIRST_COMPLETED)
    if not warm.done():  # a signal came first; the worker ends after its first window
        await serving
    elif (error := warm.exception()) is not None:
        end()
        await serving
        raise error
    else:
        ready()
        await serving


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    """Call `end` in the loop after the first signal, and exit at the second."""
    if threading.current_thread() is not threading.main_thread():  # it cannot set handlers
        yield
        return
    n_seen = 0

    def handle(number: int, frame: object) -> None:
        nonlocal n_seen
        n_seen += 1
        if n_seen > 1:
            _exit(128 + number)
        loop.call_soon_threadsafe(end)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(code: int) -> None:
    """End the process without waiting for its threads."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

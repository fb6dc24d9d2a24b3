"""A server from its socket to its end: warms up, answers, drains after a signal."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import uvicorn

from jaxscore.errors import InputError
from jaxscore.server.app import Log, app
from jaxscore.server.protocol import INCOMPLETE_HEAD, with_deadline
from jaxscore.server.service import Service

BACKLOG = 2048  # connections that wait to be accepted
DRAIN = 25  # seconds within which what is in flight is answered; the rest gets status 503
LAST = 2  # seconds for sending that
WORK = 10.0  # seconds for what the worker has begun after that
KEEP_ALIVE = 30  # seconds of a connection without a request
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Address(NamedTuple):
    """Where to listen, as sockets name it."""

    family: int
    kind: int
    protocol: int
    name: tuple[Any, ...]

    @property
    def host(self) -> str:
        """As a URL, and the Host header of a client, have it: IPv6 in brackets."""
        name = str(self.name[0])
        return f"[{name}]" if ":" in name else name

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(str(self.name[0]).partition("%")[0]).is_loopback


def resolved(host: str, port: int) -> Address:
    """The first address of a name, which is asked for once: what is checked is what is used.

    Raises:
        InputError: no machine has this name.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise InputError(
            f"--host {host}: no machine has this name; give 127.0.0.1, or an address of this one"
        ) from None
    family, kind, protocol, _, name = found[0]
    return Address(family, kind, protocol, name)


def listen(address: Address) -> socket.socket:
    """A listening socket, so that a port in use is known before the model is loaded.

    Raises:
        InputError: the address cannot be had.
    """
    one = socket.socket(address.family, address.kind, address.protocol)
    try:
        if os.name == "posix":  # elsewhere it would share the port with another program
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(address.name)
        one.listen(BACKLOG)
    except OSError as problem:
        one.close()
        host, port = address.name[:2]
        raise InputError(
            f"--host {host} --port {port}: cannot be used ({problem.strerror or problem}); give "
            "another one, or 0 for any free port"
        ) from None
    return one


def url_of(one: socket.socket) -> str:
    """Where clients find a socket."""
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(
    service: Service, listening: socket.socket, ready: Callable[[], None], log: Log | None = None
) -> None:
    """Serve until a signal.

    The first SIGTERM or Ctrl-C takes no more connections and answers what is in flight; a second
    one ends the process at once, with code 128 and its number.

    Args:
        ready: called once, when the model has warmed up.
        log: called for every answer.

    Raises:
        Exception: what the warm-up failed with.
    """
    server = server_of(service, log)
    service.worker.start()
    asyncio.run(_serve(server, service, listening, ready))


class Server(uvicorn.Server):
    """uvicorn's, which leaves signals to us: it would raise them again after serving."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_of(service: Service, log: Log | None = None) -> Server:
    """The server, with its limits; `serve` answers until `should_exit`."""
    return Server(
        uvicorn.Config(
            app(service, log),
            http=with_deadline(service.settings.receive_timeout),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # what strangers send is no news
            access_log=False,
            server_header=False,
            headers=[("Server", "jaxscore")],
            h11_max_incomplete_event_size=INCOMPLETE_HEAD,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=DRAIN + LAST,
            backlog=BACKLOG,
        )
    )


async def _serve(
    server: Server, service: Service, one: socket.socket, ready: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        service.ending = True
        server.should_exit = True
        loop.call_later(DRAIN, service.worker.give_up)

    with _signals(loop, end):
        try:
            await _answer(server, service, one, ready, end)
        finally:
            service.chat_threads.shutdown(wait=False, cancel_futures=True)
            stopped = await asyncio.to_thread(service.worker.stop, WORK)
        if not stopped:
            _leave(0)  # nobody waits for its window any more


async def _answer(
    server: Server,
    service: Service,
    one: socket.socket,
    ready: Callable[[], None],
    end: Callable[[], None],
) -> None:
    serving = asyncio.ensure_future(server.serve(sockets=[one]))
    warm = asyncio.wrap_future(service.worker.ready)
    await asyncio.wait({serving, warm}, return_when=asyncio.FIRST_COMPLETED)
    if not warm.done():  # a signal came first, and the worker ends after its first window
        await serving
    elif (problem := warm.exception()) is not None:
        end()
        await serving
        raise problem
    else:
        ready()
        await serving


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> Iterator[None]:
    """Call `end` in the loop after the first signal, and leave at the second."""
    if threading.current_thread() is not threading.main_thread():  # which alone is told
        yield
        return
    n_seen = 0

    def seen(number: int, frame: object) -> None:
        nonlocal n_seen
        n_seen += 1
        if n_seen > 1:
            _leave(128 + number)
        loop.call_soon_threadsafe(end)

    before = {number: signal.signal(number, seen) for number in SIGNALS}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


def _leave(code: int) -> None:
    """End the process now, without waiting for its threads."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

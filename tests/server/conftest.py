"""Servers in this process: the application without sockets, and with them on a free port."""

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from jaxscore.server import Settings, lifecycle
from jaxscore.server.app import app
from jaxscore.server.service import Service
from tests.conftest import CASES

MODEL = "tiny-llama3"


class Served:
    """A service whose worker runs, asked through ASGI."""

    def __init__(self, scorer, *, runs: bool = True, **settings: Any) -> None:
        self.scorer = scorer
        self.server: lifecycle.Server | None = None  # where it listens
        self.log: list[tuple[str, str, int]] = []
        self.service = Service(scorer, Settings(**{"names": ("tiny", "alias"), **settings}))
        self.app = app(self.service, self.note)
        if runs:
            self.service.worker.start()
            self.service.worker.ready.result(60)

    def note(self, method: str, path: str, status: int, seconds: float) -> None:
        self.log.append((method, path, status))

    def ask(self, path: str, body: Any = None, *, method: str = "", **options: Any):
        """The answer to one request; GET without a body."""
        [answer] = self.ask_all([(path, body)], method=method, **options)
        return answer

    def ask_all(self, some: Sequence[tuple[str, Any]], *, method: str = "", **options: Any):
        """The answers to requests that are sent together."""

        async def one(client: httpx.AsyncClient, path: str, body: Any):
            given = {} if body is None else {"json": body}
            verb = method or ("GET" if body is None and "content" not in options else "POST")
            return await client.request(verb, path, **given, **options)

        async def every():
            async with self.client() as client:
                return await asyncio.gather(*(one(client, *item) for item in some))

        return asyncio.run(every())

    def client(self) -> httpx.AsyncClient:
        """For coroutines of a test."""
        transport = httpx.ASGITransport(self.app)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=120)

    def close(self) -> None:
        assert self.service.worker.stop(60)


@pytest.fixture(scope="session")
def scorer(scorers):
    """A scorer of the server's tests alone: a worker's thread runs it."""
    return scorers(MODEL, batch_tokens=1024)


@pytest.fixture(scope="session")
def served(scorer):
    with contextlib.closing(Served(scorer)) as one:
        yield one


@pytest.fixture
def start(scorer):
    """`start(**settings)`: a service of one test."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(contextlib.closing(Served(scorer, **settings)))


@pytest.fixture
def listening(start):
    """`listening(**settings)`: a server on a free port; gives it and its address."""
    with contextlib.ExitStack() as stack:

        def begin(**settings: Any) -> tuple[Served, tuple[str, int]]:
            served = start(**settings)
            socket = stack.enter_context(lifecycle.listen(lifecycle.resolve("127.0.0.1", 0)))
            server = served.server = lifecycle.make_server(served.service, served.note)
            thread = threading.Thread(target=lambda: asyncio.run(server.serve([socket])))
            thread.start()
            stack.callback(thread.join, 60)
            stack.callback(setattr, server, "should_exit", True)
            return served, socket.getsockname()

        yield begin


def refused(answer: httpx.Response, status: int, **fields: Any) -> dict[str, Any]:
    """The error of an answer, which has all its fields."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert {name: error[name] for name in fields} == fields
    assert str(CASES) not in error["message"]
    assert "Traceback" not in error["message"]
    return error

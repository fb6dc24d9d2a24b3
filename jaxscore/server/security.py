"""Who may ask: the Host header, the key, and web pages of another origin.

All paths but /health need the key where there is one, those added later too.
"""

import hmac
import re
from collections.abc import MutableMapping
from typing import Any

from jaxscore.server.calls import JSON, headers_of
from jaxscore.server.errors import ApiError
from jaxscore.server.settings import Settings

OPEN_PATHS = ("/health",)
HERE = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(?::[0-9]*)?")


class Guard:
    """Stands before all endpoints."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._hosts = (*HERE, *(name.lower() for name in settings.allowed_hosts))
        self._checks_host = settings.loopback or bool(settings.allowed_hosts)
        self._key = None if settings.key is None else settings.key.encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Hand the request on, or refuse it."""
        headers = headers_of(scope)
        try:
            self._check_host(headers.get("host"))
            if scope["path"] not in OPEN_PATHS:
                self._check_key(headers.get("authorization", ""))
        except ApiError as problem:
            await refuse(send, problem)
            return
        await self._app(scope, receive, send)

    def _check_host(self, host: str | None) -> None:
        """A web page can have its own name lead to this machine; the header tells the name."""
        if self._checks_host and _without_port(host or "") not in self._hosts:
            raise ApiError(
                403,
                "the Host header names another machine; use localhost, or start the server with "
                "--allowed-hosts",
                code="host_not_allowed",
            )

    def _check_key(self, authorization: str) -> None:
        if self._key is None:
            return
        scheme, _, found = authorization.partition(" ")
        same = hmac.compare_digest(found.strip().encode("latin-1", "replace"), self._key)
        if scheme.lower() != "bearer" or not same:
            raise ApiError(
                401,
                "the key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


async def refuse(send: Any, problem: ApiError) -> None:
    """Answer with an error."""
    body = problem.body()
    headers = {"Content-Type": JSON, "Content-Length": str(len(body)), **problem.headers}
    pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _without_port(host: str) -> str:
    """The name in a Host header; empty where the header is not a name with an optional port."""
    match = _HOST.fullmatch(host.strip().lower())
    return match[1] if match else ""

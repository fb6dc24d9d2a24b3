"""The application: its paths, what stands before them, and what is counted."""

import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from jaxscore.server import about, chat, completions, scoring, tokenizing
from jaxscore.server.calls import JSON, NDJSON, Function
from jaxscore.server.endpoint import Endpoint
from jaxscore.server.errors import ApiError
from jaxscore.server.security import Guard, refuse
from jaxscore.server.service import Service

OTHER = "other"  # in metrics and logs: a request that reached no path
GET: Mapping[str, Function] = {
    "/health": about.health,
    "/metrics": about.metrics,
    "/tokenizer_info": tokenizing.tokenizer_info,
    "/v1/models": about.models,
    "/v1/models/{id:path}": about.model,
}
POST: Mapping[str, Function] = {
    "/detokenize": tokenizing.detokenize,
    "/jaxscore/label": scoring.label,
    "/jaxscore/score": scoring.score,
    "/tokenize": tokenizing.tokenize,
    "/v1/chat/completions": chat.chat,
    "/v1/completions": completions.complete,
}
LINES = ("/jaxscore/label", "/jaxscore/score")  # bodies may have a request in each line

# (method, path's pattern, status, seconds) -> nothing
Log = Callable[[str, str, int, float], None]


def app(service: Service, log: Log | None = None) -> Any:
    """The ASGI application."""
    routes = [Route(path, Endpoint(service, {"GET": one})) for path, one in GET.items()]
    routes += [
        Route(path, Endpoint(service, {"POST": one}, (JSON, NDJSON) if path in LINES else (JSON,)))
        for path, one in POST.items()
    ]
    inner: Any = Guard(Router(routes, redirect_slashes=False, default=_nowhere), service.settings)
    if service.settings.cors is not None:
        inner = CORSMiddleware(
            inner,
            allow_origins=[service.settings.cors],
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return Counted(inner, service, log)


class Counted:
    """Counts and logs every answer, without anything that a client wrote."""

    def __init__(self, inner: Any, service: Service, log: Log | None) -> None:
        self._inner, self._metrics, self._log = inner, service.metrics, log

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        started, status = time.perf_counter(), 0

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._inner(scope, receive, sending)
        finally:
            path = scope["route"].path if "route" in scope else OTHER
            seconds = time.perf_counter() - started
            if status:
                self._metrics.requests.labels(path, str(status)).inc()
                self._metrics.request_seconds.labels(path).observe(seconds)
            if self._log is not None:
                method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else OTHER
                self._log(method, path, status, seconds)


async def _nowhere(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    known = ", ".join(sorted([*GET, *POST]))
    await refuse(send, ApiError(404, f"no such path; there are {known}", code="no_such_path"))

"""The application: routes, checks before them, metrics and the log, and informational endpoints."""

import hmac
import re
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import orjson
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from jaxscore.server import (
    ApiError,
    Settings,
    completions,
    generative_scoring,
    invalid_field,
    page,
    scoring,
)
from jaxscore.server.endpoint import (
    JSON,
    Answer,
    Call,
    Endpoint,
    Handler,
    Response,
    check_framing,
    headers_of,
)
from jaxscore.server.request_models import (
    NDJSON,
    AnyServedRequest,
    DetokenizeRequest,
    TokenizeRequest,
    parse_object,
    validate,
)
from jaxscore.server.service import Service
from jaxscore.server.worker import METRICS_TYPE
from jaxscore.text.bounded_tokenizer import decode_ids

OTHER = "other"  # route of a request without a route, in metrics and the log
OPEN_PATHS = ("/", "/health")  # need no key; the page is the same for every model
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[^]]*\]|[^:]*)(?::[0-9]*)?")

Scope = MutableMapping[str, Any]
Log = Callable[[str, str, int, float], None]  # (method, route's pattern, status, seconds) -> None


def app(service: Service, log: Log | None = None) -> Any:
    """Return the ASGI application."""
    routes = [Route(path, Endpoint(service, {"GET": handler})) for path, handler in GET.items()]
    routes += [
        Route(path, Endpoint(service, {"POST": handler}, BODY_TYPES.get(path, (JSON,))))
        for path, handler in POST.items()
    ]
    inner: Any = Guard(Router(routes, redirect_slashes=False, default=_not_found), service.settings)
    if service.settings.cors is not None:
        inner = CORSMiddleware(
            inner,
            allow_origins=[service.settings.cors],
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    return Counted(inner, service, log)


class Counted:
    """Counts and logs every answer, without text from clients."""

    def __init__(self, inner: Any, service: Service, log: Log | None) -> None:
        self._inner, self._metrics, self._log = inner, service.metrics, log

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer one request."""
        started, status = time.perf_counter(), 0

        async def send_counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._inner(scope, receive, send_counted)
        finally:
            route = scope["route"].path if "route" in scope else OTHER
            seconds = time.perf_counter() - started
            if status:
                self._metrics.requests.labels(route, str(status)).inc()
                self._metrics.request_seconds.labels(route).observe(seconds)
            if self._log is not None:
                method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else OTHER
                self._log(method, route, status, seconds)


class Guard:
    """Checks the Host header and the key before all routes.

    All paths but `OPEN_PATHS` need the key if there is one, so routes added later do too.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self._app = app
        self._hosts = (*LOCAL_HOSTS, *(name.lower() for name in settings.allowed_hosts))
        self._checks_host = settings.loopback or bool(settings.allowed_hosts)
        self._key = None if settings.key is None else settings.key.encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass the request on, or refuse it."""
        headers = headers_of(scope)
        try:
            check_framing(headers)
            self._check_host(headers.get("host", ""))
            if scope["path"] not in OPEN_PATHS:
                self._check_key(headers.get("authorization", ""))
        except ApiError as error:
            await Response(send).send_error(error)
            return
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        """Refuse DNS rebinding: a web page whose host name resolves to this machine."""
        match = _HOST.fullmatch(host.strip().lower())
        if self._checks_host and (match is None or match[1] not in self._hosts):
            raise ApiError(
                403,
                "the Host header names another machine; use localhost, or start the server with "
                "--allowed-hosts",
                code="host_not_allowed",
            )

    def _check_key(self, authorization: str) -> None:
        if self._key is None:
            return
        scheme, _, key = authorization.partition(" ")
        is_equal = hmac.compare_digest(key.strip().encode("latin-1", "replace"), self._key)
        if scheme.lower() != "bearer" or not is_equal:
            raise ApiError(
                401,
                "the key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


async def _not_found(scope: Scope, receive: Any, send: Any) -> None:
    paths = ", ".join(sorted([*GET, *POST]))
    error = ApiError(404, f"no such path; there are {paths}", code="no_such_path")
    await Response(send).send_error(error)


async def list_models(call: Call) -> Answer:
    """List all names of the model."""
    models = [_describe_model(call.service, name) for name in call.service.settings.names]
    return _json({"object": "list", "data": models})


async def get_model(call: Call) -> Answer:
    """Describe the model under one of its names."""
    call.service.check_model(call.path["id"])
    return _json(_describe_model(call.service, call.path["id"]))


def _describe_model(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "jaxscore",
        "max_model_len": service.max_positions,
        "max_logprobs": service.settings.max_logprobs,
        "reproducible": service.scorer.reproducible,
    }


async def health(call: Call) -> Answer:
    """Report readiness from the event loop, so that the answer never waits for the worker.

    Raises:
        ApiError: 503, the model warms up, the worker died, or the server shuts down.
    """
    worker = call.service.worker
    if call.service.is_ending:
        raise ApiError(503, "the server is shutting down", code="ending")
    if not worker.ready.done():
        raise ApiError(503, "the model is being compiled; try again soon", code="starting")
    if not worker.is_alive:
        raise ApiError(503, "the worker has died; restart the server", code="dead")
    return _json({"status": "ready"})


async def metrics(call: Call) -> Answer:
    """Return the metrics for Prometheus."""
    return Answer(call.service.metrics.text(), METRICS_TYPE)


async def tokenize(call: Call) -> Answer:
    """Return the token ids of a text."""
    service = call.service
    request = await _read(call, TokenizeRequest)
    _check_length(service, "prompt", "characters", len(request.prompt))

    def encode() -> list[int]:
        [(ids, _)] = service.encoder.prompts(
            [request.prompt], special_tokens=request.add_special_tokens
        )
        return ids.tolist()

    ids = await service.run_in_thread(len(call.body), encode)
    return _json({"count": len(ids), "max_model_len": service.max_positions, "tokens": ids})


async def detokenize(call: Call) -> Answer:
    """Return the text of token ids, special tokens included, as transformers decodes it."""
    service = call.service
    ids = (await _read(call, DetokenizeRequest)).tokens
    _check_length(service, "tokens", "ids", len(ids))

    def checked_text() -> str:
        n_ids = service.scorer.model.vocab_size
        if (unknown := next((id for id in ids if not 0 <= id < n_ids), None)) is not None:
            message = f"tokens has {unknown}, expected ids from 0 to {n_ids - 1}"
            raise invalid_field("tokens", message)
        return decode_ids(service.encoder.tokenizer, ids)

    return _json({"prompt": await service.run_in_thread(len(call.body), checked_text)})


async def tokenizer_info(call: Call) -> Answer:
    """Return the special tokens and the chat template."""
    tokenizer = call.service.encoder.tokenizer
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokens = {name: getattr(tokenizer, name, None) for name in names}
    return _json(
        {
            "tokenizer_class": type(tokenizer).__name__,
            **{name: None if token is None else str(token) for name, token in tokens.items()},
            "add_bos_token": bool(call.service.encoder.prefix),
            "model_max_length": call.service.max_positions,
            "chat_template": tokenizer.chat_template,
        }
    )


async def _read(call: Call, model: type[AnyServedRequest]) -> AnyServedRequest:
    """Return the validated body of a request."""
    request = await call.service.run_in_thread(
        len(call.body), lambda: validate(model, parse_object(call.body))
    )
    call.service.check_model(request.model)
    return request


def _check_length(service: Service, field: str, unit: str, n: int) -> None:
    limit = service.max_characters(truncates=True)
    if n > limit:
        raise invalid_field(
            field, f"{field} has {n} {unit}, expected at most {limit}; send it in parts"
        )


def _json(value: Any) -> Answer:
    return Answer(orjson.dumps(value))


GET: Mapping[str, Handler] = {
    "/": page.get_page,
    "/health": health,
    "/metrics": metrics,
    "/tokenizer_info": tokenizer_info,
    "/v1/models": list_models,
    "/v1/models/{id:path}": get_model,
}
POST: Mapping[str, Handler] = {
    "/detokenize": detokenize,
    "/jaxscore/label": scoring.label,
    "/jaxscore/score": scoring.score,
    "/tokenize": tokenize,
    "/v1/chat/completions": completions.chat,
    "/v1/completions": completions.complete,
    "/v1/score": generative_scoring.score_labels,
}
BODY_TYPES = {"/jaxscore/label": (JSON, NDJSON), "/jaxscore/score": (JSON, NDJSON)}

"""What a server says of itself: models, health, metrics."""

import orjson

from jaxscore.server.calls import Answer, Call
from jaxscore.server.errors import ApiError
from jaxscore.server.metrics import CONTENT_TYPE
from jaxscore.server.service import Service


async def models(call: Call) -> Answer:
    """All names of the model."""
    listed = [_model(call.service, name) for name in call.service.settings.names]
    return Answer(orjson.dumps({"object": "list", "data": listed}))


async def model(call: Call) -> Answer:
    """One of them."""
    call.service.check_model(call.path["id"])
    return Answer(orjson.dumps(_model(call.service, call.path["id"])))


async def health(call: Call) -> Answer:
    """Whether requests are worked on; told by the event loop, so that it never waits.

    Raises:
        ApiError: 503, the model warms up, the worker has died, or the server ends.
    """
    worker = call.service.worker
    if call.service.ending:
        raise ApiError(503, "the server is ending", code="ending")
    if not worker.ready.done():
        raise ApiError(503, "the model is compiled; ask again in a moment", code="starting")
    if not worker.alive:
        raise ApiError(503, "the worker has died; start the server again", code="dead")
    return Answer(orjson.dumps({"status": "ready"}))


async def metrics(call: Call) -> Answer:
    """Counters for Prometheus."""
    return Answer(call.service.metrics.text(), CONTENT_TYPE)


def _model(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "jaxscore",
        "max_model_len": service.max_positions,
        "reproducible": service.scorer.reproducible,
    }

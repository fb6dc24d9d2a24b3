"""`POST /v1/completions`: log-probabilities of prompts, and texts after them."""

import functools
import time
import uuid

import orjson

from jaxscore.server.calls import EVENTS, Answer, Call, Stream
from jaxscore.server.completion_answer import choice, size, usage
from jaxscore.server.completion_choices import written
from jaxscore.server.completion_request import asked_of
from jaxscore.server.completion_streams import parts
from jaxscore.server.events import broken

DUMP = orjson.OPT_SERIALIZE_NUMPY


async def complete(call: Call) -> Answer | Stream:
    """Answer one request."""
    service = call.service
    asked = await service.apart(len(call.body), functools.partial(asked_of, service, call.body))
    head = {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": asked.fields["model"] or service.settings.names[0],
    }
    if asked.fields["stream"]:
        return Stream(parts(service, asked, head), EVENTS, broken)
    choices = await written(service, asked)

    def body() -> bytes:
        listed = [choice(service, asked, k, one) for k, one in enumerate(choices)]
        return orjson.dumps(
            {**head, "choices": listed, "usage": usage(asked, choices)}, option=DUMP
        )

    return Answer(await service.apart(sum(size(asked, one) for one in choices), body))

"""`POST /v1/chat/completions`: a model's answer to a conversation."""

import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from jaxscore.engine.generation.state import NOT_FINITE
from jaxscore.plan.requests import TokenSequence
from jaxscore.server import live, logprobs
from jaxscore.server.calls import EVENTS, Answer, Call, Stream
from jaxscore.server.chat_request import AskedChat, asked_of
from jaxscore.server.errors import not_finite, refused
from jaxscore.server.events import DONE, broken, event
from jaxscore.server.service import Service
from jaxscore.server.written import stop_at
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated


class Reply(NamedTuple):
    """One choice: its tokens, an EOS included, its text, and why it ended."""

    ids: list[int]
    text: str
    finish: str
    logprobs: dict[str, Any] | None = None


async def chat(call: Call) -> Answer | Stream:
    """Answer one request."""
    service = call.service
    # In a thread however short it is, since the chat template may take long.
    loop = asyncio.get_running_loop()
    asked = await loop.run_in_executor(service.chat_threads, asked_of, service, call.body)
    head = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": asked.fields["model"] or service.settings.names[0],
    }
    if asked.fields["stream"]:
        parts = _parts(service, asked, {**head, "object": "chat.completion.chunk"})
        return Stream(parts, EVENTS, broken)
    texts = await service.write(_requests(asked))
    replies = await _with_numbers(service, asked, [_reply(service, asked, one) for one in texts])
    choices = [
        {
            "index": k,
            "message": {"role": "assistant", "content": one.text},
            "logprobs": one.logprobs,
            "finish_reason": one.finish,
        }
        for k, one in enumerate(replies)
    ]
    body = {**head, "choices": choices, "usage": _usage(asked, replies)}
    size = sum(len(one.text) for one in replies)
    if asked.n_top is not None:
        size += logprobs.size(sum(len(one.ids) for one in replies), asked.n_top)
    dump = functools.partial(orjson.dumps, body, option=orjson.OPT_SERIALIZE_NUMPY)
    return Answer(await service.apart(size, dump))


async def _parts(
    service: Service, asked: AskedChat, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """The role of each choice, then its text, then why it ended."""
    with_usage = asked.fields["stream_options"].get("include_usage", False)
    replies: list[Reply] = []

    def told(index: int, delta: dict[str, str], finish: str | None = None, of: Any = None) -> bytes:
        one = {"index": index, "delta": delta, "logprobs": of, "finish_reason": finish}
        return event({**head, "choices": [one], **({"usage": None} if with_usage else {})})

    requests = _requests(asked)
    if asked.n_top is None:
        async with contextlib.aclosing(live.parts(service, requests)) as texts:
            begun: set[int] = set()
            async for part in texts:
                finish = None
                if part.whole is not None:
                    replies.append(_reply(service, asked, part.whole))
                    finish = replies[-1].finish
                if part.place not in begun:
                    begun.add(part.place)
                    yield told(part.place, {"role": "assistant", "content": ""})
                if part.text:
                    yield told(part.place, {"content": part.text})
                if finish:
                    yield told(part.place, {}, finish)
    else:  # numbers are those of whole texts
        whole = [_reply(service, asked, one) for one in await service.write(requests)]
        replies = await _with_numbers(service, asked, whole)
        for k, one in enumerate(replies):
            yield told(k, {"role": "assistant", "content": ""})
            yield told(k, {"content": one.text}, of=one.logprobs)
            yield told(k, {}, one.finish)
    if with_usage:
        yield event({**head, "choices": [], "usage": _usage(asked, replies)})
    yield DONE


def _requests(asked: AskedChat) -> list[GenerationRequest]:
    ids, n = asked.prompt.ids, asked.sampling.n
    return [asked.sampling.request(j, ids, j, asked.max_tokens) for j in range(n)]


def _reply(service: Service, asked: AskedChat, text: Generated) -> Reply:
    if text.error is not None:
        if text.error == NOT_FINITE:
            raise not_finite("the conversation")
        raise refused("messages", text.error)
    ids = text.token_ids.tolist()
    whole = service.token_bytes.joined(ids)
    own = whole[: stop_at(whole, asked.sampling.stop)]
    listed = ids if text.eos_id is None else [*ids, text.eos_id]
    return Reply(listed, own, "length" if text.finish == "length" else "stop")


async def _with_numbers(
    service: Service, asked: AskedChat, replies: Sequence[Reply]
) -> list[Reply]:
    """The replies with the numbers of their tokens, where they are asked for."""
    if asked.n_top is None:
        return list(replies)
    before, n_top = asked.prompt.ids, asked.n_top
    sequences = [
        TokenSequence(np.concatenate([before, np.array(one.ids, np.int32)]), len(before))
        for one in replies
    ]
    found = await service.score([(one,) for one in sequences], n_top)
    out = []
    for one, sequence, [scores] in zip(replies, sequences, found, strict=True):
        own = logprobs.numbers(sequence.ids, scores, n_top, "the answer")
        made = functools.partial(logprobs.of_chat, service.token_bytes, own)
        content = await service.apart(logprobs.size(len(own.ids), n_top), made)
        out.append(one._replace(logprobs={"content": content}))
    return out


def _usage(asked: AskedChat, replies: Sequence[Reply]) -> dict[str, int]:
    given, written = len(asked.prompt.ids), sum(len(one.ids) for one in replies)
    return {
        "prompt_tokens": given,
        "completion_tokens": written,
        "total_tokens": given + written,
    }

"""A completion in parts, which add up to the answer in one piece.

Texts come as they are written. Where log-probabilities are asked for, each choice comes in one
part when its text is finished: its numbers are those of the forest, which scores whole texts.
"""

import contextlib
import functools
from collections.abc import AsyncGenerator
from typing import Any

from jaxscore.server import live
from jaxscore.server.completion_answer import choice, size, usage
from jaxscore.server.completion_choices import Written, of_text, written
from jaxscore.server.completion_request import Asked
from jaxscore.server.events import DONE, event
from jaxscore.server.service import Service


async def parts(
    service: Service, asked: Asked, head: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    """Server-sent events."""
    with_usage = asked.fields["stream_options"].get("include_usage", False)
    choices: list[Written] = []

    def told(some: list[dict[str, Any]], **more: Any) -> bytes:
        return event({**head, "choices": some, **({"usage": None} if with_usage else {}), **more})

    if asked.n_top is not None or asked.one_greedy or not asked.fields["max_tokens"]:
        choices = await written(service, asked)
        for k, one in enumerate(choices):
            made = functools.partial(choice, service, asked, k, one)
            yield told([await service.apart(size(asked, one), made)])
    else:
        n = asked.sampling.n
        if asked.fields["echo"]:
            for k in range(n * len(asked.prompts)):
                yield told([_part(k, asked.prompts[k // n].text)])
        async with contextlib.aclosing(live.parts(service, asked.requests())) as texts:
            async for part in texts:
                finish = None
                if part.whole is not None:
                    choices.append(of_text(service, asked, part.place, part.whole))
                    finish = choices[-1].finish
                if part.text or finish:
                    yield told([_part(part.place, part.text, finish)])
    if with_usage:
        yield told([], usage=usage(asked, choices))
    yield DONE


def _part(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}

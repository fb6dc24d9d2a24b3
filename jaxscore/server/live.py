"""Texts while they are written, from the worker's thread to the event loop."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from jaxscore.server.service import Service
from jaxscore.server.written import GrowingText
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated


class Part(NamedTuple):
    """What was written of one text since the last part.

    Attributes:
        place: which text.
        text: may be empty.
        whole: the finished text in its last part; else None.
    """

    place: int
    text: str
    whole: Generated | None


async def parts(
    service: Service, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[Part, None]:
    """Parts of all texts as they come; those of one text in order, joined the text itself."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[int, list[int] | Generated] | None] = asyncio.Queue()
    texts = [GrowingText(service.token_bytes, one.stop) for one in requests]

    def watch(place: int, found: list[int] | Generated) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, (place, found))

    writing = asyncio.ensure_future(service.write(requests, watch))
    writing.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        while (one := await arrived.get()) is not None:
            place, found = one
            text = texts[place]
            if isinstance(found, Generated):
                ids = found.token_ids[text.n_ids :].tolist()
                yield Part(place, text.part(ids, ended=True), found)
            else:
                yield Part(place, text.part(found, ended=False), None)
        await writing  # an error of the worker
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

"""Texts through a scorer: each item with its result, in order, unusable items among them."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from jaxscore.systems.score.given_items import Unread
from jaxscore.systems.score.requests_file import Line
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, failed


def scored_items(
    run: ScoringRun, lines: Iterable[Line | Unread], n_requests: int | None, **wanted: Any
) -> Iterator[tuple[Line | Unread, ScoredRequest]]:
    """Each item and its result; that of an item that cannot be used holds the error alone.

    Args:
        lines: as of `given_items.read`.
        n_requests: how many there are, where it is known: for the time left.
        wanted: as of `ScoringRun.stream`.
    """
    waiting: deque[Line | Unread] = deque()

    def requests() -> Iterator[Request]:
        for line in lines:
            waiting.append(line)
            if isinstance(line, Line):
                yield line.request

    for scored in run.stream(requests(), n_requests=n_requests, **wanted):
        while isinstance(line := waiting.popleft(), Unread):
            yield line, failed(line.id, line.error)
        yield line, scored
    for line in waiting:
        assert isinstance(line, Unread)  # every other one has had its result
        yield line, failed(line.id, line.error)

"""Which requests for text are written side by side, in caches of which length."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from jaxscore.plan.requests import TokenRequest
from jaxscore.plan.row_batches import SHORTEST_ROW

GROUPS = (1, 8, 32, 128, 256)  # requests decoded side by side
SHORTEST_PREFIX = 64  # tokens; a shorter one, or one for a single group, saves too little


@dataclasses.dataclass(frozen=True)
class DecodeGroup:
    """Requests side by side in a cache of [`rows`, `slots`].

    Attributes:
        slots: tokens that each row of the cache can hold.
        least_rows: of the cache, whatever the number of requests.
        members: the requests, by their place.
    """

    slots: int
    least_rows: int
    members: list[int]

    @property
    def rows(self) -> int:
        return next(n for n in GROUPS if n >= max(self.least_rows, len(self.members)))


def group_requests(
    requests: Sequence[TokenRequest],
    shared: int,
    fits: Callable[[int, int], bool],
    most_rows: int,
) -> list[DecodeGroup]:
    """Requests side by side whose caches are of like length, alike prompts together.

    The longest come first. One joins those before it where it fills a quarter of their cache's
    length, and where they are full another such cache follows if it fills half of one: few
    shapes are compiled, and no cache is mostly empty. A length that lets more requests go side
    by side is always a new one.

    Args:
        requests: distinct; their order has no effect.
        shared: tokens that all prompts begin with and no cache holds.
        fits: whether a cache may have so many rows and slots; a single row always may.
        most_rows: of a cache.
    """

    def most(slots: int) -> int:
        sizes = [n for n in GROUPS if n <= most_rows]
        return max(n for n in sizes if n == 1 or fits(n, slots))

    def rank(place: int) -> tuple[int, bytes, bytes]:
        request = requests[place]
        return -_slots(request, shared), request.ids.astype(">u4").tobytes(), request.digest()

    out: list[DecodeGroup] = []
    for place in sorted(range(len(requests)), key=rank):
        need = _slots(requests[place], shared)
        size = out[-1].slots if out else 0
        if not out or need * 4 < size or most(need) > most(size):
            out.append(DecodeGroup(need, 1, []))
        elif len(out[-1].members) == most(size):
            out.append(
                DecodeGroup(size, most(size), []) if need * 2 >= size else DecodeGroup(need, 1, [])
            )
        out[-1].members.append(place)
    return out


def group_by_cache_shape(groups: Sequence[DecodeGroup]) -> list[list[DecodeGroup]]:
    """Runs of groups whose caches have one shape: their texts take turns in the rows of one."""
    runs = itertools.groupby(groups, key=lambda group: (group.slots, group.rows))
    return [list(run) for _, run in runs]


def one_group_each(requests: Sequence[TokenRequest]) -> list[DecodeGroup]:
    """A cache for each request, of a length that depends on that request alone."""
    return [DecodeGroup(_slots(request, 0), 1, [place]) for place, request in enumerate(requests)]


def shared_prefix_length(requests: Sequence[TokenRequest], most_rows: int) -> int:
    """How many tokens that all prompts begin with are worth computing once for all groups."""
    if len(requests) <= min(most_rows, GROUPS[-1]):
        return 0
    n = _common_prefix([request.ids for request in requests])
    return 0 if n < SHORTEST_PREFIX else n


def _common_prefix(prompts: Sequence[np.ndarray]) -> int:
    """Tokens that all begin with, their last ones left out."""
    n = min(map(len, prompts)) - 1
    first = prompts[0][:n]
    for ids in prompts[1:]:
        differs = np.flatnonzero(ids[:n] != first[:n])
        n = int(differs[0]) if len(differs) else n
    return n


def _slots(request: TokenRequest, shared: int) -> int:
    # The prompt's last token is fed first and the last one written never is.
    return power_of_two(len(request.ids) - shared + request.n_new - 2)


def power_of_two(n: int) -> int:
    """The power of two that holds n, a row at least."""
    return max(SHORTEST_ROW, 1 << (max(n, 1) - 1).bit_length())


T = TypeVar("T")

SHARE = 8  # one of so many rows is filled at a time; each filling is a few programs


def refill_size(n_rows: int) -> int:
    """Rows that are filled at a time, of a cache of so many; as many are free before any is."""
    return max(1, n_rows // SHARE)


class SlotSchedule(Generic[T]):
    """The rows of a lane's cache, and the texts that wait for one.

    Invariant: the row and the block in which a text begins depend on the number of rows, on the
    order of the texts and on how many blocks each takes. They depend neither on time nor on which
    of the texts are known from an earlier run. So a run that skips the blocks in which no text is
    written gives every other text its row in an uninterrupted run. This does not hold after an
    abandoned text: nobody knows how many blocks it would have taken.
    """

    def __init__(self, waiting: Iterable[tuple[T, int | None]], n_rows: int) -> None:
        """`waiting` has each text, in planned order, and the number of blocks that it takes, None
        where that is unknown. A text with a known number keeps a row for so many blocks, and
        `begin` does not return it. `waiting` is read no further than rows are free."""
        self._waiting: Iterator[tuple[T, int | None]] = iter(waiting)
        self._free = list(range(n_rows))
        self._least = refill_size(n_rows)
        self._written: set[int] = set()  # rows of texts of unknown length
        self._known: dict[int, int] = {}  # row -> blocks that a known text still takes

    def begin(self) -> list[tuple[int, T]]:
        """Begin a block.

        Returns:
            Rows, ascending, with the texts that are to be written in them from this block on.
        """
        out: list[tuple[int, T]] = []
        if len(self._free) < self._least:
            return out
        for row, (text, n_blocks) in zip(tuple(self._free), self._waiting, strict=False):
            self._free.remove(row)
            if n_blocks is None:
                self._written.add(row)
                out.append((row, text))
            else:
                self._known[row] = n_blocks
        return out

    def end(self, rows: Iterable[int]) -> None:
        """End the block; the texts in these rows have ended, beside those that are known to."""
        self._known = {row: n - 1 for row, n in self._known.items()}
        known = [row for row, n in self._known.items() if n <= 0]
        for row in known:
            del self._known[row]
        given = set(rows)
        self._written -= given
        self._free = sorted({*self._free, *known, *given})

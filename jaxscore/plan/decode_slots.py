"""Continuous batching: which prompts share a cache, and which of its slots each text gets.

A cache has a few slots, one text each, and a capacity in tokens. When a text has finished, the
next one starts in its slot, one block of steps after the other:

    block    0  1  2  3      texts a to f wait in planned order; "." is a free slot
    slot 0   a  a  e  e
    slot 1   b  d  d  .
    slot 2   c  c  c  f
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from jaxscore.plan.requests import TokenRequest
from jaxscore.plan.row_batches import power_of_two

T = TypeVar("T")

GROUPS = (1, 8, 32, 128, 256)  # slots of a cache
SHORTEST_PREFIX = 64  # tokens; a shorter prefix, or one for a single group, saves too little
SHARE = 8  # one in so many slots is filled at a time; each filling runs a few programs


@dataclasses.dataclass(frozen=True)
class DecodeGroup:
    """Prompts that are continued in caches of one shape, [`n_slots`, `capacity`].

    Attributes:
        capacity: tokens that each slot can hold.
        least_slots: least slots of the cache, whatever the number of prompts.
        members: indices of the requests.
    """

    capacity: int
    least_slots: int
    members: list[int]

    @property
    def n_slots(self) -> int:
        return next(n for n in GROUPS if n >= max(self.least_slots, len(self.members)))


def group_requests(
    requests: Sequence[TokenRequest],
    shared: int,
    fits: Callable[[int, int], bool],
    most_slots: int,
) -> list[DecodeGroup]:
    """Group prompts that need caches of similar capacity, similar prompts together.

    The longest come first. A prompt joins the group before it if it fills a quarter of that
    group's capacity. If that group is full, another one of its shape follows if the prompt fills
    half of the capacity. So few shapes are compiled, and no cache is mostly empty. A shorter
    capacity that allows more slots always starts a new group.

    Args:
        requests: distinct; their order has no effect.
        shared: tokens of the prefix cache of all prompts, which no slot holds.
        fits: whether a cache may have this many slots of this capacity; one slot always may.
        most_slots: of a cache.
    """

    def most(capacity: int) -> int:
        sizes = [n for n in GROUPS if n <= most_slots]
        return max(n for n in sizes if n == 1 or fits(n, capacity))

    def rank(index: int) -> tuple[int, bytes, bytes]:
        request = requests[index]
        ids = request.ids.astype(">u4").tobytes()
        return -_capacity(request, shared), ids, request.digest()

    groups: list[DecodeGroup] = []
    for index in sorted(range(len(requests)), key=rank):
        need = _capacity(requests[index], shared)
        capacity = groups[-1].capacity if groups else 0
        if not groups or need * 4 < capacity or most(need) > most(capacity):
            groups.append(DecodeGroup(need, 1, []))
        elif len(groups[-1].members) == most(capacity):
            is_similar = need * 2 >= capacity
            capacity, least = (capacity, most(capacity)) if is_similar else (need, 1)
            groups.append(DecodeGroup(capacity, least, []))
        groups[-1].members.append(index)
    return groups


def group_by_cache_shape(groups: Sequence[DecodeGroup]) -> list[list[DecodeGroup]]:
    """Consecutive groups with caches of one shape: their texts use the slots of one cache."""
    runs = itertools.groupby(groups, key=lambda group: (group.capacity, group.n_slots))
    return [list(run) for _, run in runs]


def one_group_each(requests: Sequence[TokenRequest]) -> list[DecodeGroup]:
    """A cache for each request, of a capacity that depends on that request alone."""
    return [DecodeGroup(_capacity(request, 0), 1, [k]) for k, request in enumerate(requests)]


def shared_prefix_length(requests: Sequence[TokenRequest], most_slots: int) -> int:
    """Length of the prefix of all prompts that is worth computing once for all groups, or 0.

    The last token of a prompt is never part of it.
    """
    if len(requests) <= min(most_slots, GROUPS[-1]):
        return 0
    n = min(len(request.ids) for request in requests) - 1
    first = requests[0].ids[:n]
    for request in requests[1:]:
        differs = np.flatnonzero(request.ids[:n] != first[:n])
        n = int(differs[0]) if len(differs) else n
    return 0 if n < SHORTEST_PREFIX else n


def _capacity(request: TokenRequest, shared: int) -> int:
    # The first step reads the prompt's last token, and no step reads the last generated one.
    return power_of_two(len(request.ids) - shared + request.n_new - 2)


def refill_size(n_slots: int) -> int:
    """Slots that are filled at a time. As many are free before any is filled."""
    return max(1, n_slots // SHARE)


class SlotSchedule(Generic[T]):
    """Assigns texts to the slots of a cache.

    Invariant: the slot and the block in which a text starts depend on the number of slots, on
    the order of the texts and on how many blocks each takes. They depend neither on time nor on
    which of the texts are known from an earlier run. So a run that skips the blocks in which
    every text is known gives every other text the slot of an uninterrupted run. This does not
    hold after an abandoned text, whose number of blocks is unknown.
    """

    def __init__(self, waiting: Iterable[tuple[T, int | None]], n_slots: int) -> None:
        """Start with free slots.

        Args:
            waiting: texts in planned order, each with the number of blocks that it takes, or
                None if that is unknown. A text with a known number occupies a slot for so many
                blocks, and `begin` does not return it. Read no further than slots are free.
        """
        self._waiting: Iterator[tuple[T, int | None]] = iter(waiting)
        self._free = list(range(n_slots))
        self._least = refill_size(n_slots)
        self._known: dict[int, int] = {}  # slot -> blocks that a known text still takes

    def begin(self) -> list[tuple[int, T]]:
        """Begin a block.

        Returns:
            Slots, ascending, with the texts to generate in them from this block on.
        """
        started: list[tuple[int, T]] = []
        if len(self._free) < self._least:
            return started
        for slot, (text, n_blocks) in zip(tuple(self._free), self._waiting, strict=False):
            self._free.remove(slot)
            if n_blocks is None:
                started.append((slot, text))
            else:
                self._known[slot] = n_blocks
        return started

    def end(self, finished: Iterable[int]) -> None:
        """End a block.

        Args:
            finished: slots of the texts that `begin` returned and that have finished.
        """
        self._known = {slot: n - 1 for slot, n in self._known.items()}
        known = [slot for slot, n in self._known.items() if n <= 0]
        for slot in known:
            del self._known[slot]
        self._free = sorted({*self._free, *known, *finished})

"""Continuous batching: grouping of prompts by cache, and assignment of texts to cache slots.

A cache has a few slots, one text each, and a capacity in tokens. Generation runs in blocks of
steps. When a text has finished, the next text starts in its slot at the start of a block:

    block    0  1  2  3      texts a to f start in planned order; "." is a free slot
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

GROUPS = (1, 8, 32, 128, 256)  # allowed numbers of slots of a cache
SHORTEST_PREFIX = 64  # tokens; a shorter prefix, or one for a single group, saves too little
SHARE = 8  # an eighth of the slots is refilled at a time; each refill runs a few programs


@dataclasses.dataclass(frozen=True)
class DecodeGroup:
    """Prompts that are continued in caches of one shape, [`n_slots`, `capacity`].

    Attributes:
        capacity: number of tokens that each slot can hold.
        min_slots: minimum number of slots of the cache, even with fewer prompts.
        members: indices of the requests.
    """

    capacity: int
    min_slots: int
    members: list[int]

    @property
    def n_slots(self) -> int:
        return next(n for n in GROUPS if n >= max(self.min_slots, len(self.members)))


def group_requests(
    requests: Sequence[TokenRequest],
    shared: int,
    fits: Callable[[int, int], bool],
    max_slots: int,
) -> list[DecodeGroup]:
    """Group prompts that need caches of similar capacity, similar prompts together.

    Prompts are taken from the longest to the shortest. A prompt joins the last group if it fills at
    least a quarter of that group's capacity. If that group is full, a new group of the same shape
    starts if the prompt fills at least half of the capacity. This compiles few shapes, and no cache
    is mostly empty. If a smaller capacity allows more slots, the prompt always starts a new group.

    Args:
        requests: distinct requests; their order does not matter.
        shared: number of tokens in the prefix cache of all prompts, which are in no slot.
        fits: predicate of (slots, capacity): True if a cache may have this shape. It is not asked
            about a single slot, which is always allowed.
        max_slots: maximum number of slots of a cache.
    """

    def slots_for(capacity: int) -> int:
        sizes = [n for n in GROUPS if n <= max_slots]
        return max(n for n in sizes if n == 1 or fits(n, capacity))

    def rank(index: int) -> tuple[int, bytes, bytes]:
        request = requests[index]
        ids = request.ids.astype(">u4").tobytes()
        return -_capacity(request, shared), ids, request.digest()

    groups: list[DecodeGroup] = []
    for index in sorted(range(len(requests)), key=rank):
        needed = _capacity(requests[index], shared)
        capacity = groups[-1].capacity if groups else 0
        if not groups or needed * 4 < capacity or slots_for(needed) > slots_for(capacity):
            groups.append(DecodeGroup(needed, 1, []))
        elif len(groups[-1].members) == slots_for(capacity):
            is_similar = needed * 2 >= capacity
            capacity, min_slots = (capacity, slots_for(capacity)) if is_similar else (needed, 1)
            groups.append(DecodeGroup(capacity, min_slots, []))
        groups[-1].members.append(index)
    return groups


def group_by_cache_shape(groups: Sequence[DecodeGroup]) -> list[list[DecodeGroup]]:
    """Collect consecutive groups with caches of the same shape; their texts share one cache."""
    runs = itertools.groupby(groups, key=lambda group: (group.capacity, group.n_slots))
    return [list(run) for _, run in runs]


def one_group_each(requests: Sequence[TokenRequest]) -> list[DecodeGroup]:
    """Return a group for each request, with a capacity that depends on that request alone."""
    return [DecodeGroup(_capacity(request, 0), 1, [k]) for k, request in enumerate(requests)]


def shared_prefix_length(requests: Sequence[TokenRequest], max_slots: int) -> int:
    """Return the length of the common prefix to compute once for all groups, or 0 for none.

    The prefix never includes the last token of a prompt.
    """
    if len(requests) <= min(max_slots, GROUPS[-1]):
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
    """Return the number of slots that are refilled at a time, once that many are free."""
    return max(1, n_slots // SHARE)


class SlotSchedule(Generic[T]):
    """Assigns texts to the slots of a cache.

    Invariant: the slot and the block in which a text starts depend on the number of slots, the
    order of the texts and the number of blocks of each text. They depend neither on time nor on
    which texts an earlier run has finished. A resumed run therefore assigns the same slots as an
    uninterrupted run, although it skips blocks in which all texts are finished. This does not
    hold after an abandoned text, whose number of blocks is unknown.
    """

    def __init__(self, waiting: Iterable[tuple[T, int | None]], n_slots: int) -> None:
        """Start with free slots.

        Args:
            waiting: texts in planned order, each with its number of blocks if an earlier run has
                finished it, otherwise None. A finished text occupies a slot for that many blocks,
                and `begin` does not return it. An item is read only when a slot is free.
        """
        self._waiting: Iterator[tuple[T, int | None]] = iter(waiting)
        self._free = list(range(n_slots))
        self._refill_size = refill_size(n_slots)
        self._blocks_left: dict[int, int] = {}  # slot of a finished text -> blocks that it occupies

    def begin(self) -> list[tuple[int, T]]:
        """Begin a block.

        Returns:
            Slots in ascending order, each with the text to generate in it from this block on.
        """
        started: list[tuple[int, T]] = []
        if len(self._free) < self._refill_size:
            return started
        for slot, (text, n_blocks) in zip(tuple(self._free), self._waiting, strict=False):
            self._free.remove(slot)
            if n_blocks is None:
                started.append((slot, text))
            else:
                self._blocks_left[slot] = n_blocks
        return started

    def end(self, finished: Iterable[int]) -> None:
        """End a block.

        Args:
            finished: slots of texts that `begin` returned and that finished in this block.
        """
        self._blocks_left = {slot: n - 1 for slot, n in self._blocks_left.items()}
        released = [slot for slot, n in self._blocks_left.items() if n <= 0]
        for slot in released:
            del self._blocks_left[slot]
        self._free = sorted({*self._free, *released, *finished})

"""Which requests for text are written side by side, in caches of which length."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxscore.engine.writing import Writing
from jaxscore.journal import row_format
from jaxscore.plan.packing import SHORTEST_ROW

GROUPS = (1, 8, 32)  # requests decoded side by side
SHORTEST_TRUNK = 64  # tokens; a shorter one, or one for a single group, saves too little


@dataclasses.dataclass(frozen=True)
class Group:
    """Requests side by side in a cache of [`rows`, `slots`]."""

    slots: int
    least_rows: int
    members: list[Writing]

    @property
    def ended(self) -> bool:
        return all(one.ended for one in self.members)

    @property
    def rows(self) -> int:
        return next(n for n in GROUPS if n >= max(self.least_rows, len(self.members)))


def groups(waiting: Sequence[Writing], shared: int, most_slots: int) -> list[Group]:
    """Requests side by side whose caches are of like length, alike prompts together.

    The longest come first. One joins those before it where it fills a quarter of their cache's
    length, and where they are full another such cache follows if it fills half of one: few
    shapes are compiled, and no cache is mostly empty. A length that lets more requests go side
    by side is always a new one.

    Args:
        waiting: distinct requests; their order has no effect.
        shared: tokens that all prompts begin with and no cache holds.
        most_slots: of all rows of a cache together, unless it has a single one.
    """

    def most(slots: int) -> int:
        return max(n for n in GROUPS if n == 1 or n * slots <= most_slots)

    def rank(one: Writing) -> tuple[int, bytes, bytes]:
        ids = one.request.ids.astype(">u4").tobytes()
        return -_slots(one, shared), ids, row_format.text_key(one.request)

    out: list[Group] = []
    for one in sorted(waiting, key=rank):
        need = _slots(one, shared)
        size = out[-1].slots if out else 0
        if not out or need * 4 < size or most(need) > most(size):
            out.append(Group(need, 1, []))
        elif len(out[-1].members) == most(size):
            out.append(Group(size, most(size), []) if need * 2 >= size else Group(need, 1, []))
        out[-1].members.append(one)
    return out


def each_alone(waiting: Sequence[Writing]) -> list[Group]:
    """A cache for each request, of a length that depends on that request alone."""
    return [Group(_slots(one, 0), 1, [one]) for one in waiting]


def trunk_length(waiting: Sequence[Writing]) -> int:
    """How many tokens that all prompts begin with are worth a trunk."""
    if len(waiting) <= GROUPS[-1]:
        return 0
    n = _common_prefix([one.request.ids for one in waiting])
    return 0 if n < SHORTEST_TRUNK else n


def _common_prefix(prompts: Sequence[np.ndarray]) -> int:
    """Tokens that all begin with, their last ones left out."""
    n = min(map(len, prompts)) - 1
    first = prompts[0][:n]
    for ids in prompts[1:]:
        differs = np.flatnonzero(ids[:n] != first[:n])
        n = int(differs[0]) if len(differs) else n
    return n


def _slots(one: Writing, shared: int) -> int:
    # The prompt's last token is fed first and the last one written never is.
    return power(len(one.request.ids) - shared + one.request.n_new - 2)


def power(n: int) -> int:
    """The power of two that holds n, a row at least."""
    return max(SHORTEST_ROW, 1 << (max(n, 1) - 1).bit_length())

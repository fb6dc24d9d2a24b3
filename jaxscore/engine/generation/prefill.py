"""Prompts of a group as batches of tries, whose keys and values wait until rows are free.

A batch holds prompts of one group alone, and which ones depends on that group alone. So its
arrays are the same whichever rows its prompts go to, and whether or not a run was interrupted.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.decoder import KeysValues
from jaxscore.device.sharding import KEYS_VALUES
from jaxscore.engine.generation.state import Writing
from jaxscore.engine.planner import Planner
from jaxscore.engine.programs import Variant, keys_and_values
from jaxscore.engine.progress import Progress
from jaxscore.models.model import Cached
from jaxscore.plan import packing
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.row_batches import TAIL, RowBatch, power_of_two
from jaxscore.plan.tries import Forest, build_forest

MOST_PREFILL = 4096  # tokens in each batch of prompts, whose keys and values are all kept
LONG_ROW = 1024  # prompts that fill one are laid out in such rows, short ones in shorter rows


@dataclasses.dataclass(frozen=True)
class Prefill:
    """What computes prompts: a model, and what all prompts begin with.

    Attributes:
        shared: tokens that all prompts begin with, whose keys and values are in `prefix`.
        prefix: none where `shared` is 0.
    """

    variant: Variant
    planner: Planner
    shared: int
    prefix: tuple[KVCache, ...]
    progress: Progress

    @property
    def prefix_slots(self) -> int:
        """Of the cache that holds the prefix."""
        return self.prefix[0].key.shape[3] if self.prefix else 0

    def prompts(self, group: Sequence[Writing]) -> Iterator["Prompt"]:
        """Each text of a group with its prompt, batch after batch; nothing is computed yet.

        A batch's keys and values live as long as one of its prompts: none is held here.
        """
        rest = [one.request.ids[self.shared :] for one in group]
        forest = build_forest([TokenSequence(ids, len(ids) - 1) for ids in rest])
        edges: dict[int, list[int]] = {}  # what each answers, several where prompts are equal
        for k, (a, b) in enumerate(zip(forest.offsets, forest.offsets[1:], strict=False)):
            if b > a:
                edges.setdefault(int(forest.edge_of[a]), []).append(k)
        nothing = Batch(self, None)
        waiting = deque(
            Prompt(one, nothing, None)
            for one, ids in zip(group, rest, strict=True)
            if len(ids) == 1  # the last token is fed with the first step
        )
        del nothing
        while waiting:
            yield waiting.popleft()
        for batch in self._plan(forest, max(map(len, rest)) - 1).batches():
            waiting.extend(self._of_batch(batch, edges, group))
            while waiting:
                yield waiting.popleft()

    def _of_batch(
        self, batch: RowBatch, edges: dict[int, list[int]], group: Sequence[Writing]
    ) -> list["Prompt"]:
        asked, own = batch.scored, Batch(self, batch)
        found = [
            (k, int(asked.query[slot]))
            for slot, edge in zip(asked.slot, asked.edge, strict=False)
            for k in edges.get(int(edge), ())
        ]
        return [Prompt(group[k], own, query) for k, query in sorted(found)]

    def _plan(self, forest: Forest, longest: int) -> packing.PackedRows:
        """Rows for the prompts of a group, in few shapes: each is a program, and seconds."""
        n_tokens = forest.n_nodes
        budget = min(self.planner.batch_tokens, MOST_PREFILL)
        if self.planner.reproducible:  # one prompt in one row
            length = budget = power_of_two(longest)
        else:
            length = power_of_two(max(longest, LONG_ROW if n_tokens > LONG_ROW else 1))
            budget = budget if 2 * n_tokens > budget else budget // TAIL
        return packing.pack_uniform_rows(forest, row_length=length, batch_tokens=budget)


class Batch:
    """Prompts whose keys and values one program gives, computed when the first one is needed."""

    def __init__(self, prefill: Prefill, rows: RowBatch | None) -> None:
        """`rows` is None for prompts of a single token, which have none."""
        self._prefill, self._rows = prefill, rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and row length."""
        return (1, 1) if self._rows is None else self._rows.shape

    def path(self, query: int) -> np.ndarray:
        """Indices in the flattened rows of a token's path, from its root to itself."""
        assert self._rows is not None
        row, column = divmod(query, self.shape[1])
        seen = np.flatnonzero(self._rows.subtree_end[row, : column + 1] > column)
        return row * self.shape[1] + seen

    @functools.cached_property
    def kept(self) -> KeysValues:
        """Of all tokens, [layers, rows, K, length, H]; zeros where there are none."""
        variant, prefix = self._prefill.variant, self._prefill.prefix
        if self._rows is None:
            return empty_cache(variant, 1, 1, self._prefill.progress)
        at = self._rows.position + self._prefill.shared
        arrays = variant.programs.put((self._rows.ids, at, self._rows.subtree_end))
        kept: KeysValues = variant.programs.run(
            ("prefill", *self.shape, self._prefill.prefix_slots),
            keys_and_values(cached(variant)),
            (variant.model.params, *arrays, *prefix),
            self._prefill.progress,
            outputs=KEYS_VALUES,
        )
        return kept


class Prompt(NamedTuple):
    """A text, and where its prompt's keys and values come from.

    `query` is the last of their tokens in the batch's flattened rows; None where there are none.
    """

    text: Writing
    batch: Batch
    query: int | None

    @property
    def path(self) -> np.ndarray:
        """Tokens of the batch, in order: the prompt without its last one."""
        return np.zeros(0, np.int64) if self.query is None else self.batch.path(self.query)


def cached(variant: Variant) -> Cached:
    """What a model has that writes texts side by side; transformers' classes do not."""
    own = variant.model.cached
    assert own is not None
    return own


def empty_cache(variant: Variant, rows: int, slots: int, progress: Progress) -> KeysValues:
    """Keys and values of all layers, zeros, [layers, rows, K, slots, H]."""
    kept: KeysValues = variant.programs.run(
        ("empty cache", rows, slots),
        functools.partial(cached(variant).empty_cache, rows, slots),
        (),
        progress,
        outputs=KEYS_VALUES,
    )
    return kept

"""Prefill: keys and values of a group's prompts, computed as packed tries, batch by batch.

A batch holds prompts of one group, and the group alone determines which ones. Its arrays are
therefore independent of the rows that its prompts get, and of an interruption of the run.
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
from jaxscore.engine.generation.state import TextState
from jaxscore.engine.planner import Planner
from jaxscore.engine.programs import Variant, keys_and_values, put_paths
from jaxscore.engine.progress import Progress
from jaxscore.models.model import Cached
from jaxscore.plan import packing
from jaxscore.plan.chunks import plan_paths
from jaxscore.plan.decode_slots import GROUPS
from jaxscore.plan.requests import TokenSequence
from jaxscore.plan.row_batches import TAIL, RowBatch, power_of_two
from jaxscore.plan.tries import Forest, build_forest

MOST_PREFILL = 4096  # maximum tokens of a prompt batch; their keys and values stay on the device
LONG_ROW = 1024  # minimum row length of prompt batches with more tokens than this


@dataclasses.dataclass(frozen=True)
class Prefill:
    """Prefill settings of one model variant.

    Attributes:
        shared: number of tokens in the common prefix, whose keys and values are in `prefix`.
        prefix: prefix cache; empty if `shared` is 0.
    """

    variant: Variant
    planner: Planner
    shared: int
    prefix: tuple[KVCache, ...]
    progress: Progress

    @property
    def prefix_slots(self) -> int:
        """Number of slots of the prefix cache, 0 without one."""
        return self.prefix[0].key.shape[3] if self.prefix else 0

    def prompts(self, group: Sequence[TextState]) -> Iterator["Prompt"]:
        """Yield the prompt of each text of a group, batch by batch, without computing it.

        Keys and values of a batch are freed with its last prompt: this generator does not keep a
        reference.
        """
        rest = [state.request.ids[self.shared :] for state in group]
        forest = build_forest([TokenSequence(ids, len(ids) - 1) for ids in rest])
        members: dict[int, list[int]] = {}  # edge -> texts; equal prompts share an edge
        for k, (start, end) in enumerate(zip(forest.offsets, forest.offsets[1:], strict=False)):
            if end > start:
                members.setdefault(int(forest.edge_of[start]), []).append(k)
        empty = PromptBatch(self, None)
        waiting = deque(
            Prompt(state, empty, None)
            for state, ids in zip(group, rest, strict=True)
            if len(ids) == 1  # a prompt's last token is read in the first step
        )
        del empty
        while waiting:
            yield waiting.popleft()
        n_states = next(n for n in GROUPS if n >= len(group))
        for rows in self._plan(forest, max(map(len, rest)) - 1).batches():
            scored, batch = rows.scored, PromptBatch(self, rows, n_states)
            ends = sorted(
                (k, int(scored.query[slot]))
                for slot, edge in zip(scored.slot, scored.edge, strict=False)
                for k in members.get(int(edge), ())
            )
            waiting.extend(Prompt(group[k], batch, end) for k, end in ends)
            del batch
            while waiting:
                yield waiting.popleft()

    def _plan(self, forest: Forest, longest: int) -> packing.PackedRows:
        """Pack the prompts of a group into rows of few shapes, since each compiles for seconds."""
        n_tokens = forest.n_nodes
        budget = min(self.planner.batch_tokens, MOST_PREFILL)
        if self.planner.reproducible:  # one prompt in one row
            length = budget = power_of_two(longest)
        else:
            length = power_of_two(max(longest, LONG_ROW if n_tokens > LONG_ROW else 1))
            budget = budget if 2 * n_tokens > budget else budget // TAIL
        return packing.pack_uniform_rows(forest, row_length=length, batch_tokens=budget)


class PromptBatch:
    """Prompts whose keys and values are computed together, when the first of them starts."""

    def __init__(self, prefill: Prefill, rows: RowBatch | None, n_states: int = 1) -> None:
        """Describe a batch.

        Args:
            rows: rows of the prompts, or None for prompts of a single token, which do not have
                cached keys and values.
            n_states: capacity for states of recurrent layers, at least the number of prompts.
        """
        self._prefill, self._rows, self._n_states = prefill, rows, n_states

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and row length."""
        return (1, 1) if self._rows is None else self._rows.shape

    def path(self, position: int) -> np.ndarray:
        """Return the path from a trie's root to a token, as indices into the flattened rows."""
        assert self._rows is not None
        row, column = divmod(position, self.shape[1])
        ancestors = np.flatnonzero(self._rows.subtree_end[row, : column + 1] > column)
        return row * self.shape[1] + ancestors

    def states_at(self, position: int) -> int:
        """Return the index in `keys_values.states` of a prompt's last token."""
        assert self._rows is not None
        scored = self._rows.scored
        return int(np.searchsorted(scored.query[: scored.n_queries], position))

    @functools.cached_property
    def keys_values(self) -> KeysValues:
        """Keys and values of all tokens, and states at the prompts' last tokens.

        Keys and values are [layers, rows, K, length, H], or zeros without tokens.
        """
        variant, prefix = self._prefill.variant, self._prefill.prefix
        if self._rows is None:
            empty = empty_cache(variant, 1, 1, self._prefill.progress)
            return empty._replace(states=prefix[-1].states) if prefix else empty
        position = self._rows.position + self._prefill.shared
        needs, scored = variant.model.functions.paths, self._rows.scored
        programs = variant.programs
        arrays = programs.put((self._rows.ids, position, self._rows.subtree_end))
        state_tokens = np.zeros(self._n_states, np.int32)
        state_tokens[: scored.n_queries] = scored.query[: scored.n_queries]
        plan = None if needs is None else plan_paths(self._rows, needs)
        keys_values: KeysValues = variant.programs.run(
            ("prefill", *self.shape, self._prefill.prefix_slots),
            keys_and_values(cached(variant)),
            (variant.model.params, *arrays, *put_paths(programs, plan, state_tokens), *prefix),
            self._prefill.progress,
            outputs=KEYS_VALUES,
        )
        return keys_values


class Prompt(NamedTuple):
    """Text that waits for a slot, and the source of its prompt's keys and values.

    Attributes:
        end: the position of the last cached token in the batch's flattened rows, or None for a
            prompt of a single token.
    """

    state: TextState
    batch: PromptBatch
    end: int | None

    @property
    def path(self) -> np.ndarray:
        """Indices of the prompt's tokens in the batch, without its last one."""
        return np.zeros(0, np.int64) if self.end is None else self.batch.path(self.end)

    @property
    def states_at(self) -> int:
        """Index of its states in `batch.keys_values`."""
        return 0 if self.end is None else self.batch.states_at(self.end)


def cached(variant: Variant) -> Cached:
    """Return the KV-cache functions of a model; transformers' Flax classes lack them."""
    functions = variant.model.functions.cached
    assert functions is not None
    return functions


def empty_cache(variant: Variant, rows: int, slots: int, progress: Progress) -> KeysValues:
    """Create zero keys and values of all layers, [layers, rows, K, slots, H], and states."""
    zeros: KeysValues = variant.programs.run(
        ("empty cache", rows, slots),
        functools.partial(cached(variant).empty_cache, rows, slots),
        (),
        progress,
        outputs=KEYS_VALUES,
    )
    return zeros

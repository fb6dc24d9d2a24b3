"""Continuous batching: groups texts into slot tables and runs these one after another.

A prefix that all prompts begin with is computed once, and every step of every slot table attends
to it; what the prompts of a group share beyond it is computed once for the group. Groups with
caches of one shape share a slot table, in which a text starts where another one has finished. A
reproducible engine has a group and a slot table for each request instead. transformers' Flax
classes generate one text at a time.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.engine.engine import Engine
from jaxscore.engine.generation.prefill import Prefill
from jaxscore.engine.generation.slots import (
    STEPS,
    SlotTable,
    cache_limit,
    explain_out_of_memory,
    most_rows,
)
from jaxscore.engine.generation.state import TextState
from jaxscore.engine.programs import Variant, prefix_cache
from jaxscore.engine.progress import Progress
from jaxscore.io import interrupts
from jaxscore.plan import decode_slots
from jaxscore.plan.decode_slots import DecodeGroup
from jaxscore.text.decoder import TextDecoder


class Scheduler:
    """Generates texts from token ids with an engine's model."""

    def __init__(self, engine: Engine, decoder: TextDecoder) -> None:
        self.engine, self.decoder = engine, decoder

    def generate(
        self, states: Sequence[TextState], progress: Progress
    ) -> Iterator[list[TextState]]:
        """Generate distinct texts; yield those that just finished, after each block of steps.

        Texts that a journal had, which are finished already, are scheduled all the same: a missing
        text then has the same row and the same last bits as in an uninterrupted run.

        Raises:
            InputError: a slot table does not fit in the device's memory.
            KeyboardInterrupt: an interrupt was requested; all texts that had started are finished.
        """
        if self.engine.model.cached is None:
            yield from self._one_by_one([state for state in states if not state.finished])
            return
        by_variant: dict[int, list[TextState]] = {}
        for state in states:
            index = self.engine.planner.variant(len(state.request.ids))
            by_variant.setdefault(index, []).append(state)
        for index, own in by_variant.items():
            yield from self._in_slot_tables(self.engine.variants[index], own, progress)

    def _one_by_one(self, states: Sequence[TextState]) -> Iterator[list[TextState]]:
        """Generate with transformers' own `generate`."""
        write = self.engine.model.write
        for state in states:
            assert write is not None  # model pairs have neither, and no generator
            if interrupts.interrupt_requested_anywhere():
                raise KeyboardInterrupt
            state.append(write(self.engine.model.params, state.request), self.decoder)
            state.notify_watcher()
            yield [state]

    def _in_slot_tables(
        self, variant: Variant, states: Sequence[TextState], progress: Progress
    ) -> Iterator[list[TextState]]:
        shared, tables = self._plan(variant, states)
        prefill = None
        for groups in tables:
            members = [(group, [states[k] for k in group.members]) for group in groups]
            if all(state.finished for _, own in members for state in own):
                continue
            if interrupts.interrupt_requested_anywhere():  # before the prefix, seconds of work
                raise KeyboardInterrupt
            if prefill is None:  # the prefix is computed only if a text is missing
                prefix = self._prefix(variant, states[0].request.ids[:shared], progress)
                prefill = Prefill(variant, self.engine.planner, shared, prefix, progress)
            yield from SlotTable(prefill, members, self.decoder).generate()

    def _prefix(self, variant: Variant, ids: np.ndarray, progress: Progress) -> tuple[KVCache, ...]:
        """Prefix cache of the tokens that all prompts begin with; empty without such tokens."""
        if not len(ids):
            return ()
        with explain_out_of_memory(variant.model, 1, len(ids)):
            return (prefix_cache(variant.programs, variant.model, ids, progress),)

    def _plan(
        self, variant: Variant, states: Sequence[TextState]
    ) -> tuple[int, list[list[DecodeGroup]]]:
        """Number of tokens in the prefix cache, and the groups of each slot table."""
        requests = [state.request for state in states]
        if self.engine.planner.reproducible:
            return 0, [[group] for group in decode_slots.one_group_each(requests)]
        rows = most_rows(variant.model)
        shared = decode_slots.shared_prefix_length(requests, rows)
        fits = cache_limit(variant.model, shared, STEPS)
        groups = decode_slots.group_requests(requests, shared, fits, rows)
        return shared, decode_slots.group_by_cache_shape(groups)

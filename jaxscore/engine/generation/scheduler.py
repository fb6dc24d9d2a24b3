"""Texts written by the model: side by side in lanes with a KV cache, or one by one.

What all prompts begin with is computed once and kept as a prefix that every step of every lane
sees; what the prompts of a group share beyond it is computed once for the group. Groups with
caches of one shape are one lane, in which a text begins where another one has ended. A
reproducible engine has a group and a lane for each request instead. transformers' classes write
one text at a time.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.engine.engine import Engine
from jaxscore.engine.generation import slots
from jaxscore.engine.generation.prefill import Prefill
from jaxscore.engine.generation.slots import STEPS, Lane
from jaxscore.engine.generation.state import Writing
from jaxscore.engine.programs import Variant, prefix_cache
from jaxscore.engine.progress import Progress
from jaxscore.io import interrupts
from jaxscore.plan import decode_slots
from jaxscore.plan.decode_slots import DecodeGroup
from jaxscore.text.decoder import TextDecoder


class TextWriter:
    """Continues prompts of token ids with an engine's model."""

    def __init__(self, engine: Engine, decoder: TextDecoder) -> None:
        self.engine, self.decoder = engine, decoder

    def write(self, waiting: Sequence[Writing], progress: Progress) -> Iterator[list[Writing]]:
        """Write distinct texts; those that have just ended, after each block of steps.

        What has ended before, since a journal had it, is laid out all the same: what is missing
        then has the same row and the same last bits as in a run that was not interrupted.

        Raises:
            InputError: the device's memory does not hold a lane.
            KeyboardInterrupt: the user wants the run to end; all texts that had begun have ended.
        """
        if self.engine.model.cached is None:
            yield from self._one_by_one([one for one in waiting if not one.ended])
            return
        of_variant: dict[int, list[Writing]] = {}
        for one in waiting:
            variant = self.engine.planner.variant(len(one.request.ids))
            of_variant.setdefault(variant, []).append(one)
        for k, some in of_variant.items():
            yield from self._in_lanes(self.engine.variants[k], some, progress)

    def _one_by_one(self, waiting: Sequence[Writing]) -> Iterator[list[Writing]]:
        """By transformers' own `generate`."""
        write = self.engine.model.write
        assert write is not None  # a model has either
        for one in waiting:
            if interrupts.interrupt_requested_anywhere():
                raise KeyboardInterrupt
            one.take(write(self.engine.model.params, one.request), self.decoder)
            one.look()
            yield [one]

    def _in_lanes(
        self, variant: Variant, waiting: Sequence[Writing], progress: Progress
    ) -> Iterator[list[Writing]]:
        shared, lanes = self._lanes(variant, waiting)
        prefill = None
        for groups in lanes:
            texts = [(group, [waiting[k] for k in group.members]) for group in groups]
            if all(one.ended for _, some in texts for one in some):
                continue
            if interrupts.interrupt_requested_anywhere():  # before what no text is written without
                raise KeyboardInterrupt
            if prefill is None:  # what all begin with is computed where a text is missing
                prefix = self._prefix(variant, waiting[0].request.ids[:shared], progress)
                prefill = Prefill(variant, self.engine.planner, shared, prefix, progress)
            yield from Lane(prefill, texts, self.decoder).write()

    def _prefix(self, variant: Variant, ids: np.ndarray, progress: Progress) -> tuple[KVCache, ...]:
        """Keys and values of what all prompts begin with; none of nothing."""
        if not len(ids):
            return ()
        with slots.out_of_memory_explained(variant.model, 1, len(ids)):
            return (prefix_cache(variant.programs, variant.model, ids, progress),)

    def _lanes(
        self, variant: Variant, waiting: Sequence[Writing]
    ) -> tuple[int, list[list[DecodeGroup]]]:
        """Tokens that all prompts begin with and no cache of a lane holds, and the lanes."""
        requests = [one.request for one in waiting]
        if self.engine.planner.reproducible:
            return 0, [[group] for group in decode_slots.one_group_each(requests)]
        most_rows = slots.most_rows(variant.model)
        shared = decode_slots.shared_prefix_length(requests, most_rows)
        fits = slots.fitting(variant.model, shared, STEPS)
        groups = decode_slots.group_requests(requests, shared, fits, most_rows)
        return shared, decode_slots.group_by_cache_shape(groups)

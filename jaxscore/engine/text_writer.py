"""Texts written by the model: side by side in groups with a KV cache, or one by one.

What all prompts begin with is computed once and kept as a prefix that every step of every group
sees; what the prompts of a group share beyond it is computed once for the group. A reproducible
engine has a group for each request instead. transformers' classes write one text at a time.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from jaxscore.device import generate
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.mesh import EVERYWHERE, KEYS_VALUES, specs_of
from jaxscore.engine import decode_state
from jaxscore.engine.engine import Engine
from jaxscore.engine.programs import keys_and_values, prefix_cache
from jaxscore.engine.progress import Progress
from jaxscore.engine.variant import Variant
from jaxscore.engine.writing import Writing
from jaxscore.models.model import Cached
from jaxscore.plan import decode_groups, packing
from jaxscore.plan.decode_groups import Group, power
from jaxscore.plan.forest import Forest, build
from jaxscore.plan.row_batches import RowBatch
from jaxscore.plan.row_shapes import TAIL
from jaxscore.plan.token_requests import TokenSequence
from jaxscore.text.decoder import TextDecoder

# Requests that are written side by side, and what writes them.
Batch = tuple[Sequence[Writing], Callable[[], None]]

# Bytes of a group's keys and values: 32 requests of 1024 tokens take 1.2 GB of GPT-2 in bfloat16
# and 4.3 GB of Llama-3 8B.
MOST_CACHE_CPU, MOST_CACHE_ACCELERATOR = 2**31, 2**32
MOST_ROWS_CPU, MOST_ROWS_ACCELERATOR = 32, 256  # a step reads all weights for its rows
MOST_PREFILL = 4096  # tokens in each batch of prompts, whose keys and values are all kept
LONG_ROW = 1024  # prompts that fill one are laid out in such rows, short ones in shorter rows
STEPS = 32  # tokens between two looks at what was written


class TextWriter:
    """Continues prompts of token ids with an engine's model."""

    def __init__(self, engine: Engine, decoder: TextDecoder) -> None:
        self.engine, self.decoder = engine, decoder

    def batches(self, waiting: Sequence[Writing], progress: Progress) -> Iterator[Batch]:
        """Distinct texts in the order in which they are written, each in one batch.

        What a journal had is laid out all the same, so that what is missing has the same
        neighbours, and with them the same last bits, as in a run that was not interrupted.
        """
        if self.engine.model.cached is None:
            for one in waiting:
                yield [one], functools.partial(self._write_one, one)
            return
        of_variant: dict[int, list[Writing]] = {}
        for one in waiting:
            variant = self.engine.planner.variant(len(one.request.ids))
            of_variant.setdefault(variant, []).append(one)
        for k, some in of_variant.items():
            yield from self._in_groups(self.engine.variants[k], some, progress)

    def _write_one(self, one: Writing) -> None:
        """By transformers' own `generate`."""
        write = self.engine.model.write
        assert write is not None  # a model has either
        one.take(write(self.engine.model.params, one.request), self.decoder)
        one.look()

    def _in_groups(
        self, variant: Variant, waiting: Sequence[Writing], progress: Progress
    ) -> Iterator[Batch]:
        requests = [one.request for one in waiting]
        if self.engine.planner.reproducible:
            shared, groups = 0, decode_groups.one_each(requests)
        else:
            most_rows = MOST_ROWS_CPU if _on_cpu(variant) else MOST_ROWS_ACCELERATOR
            shared = decode_groups.prefix_length(requests, most_rows)
            most_slots = _most_slots(variant)
            groups = decode_groups.groups(requests, shared, most_slots, most_rows)
        prefix: tuple[KVCache, ...] = ()
        for group in groups:
            members = [waiting[k] for k in group.members]
            if shared and not prefix and not all(one.ended for one in members):
                ids = requests[0].ids[:shared]
                prefix = (prefix_cache(variant.programs, variant.model, ids, progress),)
            write = functools.partial(
                self._write_group, variant, group, members, shared, prefix, progress
            )
            yield members, write

    def _write_group(
        self,
        variant: Variant,
        layout: Group,
        members: Sequence[Writing],
        shared: int,
        prefix: tuple[KVCache, ...],
        progress: Progress,
    ) -> None:
        """All texts of one group; those that have ended before are written for their neighbours."""
        group = [Writing(one.request) if one.ended else one for one in members]
        B, slots = layout.rows, layout.slots
        cache = self._prefill(variant, group, B, slots, shared, prefix, progress)

        asked = [one.request for one in group]
        sampling, state, eos = decode_state.begin(
            asked, cache, B, variant.model.vocab_size, variant.programs.put
        )
        greedy, penalties = all(r.temperature == 0 for r in asked), state.seen is not None
        step = functools.partial(
            generate.decode,
            _cached(variant).extend,
            variant.model.unembedding,
            steps=STEPS,
            greedy=greedy,
        )
        # Those that are written for their neighbours alone need not come to their end.
        while not all(one.ended for one in members):
            # A stop string ends a text that the device would go on with.
            ended = decode_state.column((one.ended for one in group), True, bool, B)
            state = state._replace(done=state.done | variant.programs.put(ended))
            state, tokens = variant.programs.run(
                ("decode", B, slots, _slots(prefix), greedy, penalties),
                step,
                (variant.model.params, state, sampling, prefix, eos),
                progress,
                donate=(1,),
                outputs=(specs_of(state), EVERYWHERE),
            )
            for one, row in zip(group, np.asarray(tokens), strict=False):
                if not one.ended:
                    one.take(row[row != generate.NONE], self.decoder)
                    one.look()

    def _prefill(
        self,
        variant: Variant,
        group: Sequence[Writing],
        B: int,
        slots: int,
        shared: int,
        prefix: tuple[KVCache, ...],
        progress: Progress,
    ) -> KVCache:
        """The keys and values of every prompt of the group without its last token."""
        cached = _cached(variant)
        rest = [one.request.ids[shared:] for one in group]
        forest = build([TokenSequence(ids, len(ids) - 1) for ids in rest])
        own = np.zeros(B, np.int32)
        own[: len(rest)] = [len(ids) - 1 for ids in rest]
        programs = variant.programs
        empty = programs.run(
            ("empty cache", B, slots),
            functools.partial(cached.empty_cache, B, slots),
            (),
            progress,
            outputs=KEYS_VALUES,
        )
        cache = KVCache(*empty, *programs.put((np.int32(shared), own)))
        plan = self._prefill_plan(forest, int(own.max()))
        edges: dict[int, list[int]] = {}  # what each answers, several where prompts are equal
        for k, (a, b) in enumerate(zip(forest.offsets, forest.offsets[1:], strict=False)):
            if b > a:
                edges.setdefault(int(forest.edge_of[a]), []).append(k)
        for batch in plan.batches():
            kept = variant.programs.run(
                ("prefill", *batch.shape, _slots(prefix)),
                keys_and_values(cached),
                (
                    variant.model.params,
                    *programs.put((batch.ids, batch.position + shared, batch.subtree_end)),
                    *prefix,
                ),
                progress,
                outputs=KEYS_VALUES,
            )
            paths: dict[int, np.ndarray] = {}  # of each row of the cache
            asked = batch.questions
            for slot, edge in zip(asked.slot, asked.edge, strict=False):
                path = _path(batch, int(asked.query[slot]))
                paths |= dict.fromkeys(edges.get(int(edge), ()), path)
            source, row = np.zeros((B, slots), np.int32), np.full(B, B, np.int32)
            for k, (place, path) in enumerate(paths.items()):
                source[k, : len(path)], row[k] = path, place
            cache = variant.programs.run(
                ("store", *batch.shape, B, slots),
                generate.store,
                (cache, kept, *programs.put((source, row))),
                progress,
                donate=(0,),
                outputs=specs_of(cache),
            )
        return cache

    def _prefill_plan(self, forest: Forest, longest: int) -> packing.Plan:
        """Rows for the prompts of a group, in few shapes: each is a program, and seconds."""
        n_tokens = forest.n_nodes
        budget = min(self.engine.planner.batch_tokens, MOST_PREFILL)
        if self.engine.planner.reproducible:  # one prompt in one row
            length = budget = power(longest)
        else:
            length = power(max(longest, LONG_ROW if n_tokens > LONG_ROW else 1))
            budget = budget if 2 * n_tokens > budget else budget // TAIL
        width = self.engine.model.width
        return packing.plan_uniform(forest, row_length=length, width=width, batch_tokens=budget)


def _cached(variant: Variant) -> Cached:
    cached = variant.model.cached
    assert cached is not None  # transformers' classes have a way of their own
    return cached


def _on_cpu(variant: Variant) -> bool:
    return variant.model.platform == "cpu"


def _most_slots(variant: Variant) -> int:
    """Of a group's cache, all its rows together."""
    slot = jax.eval_shape(lambda: _cached(variant).empty_cache(1, 1))
    slot_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in slot)
    return (MOST_CACHE_CPU if _on_cpu(variant) else MOST_CACHE_ACCELERATOR) // slot_bytes


def _path(batch: RowBatch, query: int) -> np.ndarray:
    """Indices in the flattened rows of a token's path, from its root to itself."""
    row, column = divmod(query, batch.shape[1])
    seen = np.flatnonzero(batch.subtree_end[row, : column + 1] > column)
    return row * batch.shape[1] + seen


def _slots(prefix: tuple[KVCache, ...]) -> int:
    return prefix[0].key.shape[2] if prefix else 0

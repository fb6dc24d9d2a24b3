"""Texts that take turns in the rows of one cache: a row whose text has ended gets the next one.

rows  ──▶  prefill, begin  ──▶  a block of steps  ──▶  texts that have ended  ──▶  rows
"""

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.device import generate
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.sharding import REPLICATED, array_specs
from jaxscore.engine.generation.prefill import MOST_PREFILL, Prefill, Prompt, cached, empty_cache
from jaxscore.engine.generation.state import (
    DecodeArrays,
    Writing,
    empty_rows,
    sampling_features,
    starting_rows,
)
from jaxscore.engine.memory import exhausted, limit_bytes, parameter_bytes
from jaxscore.engine.programs import prefix_slots
from jaxscore.errors import InputError
from jaxscore.io import interrupts, processes
from jaxscore.io.byte_sizes import format_bytes
from jaxscore.models.model import Model
from jaxscore.plan.decode_slots import DecodeGroup, SlotSchedule, refill_size
from jaxscore.text.decoder import TextDecoder

STEPS = 32  # tokens between two looks at what was written


class Lane:
    """Groups with caches of one shape, in one cache.

    A text begins at the start of a block, in the row that `SlotSchedule` gives it, from keys and
    values that depend on its group alone. What stands in other rows has no effect on a row:
    measured on the CPU for dense models and for mixtures, in float32 and bfloat16, no bit moves.
    Texts that a journal has are not computed. They keep their rows for as many blocks as they
    took. So a missing text has the same bits as in a run that was not interrupted.
    """

    def __init__(
        self,
        prefill: Prefill,
        groups: Sequence[tuple[DecodeGroup, Sequence[Writing]]],
        decoder: TextDecoder,
    ) -> None:
        """`groups` come with their texts; all have the same rows and slots."""
        self._prefill, self._groups, self._decoder = prefill, groups, decoder
        first, _ = groups[0]
        self._n_rows, self._slots = first.n_slots, first.capacity
        self._facts = sampling_features([one.request for _, some in groups for one in some])
        self._running: dict[int, Writing] = {}  # by their row

    def write(self) -> Iterator[list[Writing]]:
        """Write the texts that have not ended; those that end in a block, after each.

        Raises:
            InputError: the device's memory does not hold the lane.
            KeyboardInterrupt: the user wants the run to end; all texts that had begun have ended.
        """
        n_left = sum(not one.ended for _, some in self._groups for one in some)
        rows = SlotSchedule(map(_with_blocks, self._waiting()), self._n_rows)
        explained = functools.partial(
            out_of_memory_explained, self._prefill.variant.model, self._n_rows, self._slots
        )
        with explained():
            everything = self._idle()
        while n_left:
            wished = interrupts.interrupt_requested_anywhere()
            if not wished:
                with explained():
                    everything = self._filled(everything, rows.begin())
            elif not self._running:
                raise KeyboardInterrupt
            ended = {}
            if self._running:
                with explained():
                    everything, tokens = self._block(everything)
                ended = self._taken(tokens)
            rows.end(ended)
            if ended:
                n_left -= len(ended)
                yield list(ended.values())

    def _waiting(self) -> Iterator[Prompt]:
        return itertools.chain.from_iterable(
            self._prefill.prompts(some) for _, some in self._groups
        )

    def _idle(self) -> DecodeArrays:
        """A cache in which no text has begun."""
        variant = self._prefill.variant
        put = variant.programs.put
        empty = empty_cache(variant, self._n_rows, self._slots, self._prefill.progress)
        lengths = np.zeros(self._n_rows, np.int32)
        cache = KVCache(*empty, *put((np.int32(self._prefill.shared), lengths)))
        return empty_rows(cache, self._n_rows, self._facts, variant.model.vocab_size, put)

    def _filled(
        self, everything: DecodeArrays, begun: Iterable[tuple[int, Prompt]]
    ) -> DecodeArrays:
        """With new texts in some rows, a few at a time: what is written are rows that change."""
        width, waiting = refill_size(self._n_rows), deque(begun)
        del begun
        while waiting:  # nothing else holds a prompt: its batch is let go with its last one
            some = [waiting.popleft()]
            batch = some[0][1].batch
            while waiting and len(some) < width and waiting[0][1].batch is batch:
                some.append(waiting.popleft())
            everything = self._begun(everything, some)
            self._running |= {row: one.text for row, one in some}
            del some, batch
        return everything

    def _begun(self, everything: DecodeArrays, some: Sequence[tuple[int, Prompt]]) -> DecodeArrays:
        """With new texts of one batch of prompts."""
        variant = self._prefill.variant
        B, slots, width = self._n_rows, self._slots, refill_size(self._n_rows)
        batch, paths = some[0][1].batch, [one.path for _, one in some]
        n_rows, length = batch.shape
        source = np.full((width, slots), n_rows * length, np.int32)
        for own, path in zip(source, paths, strict=False):
            own[: len(path)] = path
        new = starting_rows(
            [
                (row, len(path), one.text.request)
                for path, (row, one) in zip(paths, some, strict=True)
            ],
            width,
            B,
            self._facts,
            variant.model.vocab_size,
            variant.programs.put,
        )
        after: DecodeArrays = variant.programs.run(
            ("begin", *batch.shape, B, slots),
            generate.begin,
            (*everything, batch.kept, variant.programs.put(source), new),
            self._prefill.progress,
            donate=(0, 1, 2),
            outputs=array_specs(everything),
        )
        return after

    def _block(self, everything: DecodeArrays) -> tuple[DecodeArrays, np.ndarray]:
        """A block of steps: what is decoded after it, and the tokens [rows, STEPS]."""
        variant, prefix = self._prefill.variant, self._prefill.prefix
        state, sampling, eos = everything
        # A stop string ends a text that the device would go on with.
        idle = np.array([row not in self._running for row in range(self._n_rows)])
        state = state._replace(done=state.done | variant.programs.put(idle))
        step = functools.partial(
            generate.decode,
            cached(variant).extend,
            variant.model.unembedding,
            steps=STEPS,
            greedy=self._facts.greedy,
            cut=self._facts.cut,
        )
        sizes = self._n_rows, self._slots, self._prefill.prefix_slots
        state, tokens = variant.programs.run(
            ("decode", *sizes, self._facts.greedy, self._facts.cut, self._facts.penalties),
            step,
            (variant.model.params, state, sampling, prefix, eos),
            self._prefill.progress,
            donate=(1,),
            outputs=(array_specs(state), REPLICATED),
        )
        return (state, sampling, eos), np.asarray(tokens)

    def _taken(self, tokens: np.ndarray) -> dict[int, Writing]:
        """Give each text its tokens; those that have ended leave their rows."""
        for row, one in self._running.items():
            one.take(tokens[row][tokens[row] != generate.NONE], self._decoder)
            one.look()
        ended = {row: one for row, one in self._running.items() if one.ended}
        for row in ended:
            del self._running[row]
        return ended


def _with_blocks(one: Prompt) -> tuple[Prompt, int | None]:
    """With the blocks that its text took, the EOS that ended it counted; None where it has not
    ended."""
    text = one.text
    drawn = len(text.written) + (text.finish == "eos")
    return one, -(-drawn // STEPS) if text.ended else None


# Bytes of a lane's keys and values: 32 requests of 1024 tokens take 1.2 GB of GPT-2 in bfloat16
# and 4.3 GB of Llama-3 8B.
MOST_CACHE_CPU, MOST_CACHE_ACCELERATOR = 2**31, 2**32
MOST_ROWS_CPU, MOST_ROWS_ACCELERATOR = 32, 256  # a step reads all weights for its rows
SHARE = 0.8  # of the memory beside the parameters; logits and activations take the rest

Fits = Callable[[int, int], bool]  # of rows and slots


def most_rows(model: Model) -> int:
    """Of a lane."""
    return MOST_ROWS_CPU if model.platform == "cpu" else MOST_ROWS_ACCELERATOR


def fitting(model: Model, shared: int, steps: int, limit: int | None = None) -> Fits:
    """Whether a cache of so many rows and slots may be the one of a lane.

    That depends on the model, on the prompts and on the size of the device's memory, and on
    nothing that changes while programs run. So a run that continues has the rows of the first one.

    Args:
        shared: tokens that all prompts begin with, which no cache of a lane holds.
        steps: of a block.
        limit: bytes of each device; None asks the device, of several processes the first one's.
    """
    slot = slot_bytes(model)
    most = MOST_CACHE_CPU if model.platform == "cpu" else MOST_CACHE_ACCELERATOR
    room = _room(model, limit)
    if room is not None:
        prefix = prefix_slots(model, shared) if shared else 0
        room -= (MOST_PREFILL + prefix) * slot

    def fits(rows: int, slots: int) -> bool:
        working = rows * (slots + steps) * slot
        return rows * slots * slot <= most and (room is None or working <= room)

    return fits


def slot_bytes(model: Model) -> int:
    """Of the keys and values of one token, all layers, on each device."""
    cached = model.cached
    assert cached is not None  # transformers' classes have no lanes
    slot = jax.eval_shape(lambda: cached.empty_cache(1, 1))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in slot)


def _room(model: Model, limit: int | None) -> int | None:
    """Bytes that lanes may take; None where the device does not say what it has."""
    limit = limit_bytes() if limit is None else limit
    # Of several processes one decides: another number of rows would be another plan.
    told = processes.broadcast_from_first((limit or 0).to_bytes(8, "little"))
    if not (limit := int.from_bytes(told, "little")):
        return None
    return int(SHARE * (limit - parameter_bytes(model.params)))


@contextlib.contextmanager
def out_of_memory_explained(model: Model, rows: int, slots: int) -> Iterator[None]:
    """Say what a lane takes and what helps, where memory runs out in the block.

    Raises:
        InputError: it did.
    """
    try:
        yield
    except JaxRuntimeError as problem:
        if not exhausted(problem):
            raise
        size = format_bytes(rows * slots * slot_bytes(model))
        quantize = "" if model.quantized else "take --quantize int8, "
        raise InputError(
            f"{rows} x {slots} tokens whose keys and values take {size} of each device do not fit "
            f"in its memory beside the model and what a step needs; {quantize}spread the model "
            "with --mesh model=N (a larger N than in this run), ask for fewer new tokens, or "
            "shorten the longest prompts"
        ) from problem

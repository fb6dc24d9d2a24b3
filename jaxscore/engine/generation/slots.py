"""Slot table: one KV cache in which a waiting text takes the row of a finished one.

waiting texts ──▶ prefill, start in free rows ──▶ a block of steps ──▶ finished texts, free rows

Memory: parameters | gathered parameters | SHARE of the rest: cache, a block's tokens, prompts,
prefix | working memory
"""

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxscore.device import generate, jax_settings
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.decoder import KeysValues
from jaxscore.device.sharding import KEYS_VALUES, REPLICATED, array_specs
from jaxscore.engine.devices import is_out_of_memory, limit_bytes, placed_bytes
from jaxscore.engine.generation.prefill import MOST_PREFILL, Prefill, Prompt, cached, empty_cache
from jaxscore.engine.generation.state import (
    DecodeArrays,
    TextState,
    empty_rows,
    sampling_features,
    starting_rows,
)
from jaxscore.engine.programs import prefix_slots
from jaxscore.errors import InputError, format_bytes
from jaxscore.io import interrupts, processes
from jaxscore.models.model import Model
from jaxscore.plan.decode_slots import DecodeGroup, SlotSchedule, refill_size
from jaxscore.text.decoder import TokenBytes

STEPS = 32  # tokens of a text that the device generates per block
# Maximum bytes of a slot table's keys and values: 32 requests of 1024 tokens take 1.2 GB for GPT-2
# in bfloat16 and 4.3 GB for Llama-3 8B.
MOST_CACHE_CPU, MOST_CACHE_ACCELERATOR = 2**31, 2**32
MOST_ROWS_CPU, MOST_ROWS_ACCELERATOR = 32, 256  # a step reads all weights for its rows
SHARE = 0.8  # share of the memory that the parameters leave; the rest is for activations, logits


class SlotTable:
    """Generates the texts of groups whose caches have one shape, in one cache.

    A text starts at the beginning of a block, in the row that `SlotSchedule` assigns, from keys and
    values that depend on its group alone. Rows do not affect each other: measured on the CPU for
    dense models and mixtures, in float32 and bfloat16, no bit changes. Journaled texts are not
    computed, but occupy their rows for their number of blocks. A missing text therefore has the
    same bits as in an uninterrupted run.
    """

    def __init__(
        self,
        prefill: Prefill,
        groups: Sequence[tuple[DecodeGroup, Sequence[TextState]]],
        token_bytes: TokenBytes,
    ) -> None:
        """Create a slot table.

        Args:
            groups: groups with their texts; all have caches of the same shape.
        """
        self._prefill, self._groups, self._token_bytes = prefill, groups, token_bytes
        first, _ = groups[0]
        self._n_rows, self._slots = first.n_slots, first.capacity
        self._features = sampling_features(
            [state.request for _, states in groups for state in states]
        )
        self._running: dict[int, TextState] = {}  # by row

    def generate(self) -> Iterator[list[TextState]]:
        """Generate the unfinished texts; yield those that finish in a block, after each block.

        Raises:
            InputError: the slot table does not fit in the device's memory.
            KeyboardInterrupt: an interrupt was requested; all texts that had started are finished.
        """
        n_left = sum(not state.finished for _, states in self._groups for state in states)
        waiting = itertools.chain.from_iterable(
            self._prefill.prompts(states) for _, states in self._groups
        )
        schedule = SlotSchedule(map(_with_n_blocks, waiting), self._n_rows)
        explained = functools.partial(
            explain_out_of_memory, self._prefill.variant.model, self._n_rows, self._slots
        )
        with explained():
            arrays = self._empty_arrays()
        while n_left:
            if not interrupts.interrupt_requested_anywhere():
                with explained():
                    arrays = self._refill(arrays, schedule.begin())
            elif not self._running:
                raise KeyboardInterrupt
            finished = {}
            if self._running:
                with explained():
                    arrays, tokens = self._decode_block(arrays)
                finished = self._collect(tokens)
            schedule.end(finished)
            if finished:
                n_left -= len(finished)
                yield list(finished.values())

    def _empty_arrays(self) -> DecodeArrays:
        """Create a cache in which no text has started."""
        variant = self._prefill.variant
        put = variant.programs.put
        zeros = empty_cache(variant, self._n_rows, self._slots, self._prefill.progress)
        lengths = np.zeros(self._n_rows, np.int32)
        first, lengths = put((np.int32(self._prefill.shared), lengths))
        cache = KVCache(zeros.key, zeros.value, first, lengths, zeros.states)
        return empty_rows(cache, self._n_rows, self._features, variant.model.vocab_size, put)

    def _refill(self, arrays: DecodeArrays, started: Iterable[tuple[int, Prompt]]) -> DecodeArrays:
        """Start texts in their rows, a few at a time, with programs that write only these rows."""
        width, waiting = refill_size(self._n_rows), deque(started)
        del started
        while waiting:  # keep no other reference: a batch is freed with its last prompt
            together = [waiting.popleft()]
            batch = together[0][1].batch
            while waiting and len(together) < width and waiting[0][1].batch is batch:
                together.append(waiting.popleft())
            arrays = self._start(arrays, together)
            self._running |= {row: prompt.state for row, prompt in together}
            del together, batch
        return arrays

    def _start(self, arrays: DecodeArrays, started: Sequence[tuple[int, Prompt]]) -> DecodeArrays:
        """Start texts that are in the same prompt batch."""
        variant, put = self._prefill.variant, self._prefill.variant.programs.put
        batch, paths = started[0][1].batch, [prompt.path for _, prompt in started]
        n_rows, length = batch.shape
        width = refill_size(self._n_rows)
        source = np.full((width, self._slots), n_rows * length, np.int32)
        for row_source, path in zip(source, paths, strict=False):
            row_source[: len(path)] = path
        new_requests = starting_rows(
            [
                (row, len(path), prompt.states_at, prompt.state.request)
                for path, (row, prompt) in zip(paths, started, strict=True)
            ],
            width,
            self._n_rows,
            self._features,
            variant.model.vocab_size,
            put,
        )
        started_arrays: DecodeArrays = variant.programs.run(
            ("begin", *batch.shape, self._n_rows, self._slots),
            generate.start,
            (*arrays, batch.keys_values, put(source), new_requests),
            self._prefill.progress,
            donate=(0, 1, 2),
            outputs=array_specs(arrays),
        )
        return started_arrays

    @jax_settings.isolated()
    def _decode_block(self, arrays: DecodeArrays) -> tuple[DecodeArrays, np.ndarray]:
        """Run a block of steps; return the new state and the tokens [rows, STEPS]."""
        variant, features = self._prefill.variant, self._features
        state, sampling, eos = arrays
        # Stop strings are matched on the host, so the device does not know which rows are free.
        free = np.array([row not in self._running for row in range(self._n_rows)])
        state = state._replace(done=state.done | variant.programs.put(free))
        step = functools.partial(
            generate.decode,
            cached(variant).extend,
            variant.model.functions.unembedding,
            steps=STEPS,
            greedy=features.greedy,
            cut=features.cut,
        )
        sizes = self._n_rows, self._slots, self._prefill.prefix_slots
        state, tokens = variant.programs.run(
            ("decode", *sizes, features.greedy, features.cut, features.penalties),
            step,
            (variant.model.params, state, sampling, self._prefill.prefix, eos),
            self._prefill.progress,
            donate=(1,),
            outputs=(array_specs(state), REPLICATED),
        )
        return (state, sampling, eos), np.asarray(tokens)

    def _collect(self, tokens: np.ndarray) -> dict[int, TextState]:
        """Append tokens to their texts; remove and return the finished ones, by row."""
        for row, state in self._running.items():
            state.append(tokens[row][tokens[row] != generate.NO_TOKEN], self._token_bytes)
            state.notify_watcher()
        finished = {row: state for row, state in self._running.items() if state.finished}
        for row in finished:
            del self._running[row]
        return finished


def _with_n_blocks(prompt: Prompt) -> tuple[Prompt, int | None]:
    """Return a prompt with the number of blocks of its text, None if the text is unfinished."""
    state = prompt.state
    n_drawn = len(state.token_ids) + (state.finish_reason == "eos")
    return prompt, -(-n_drawn // STEPS) if state.finished else None


def most_rows(model: Model) -> int:
    """Return the maximum number of rows of a slot table."""
    return MOST_ROWS_CPU if model.devices.platform == "cpu" else MOST_ROWS_ACCELERATOR


def cache_limit(
    model: Model,
    shared: int,
    steps: int,
    limit: int | None = None,
    most_tokens: int | None = None,
) -> Callable[[int, int], bool]:
    """Return a predicate of (rows, slots): True if a slot table may have a cache of this shape.

    It depends on the model, the prompts and the size of the device's memory, and on nothing that
    changes while programs run, so a resumed run has the same rows as the first one.

    Args:
        shared: number of tokens in the common prefix, which are outside the slot tables.
        steps: number of steps of a block.
        limit: bytes of each device, or None to ask the first process's device.
        most_tokens: maximum tokens of a program, or None; it limits models that recompute the
            complete text at each step.
    """
    slot, states = slot_bytes(model), state_bytes(model)
    max_bytes = MOST_CACHE_CPU if model.devices.platform == "cpu" else MOST_CACHE_ACCELERATOR
    available = _available_bytes(model, limit)
    functions = model.functions.cached
    recomputes = functions is not None and not functions.saves_work
    if available is not None:
        prefix = prefix_slots(model, shared) if shared else 0
        available -= (MOST_PREFILL + prefix) * slot + states

    def fits(rows: int, slots: int) -> bool:
        if recomputes and most_tokens and rows * (shared + slots + steps) > most_tokens:
            return False
        # States count twice: those of the slots, and those of prompts that wait for a slot.
        working = rows * ((slots + steps) * slot + 2 * states)
        fixed = rows * (slots * slot + states)
        return fixed <= max_bytes and (available is None or working <= available)

    return fits


def slot_bytes(model: Model) -> int:
    """Return the bytes of one token's keys and values in all layers, on each device."""
    empty = _one_slot(model)
    return _bytes_a_device(model, (empty.key, empty.value))


def state_bytes(model: Model) -> int:
    """Return the bytes of one row's states in all recurrent layers, on each device."""
    return _bytes_a_device(model, _one_slot(model).states)


@jax_settings.isolated()
def _one_slot(model: Model) -> KeysValues:
    functions = model.functions.cached
    assert functions is not None  # transformers' classes do not use slot tables
    empty_cache: Callable[[], KeysValues] = functools.partial(functions.empty_cache, 1, 1)
    if (mesh := model.devices.mesh) is not None:
        empty_cache = mesh.over(empty_cache, (), KEYS_VALUES)
    return jax.eval_shape(empty_cache)


def _bytes_a_device(model: Model, tree: Any) -> int:
    """Return the bytes of each device's share of arrays that span all devices."""
    n_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    return n_bytes // model.devices.shape.model


def _available_bytes(model: Model, limit: int | None) -> int | None:
    """Return the bytes available to slot tables, or None if the device does not report memory."""
    limit = limit_bytes() if limit is None else limit
    # The first process decides for all: with different numbers of rows, plans would differ.
    agreed = processes.broadcast_from_first((limit or 0).to_bytes(8, "little"))
    if not (limit := int.from_bytes(agreed, "little")):
        return None
    return int(SHARE * (limit - placed_bytes(model.params) - model.devices.gathered_bytes))


@contextlib.contextmanager
def explain_out_of_memory(model: Model, rows: int, slots: int) -> Iterator[None]:
    """Convert an out-of-memory error to one with the slot table's size and the remedies.

    Raises:
        InputError: memory ran out in the block.
    """
    try:
        yield
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        size = format_bytes(rows * (slots * slot_bytes(model) + state_bytes(model)))
        quantize = "" if model.quantized else "use --quantize int8, "
        raise InputError(
            f"{rows} x {slots} tokens, whose keys, values and states take {size} of each device, "
            "do not fit in its memory in addition to the model and a step's buffers; "
            f"{quantize}spread the model with --mesh model=N (a larger N than in this run), ask "
            "for fewer new tokens, or shorten the longest prompts"
        ) from error

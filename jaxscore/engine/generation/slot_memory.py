"""What a lane of texts may take of a device, and an error where that does not fit.

parameters | SHARE of the rest: cache, a block's tokens, prompts, prefix | the rest
"""

import contextlib
from collections.abc import Callable, Iterator

import jax
from jax.errors import JaxRuntimeError

from jaxscore.engine.device_memory import limit_bytes, parameter_bytes
from jaxscore.engine.generation.prefill import MOST_PREFILL
from jaxscore.engine.programs import prefix_slots
from jaxscore.engine.split_batches import exhausted
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.byte_sizes import byte_text
from jaxscore.models.model import Model

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
    told = processes.from_first((limit or 0).to_bytes(8, "little"))
    if not (limit := int.from_bytes(told, "little")):
        return None
    return int(SHARE * (limit - parameter_bytes(model.params)))


@contextlib.contextmanager
def naming(model: Model, rows: int, slots: int) -> Iterator[None]:
    """Say what a lane takes and what helps, where memory runs out in the block.

    Raises:
        InputError: it did.
    """
    try:
        yield
    except JaxRuntimeError as problem:
        if not exhausted(problem):
            raise
        size = byte_text(rows * slots * slot_bytes(model))
        quantize = "" if model.quantized else "take --quantize int8, "
        raise InputError(
            f"{rows} x {slots} tokens whose keys and values take {size} of each device do not fit "
            f"in its memory beside the model and what a step needs; {quantize}spread the model "
            "with --mesh model=N (a larger N than in this run), ask for fewer new tokens, or "
            "shorten the longest prompts"
        ) from problem

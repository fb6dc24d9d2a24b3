"""Check that generation that resumes has the same bits as an uninterrupted run."""

import contextlib
import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxscore.device import generate
from jaxscore.engine.engine import Engine
from jaxscore.engine.generation import Scheduler
from jaxscore.engine.generation.slots import SlotTable
from jaxscore.engine.generation.state import TextState
from jaxscore.engine.progress import Progress
from jaxscore.models.model import Model
from jaxscore.plan.requests import TokenRequest
from jaxscore.text.decoder import TokenBytes
from tools.device_check.checks import Options, report

N_TEXTS, LONGEST = 600, 96  # more than two groups of 256 rows; new tokens
N_SMALL, LONGEST_SMALL = 80, 40  # the same of a CPU's 32 rows
ODD = 2654435761, 2246822519  # what bits are multiplied with; a changed bit changes both sums

# (a text's request, tokens it had before a block) -> its row, the bits of its keys and values, and
# its tokens of the block
Seen = dict[tuple[bytes, int], tuple[int, bytes, bytes]]


def compare_resumed(name: str, model: Model, options: Options) -> bool:
    """Report whether texts have the same bits if every other text is already known.

    Compares the keys, values and tokens of each generated text after each block. Tokens alone would
    not show it: most stay the same if a logit moves by 1e-5. The rows of neighbours, and the
    previous contents of a text's row, differ between the runs.
    """
    writer = Scheduler(Engine(model), _Silent())
    asked = requests(options, model.vocab_size)
    with _bits() as seen:
        expected = _written(writer, asked, {})
    if failed := [(k, text.error) for k, text in enumerate(expected) if text.error is not None]:
        k, error = failed[0]
        return report(False, f"{name}: {len(failed)} of {len(asked)} texts fail; text {k}: {error}")
    with _bits() as seen_again:
        _written(writer, asked, dict(list(enumerate(expected))[::2]))
    missing = [request.digest() for request in asked[1::2]]
    blocks: dict[bytes, list[bool]] = {digest: [] for digest in missing}
    for key in {*seen, *seen_again}:
        if key[0] in blocks:
            blocks[key[0]].append(seen.get(key) == seen_again.get(key))
    other = sum(not all(same) for same in blocks.values())
    n_blocks = sum(map(len, blocks.values()))
    return report(
        not other and all(blocks.values()),
        f"{name}: {other} of {len(missing)} texts have other bits, of {n_blocks} blocks compared, "
        "in a run that has the others already",
    )


def requests(options: Options, vocab_size: int) -> list[TokenRequest]:
    """Prompts of different lengths, with texts of different lengths."""
    draw = np.random.default_rng(4)
    n, longest = (N_SMALL, LONGEST_SMALL) if options.small else (N_TEXTS, LONGEST)
    return [
        TokenRequest(
            draw.integers(0, vocab_size, int(draw.integers(2, 30))).astype(np.int32),
            n_new=int(draw.integers(1, longest)),
            temperature=1.0,
            top_p=1.0,
            seed=k,
            stop=(),
            eos_ids=(),
        )
        for k in range(n)
    ]


@contextlib.contextmanager
def _bits() -> Iterator[Seen]:
    """Record what the decode blocks compute, see `Seen`."""
    block, seen = SlotTable._decode_block, Seen()

    def watched(slots, everything):
        everything, tokens = block(slots, everything)
        sums = np.asarray(_sums(everything[0]))
        for row, text in slots._running.items():
            key = text.request.digest(), len(text.token_ids)
            seen[key] = row, sums[row].tobytes(), tokens[row].tobytes()
        return everything, tokens

    SlotTable._decode_block = watched
    try:
        yield seen
    finally:
        SlotTable._decode_block = block


@jax.jit
def _sums(state: generate.GenerationState) -> jax.Array:
    """Checksums of the bits of each row's keys and values, [rows, 4].

    Summed on the device: fetching a cache of several GB would take longer than generating.
    """
    cache = state.cache

    def of(stored: jax.Array) -> list[jax.Array]:
        dtype = {2: jnp.uint16, 4: jnp.uint32}[stored.dtype.itemsize]
        bits = jax.lax.bitcast_convert_type(stored, dtype).astype(jnp.uint32)
        used = jnp.arange(stored.shape[3]) < cache.length[:, None]  # [rows, slots]
        bits = jnp.where(used[None, :, None, :, None], bits, 0)
        n, _, *axes = stored.shape
        at = jnp.arange(n * int(np.prod(axes)), dtype=jnp.uint32).reshape(n, 1, *axes)
        return [(bits * (at * np.uint32(odd) | 1)).sum((0, 2, 3, 4), jnp.uint32) for odd in ODD]

    return jnp.stack([*of(cache.key), *of(cache.value)], axis=1)


def _written(
    writer: Scheduler, asked: list[TokenRequest], resumed: dict[int, TextState]
) -> list[TextState]:
    texts = [
        dataclasses.replace(resumed[k]) if k in resumed else TextState(request)
        for k, request in enumerate(asked)
    ]
    with Progress(False) as progress:
        for _ in writer.generate(texts, progress):
            pass
    return texts


class _Silent(TokenBytes):
    """Texts without a tokenizer: only ids are compared."""

    def __init__(self) -> None:
        pass

    def join(self, ids: object) -> str:
        return ""

"""What the device has to know of the requests of a group, a row for each."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.generate import Decoding
from jaxscore.device.sampling import Sampling
from jaxscore.plan.token_requests import TokenRequest


def begin(
    asked: Sequence[TokenRequest],
    cache: KVCache,
    rows: int,
    vocab_size: int,
    put: Callable[[Any], Any],
) -> tuple[Sampling, Decoding, Any]:
    """How each request draws, what is decoded before the first step, and the ids that end texts.

    Args:
        cache: on the device, of every prompt without its last token.
        rows: of the group, at least as many as requests; the others are done.
        put: arrays of the host on the devices.
    """

    def of(values: Iterable[Any], fill: Any, dtype: Any) -> Any:
        return put(column(values, fill, dtype, rows))

    sampling = Sampling(
        of((r.temperature for r in asked), 0.0, np.float32),
        of((r.top_p for r in asked), 1.0, np.float32),
        of((r.top_k for r in asked), 0, np.int32),
        of((r.repetition_penalty for r in asked), 1.0, np.float32),
        of((r.seed for r in asked), 0, np.uint32),
    )
    seen = _seen(asked, rows, vocab_size)
    state = Decoding(
        cache,
        token=of((r.ids[-1] for r in asked), 0, np.int32),
        done=of((False for _ in asked), True, bool),
        left=of((r.n_new for r in asked), 0, np.int32),
        drawn=of((0 for _ in asked), 0, np.int32),
        seen=None if seen is None else put(seen),
    )
    return sampling, state, put(_eos(asked, rows))


def column(values: Iterable[Any], fill: Any, dtype: Any, rows: int) -> np.ndarray:
    """A value for each request, and `fill` for the other rows."""
    given = [*values]
    return np.array([*given, *[fill] * (rows - len(given))], dtype)


def _eos(asked: Sequence[TokenRequest], rows: int) -> np.ndarray:
    """Ids that end each row's text, filled up with -1 to a power of two: few shapes to compile."""
    most = max(len(r.eos_ids) for r in asked)
    out = np.full((rows, 1 << max(0, most - 1).bit_length()), -1, np.int32)
    for row, r in zip(out, asked, strict=False):
        row[: len(r.eos_ids)] = r.eos_ids
    return out


def _seen(asked: Sequence[TokenRequest], rows: int, vocab_size: int) -> np.ndarray | None:
    """Which ids each row's prompt holds; None where no request has a repetition penalty."""
    if all(r.repetition_penalty == 1 for r in asked):
        return None
    out = np.zeros((rows, vocab_size), bool)
    for row, r in zip(out, asked, strict=False):
        row[r.ids] = True
    return out

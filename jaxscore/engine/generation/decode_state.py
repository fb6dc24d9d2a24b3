"""What the device has to know of the requests that are being decoded, a row for each."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.generate import Begun, Decoding
from jaxscore.device.sampling import Sampling
from jaxscore.plan.requests import TokenRequest

Everything = tuple[Decoding, Sampling, Any]  # what `generate.begin` takes and gives


class Facts(NamedTuple):
    """What of all requests of a lane decides its programs.

    Attributes:
        greedy: none of them samples.
        cut: some that sample have a `top_k`, or a `top_p` below 1.
        penalties: some have a repetition penalty.
        n_eos: most ids that end a text, a power of two: few shapes to compile.
    """

    greedy: bool
    cut: bool
    penalties: bool
    n_eos: int


def facts_of(asked: Sequence[TokenRequest]) -> Facts:
    most = max(len(one.eos_ids) for one in asked)
    drawn = [one for one in asked if one.temperature > 0]
    return Facts(
        not drawn,
        any(one.top_k or one.top_p < 1 for one in drawn),
        any(one.repetition_penalty != 1 for one in asked),
        1 << max(0, most - 1).bit_length(),
    )


def idle(
    cache: KVCache, rows: int, facts: Facts, vocab_size: int, put: Callable[[Any], Any]
) -> Everything:
    """What is decoded before any request has begun: all rows are done.

    Args:
        cache: on the devices.
        put: arrays of the host on the devices.
    """
    none = begun([], rows, rows, facts, vocab_size, put)
    done, drawn = put((np.ones(rows, bool), np.zeros(rows, np.int32)))
    return Decoding(cache, none.token, done, none.left, drawn, none.seen), none.sampling, none.eos


def begun(
    some: Sequence[tuple[int, int, TokenRequest]],
    width: int,
    rows: int,
    facts: Facts,
    vocab_size: int,
    put: Callable[[Any], Any],
) -> Begun:
    """Requests that begin: (row, tokens of its prompt in the cache, request).

    Args:
        width: of the arrays; those beyond the requests are of no row.
        rows: of the cache.
        put: arrays of the host on the devices.
    """

    def of(values: Iterable[Any], fill: Any, dtype: Any) -> Any:
        given = [*values]
        return put(np.array([*given, *[fill] * (width - len(given))], dtype))

    asked = [request for *_, request in some]
    eos = np.full((width, facts.n_eos), -1, np.int32)
    seen = np.zeros((width, vocab_size), bool) if facts.penalties else None
    for k, one in enumerate(asked):
        eos[k, : len(one.eos_ids)] = one.eos_ids
        if seen is not None:
            seen[k, one.ids] = True
    return Begun(
        row=of((row for row, *_ in some), rows, np.int32),
        length=of((length for _, length, _ in some), 0, np.int32),
        token=of((one.ids[-1] for one in asked), 0, np.int32),
        left=of((one.n_new for one in asked), 0, np.int32),
        seen=put(seen),
        sampling=Sampling(
            of((one.temperature for one in asked), 0.0, np.float32),
            of((one.top_p for one in asked), 1.0, np.float32),
            of((one.top_k for one in asked), 0, np.int32),
            of((one.repetition_penalty for one in asked), 1.0, np.float32),
            of((one.seed for one in asked), 0, np.uint32),
        ),
        eos=put(eos),
    )

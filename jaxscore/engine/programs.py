"""Compiled programs by name, each made once and ahead of time."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxscore.device.attention.past import Past
from jaxscore.engine.mesh import EVERYWHERE, KEYS_VALUES, Arrangement, specs_of
from jaxscore.engine.progress import Progress
from jaxscore.models.model import Cached, Model
from jaxscore.plan.packing import row_lengths


class Compiled(NamedTuple):
    """One program, for the record: its name begins with what it does, then its sizes."""

    name: tuple[Any, ...]
    seconds: float
    temporary_bytes: int


class Programs:
    """Programs ahead of time, so that nothing can ever be compiled behind the user's back.

    On an arrangement of several devices the functions are one shard's, see there.
    """

    def __init__(
        self, arrangement: Arrangement | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """`options` are the compiler's, see `engine.platform.same_bits`."""
        self.arrangement, self.options = arrangement, options or {}
        self.compiled: list[Compiled] = []
        self._programs: dict[tuple[Any, ...], Any] = {}

    def put(self, values: Any, where: PartitionSpec = EVERYWHERE) -> Any:
        """Arrays of the host on the devices, as `run` takes them."""
        if self.arrangement is None:
            return jax.tree.map(jnp.asarray, values)
        return self.arrangement.put(values, where)

    def run(
        self,
        name: tuple[Any, ...],
        function: Any,
        args: tuple[Any, ...],
        progress: Progress,
        donate: tuple[int, ...] = (),
        outputs: Any = EVERYWHERE,
    ) -> Any:
        """`function(*args)` by the program of that name, made at its first call.

        Args:
            name: what it does and every size that its arguments' shapes depend on.
            args: on the devices, see `put`.
            donate: arguments whose memory the result may take.
            outputs: how the results lie on an arrangement, a spec for each part of the tree.
        """
        program = self._programs.get(name)
        if program is None:
            with progress.says(f"compiling {name[0]} for {' x '.join(map(str, name[1:]))}"):
                if self.arrangement is not None:
                    function = self.arrangement.over(function, specs_of(args), outputs)
                program = self._programs[name] = self._compile(name, function, args, donate)
        return program(*args)

    def _compile(self, name: Any, function: Any, args: Any, donate: tuple[int, ...]) -> Any:
        started = time.perf_counter()
        program = jax.jit(function, donate_argnums=donate).lower(*args).compile(self.options)
        analysis = program.memory_analysis()
        temporary = int(analysis.temp_size_in_bytes) if analysis else 0
        self.compiled.append(Compiled(name, time.perf_counter() - started, temporary))
        return program


def trunk_past(programs: Programs, model: Model, ids: np.ndarray, progress: Progress) -> Past:
    """Keys and values of a path from the root, which rows may continue.

    Args:
        ids: int32 [p], at most the model's positions; padded to a bucket.
    """
    cached = model.cached
    assert cached is not None  # only such a model's rows continue anything
    slots = next(n for n in row_lengths(model.max_positions) if n >= len(ids))
    padded = np.zeros((1, slots), np.int32)
    padded[0, : len(ids)] = ids
    at = np.minimum(np.arange(slots, dtype=np.int32), len(ids) - 1)[None]
    end = np.full((1, slots), slots, np.int32)
    args = (model.params, *programs.put((padded, at, end)))
    run = keys_and_values(cached)
    key, value = programs.run(("trunk", slots), run, args, progress, outputs=KEYS_VALUES)
    first, length = programs.put((np.int32(0), np.array([len(ids)], np.int32)))
    return Past(key, value, first, length)


def keys_and_values(cached: Cached) -> Any:
    """(params, ids, position, subtree_end, *past) -> keys and values of rows, as stored."""

    def run(params: Any, ids: Any, position: Any, subtree_end: Any, *past: Past) -> Any:
        return cached.extend(params, ids, position, subtree_end, past)[1]

    return run

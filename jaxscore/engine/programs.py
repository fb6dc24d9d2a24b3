"""Ahead-of-time compilation of each program once; model variants and prefix caches."""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import PartitionSpec

from jaxscore.device import jax_settings
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.attention.score_rule import BatchTooLong
from jaxscore.device.decoder import Extend
from jaxscore.device.rows import Chunks, Paths, Scores
from jaxscore.device.score import score_batch, score_shard
from jaxscore.device.sharding import KEYS_VALUES, REPLICATED, DeviceMesh, array_specs
from jaxscore.engine.devices import is_out_of_memory, limit_bytes
from jaxscore.engine.progress import Progress
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.models.model import Cached, Model
from jaxscore.plan.chunks import PathPlan, plan_path
from jaxscore.plan.row_batches import row_lengths


class DoesNotFit(JaxRuntimeError):
    """Error in all processes: a program does not fit in the memory of one of them."""


class Compiled(NamedTuple):
    """Record of a compiled program.

    Attributes:
        name: purpose and sizes.
        seconds: compile time.
        temporary_bytes: temporary memory, 0 if unknown.
    """

    name: tuple[Any, ...]
    seconds: float
    temporary_bytes: int


class Programs:
    """Compiles programs ahead of time, so that nothing compiles implicitly.

    The key of a program is its function, the arguments that it may overwrite, and the abstract
    values of its arguments: shape, dtype, weak type and sharding of each array. On a mesh the
    functions compute one shard, see `device.sharding`. Threads may share an instance: a thread
    that needs a program waits while another one compiles it.
    """

    def __init__(
        self, mesh: DeviceMesh | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Create an empty set of programs.

        Args:
            mesh: the mesh that programs run on, or None for a single device.
            options: compiler options, see `device.backends.deterministic_options`.
        """
        self.mesh, self.options = mesh, options or {}
        self.compiled: list[Compiled] = []
        self._programs: dict[Hashable, Any] = {}
        self._parameters: tuple[Any, Hashable] | None = None
        self._compiling = threading.Lock()

    @jax_settings.isolated()
    def put(self, values: Any, where: PartitionSpec = REPLICATED) -> Any:
        """Copy host arrays to the devices, as arguments of `run`."""
        if self.mesh is None:
            return jax.tree.map(jnp.asarray, values)
        return self.mesh.put(values, where)

    @jax_settings.isolated()
    def run(
        self,
        name: tuple[Any, ...],
        function: Any,
        args: tuple[Any, ...],
        progress: Progress,
        donate: tuple[int, ...] = (),
        outputs: Any = REPLICATED,
    ) -> Any:
        """Return `function(*args)`; the program is compiled at the first call with these shapes.

        Args:
            name: purpose and sizes; flags among them are not displayed.
            function: the same object in each call, or `functools.partial` of the same objects.
            args: arguments on the devices, see `put`.
            donate: indices of the arguments whose memory the result may reuse.
            outputs: partition specs of the results on a mesh, a prefix of the result tree.

        Raises:
            InputError: the batch is too long for the attention of this device.
            DoesNotFit: in every process of a multi-process run, before the program runs.
        """
        abstract = tuple(map(self._abstract, args))
        key: Hashable = (function_key(function), abstract, donate)
        if self.mesh is not None:
            specs, structure = jax.tree.flatten(outputs)
            key = key, structure, *specs
        program = self._programs.get(key)
        if program is None:
            sizes = " x ".join(str(size) for size in name[1:] if not isinstance(size, bool))
            with self._compiling, progress.during(f"compiling {name[0]} for {sizes}"):
                if key not in self._programs:  # another thread may have compiled it meanwhile
                    if self.mesh is not None:
                        function = self.mesh.over(function, array_specs(args), outputs)
                    self._programs[key] = self._compile(name, function, args, donate)
            program = self._programs[key]
        return program(*args)

    def _abstract(self, arg: Any) -> Hashable:
        """Return `abstract_value` of an argument; it is cached for the large parameter tree."""
        if not isinstance(arg, dict):
            return abstract_value(arg)
        if self._parameters is None or self._parameters[0] is not arg:
            self._parameters = arg, abstract_value(arg)
        return self._parameters[1]

    def forget_parameters(self) -> None:
        """Drop the reference to parameters that were replaced."""
        self._parameters = None

    def _compile(self, name: Any, function: Any, args: Any, donate: tuple[int, ...]) -> Any:
        started = time.perf_counter()
        try:
            lowered = jax.jit(function, donate_argnums=donate).lower(*args)
        except BatchTooLong as problem:
            raise InputError(f"{problem}; shorten the longest texts") from None
        program = analysis = None
        try:
            program = lowered.compile(self.options)
            analysis = program.memory_analysis()
        except JaxRuntimeError as problem:
            if not processes.is_distributed() or not is_out_of_memory(problem):
                raise
        if processes.is_distributed():
            _agree_on_memory(name, fits=program is not None and _fits(analysis))
        temporary = int(analysis.temp_size_in_bytes) if analysis else 0
        self.compiled.append(Compiled(name, time.perf_counter() - started, temporary))
        return program

    def as_text(self, purpose: str) -> list[str]:
        """Return the optimised HLO of all programs with this purpose, the first item of `name`."""
        programs = zip(self.compiled, self._programs.values(), strict=True)
        return [program.as_text() for record, program in programs if record.name[0] == purpose]


def _fits(analysis: Any) -> bool:
    """Return True if a program's arguments, results and temporary memory fit on the device."""
    if analysis is None or (limit := limit_bytes()) is None:
        return True
    return bool(
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
        <= limit
    )


def _agree_on_memory(name: tuple[Any, ...], *, fits: bool) -> None:
    """Check in all processes that a program fits, before any of them runs it.

    If one process failed later, the others would wait in a collective operation forever.

    Raises:
        DoesNotFit: in every process, if the program does not fit in one of them.
    """
    if short := processes.those_without(fits):
        purpose = " ".join(map(str, name))
        raise DoesNotFit(f"RESOURCE_EXHAUSTED: {purpose} in process {short[0]}")


def abstract_value(tree: Any) -> Hashable:
    """Return structure, shapes, dtypes and shardings of a tree: all that a program depends on."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *(
        (x.shape, x.dtype, getattr(x, "weak_type", False), x.sharding) for x in leaves
    )


def function_key(function: Any) -> Hashable:
    """Return a key that is equal for equal functions and for equal `functools.partial` objects."""
    if not isinstance(function, functools.partial):
        return function
    options = tuple(sorted(function.keywords.items()))
    return function_key(function.func), *map(function_key, function.args), options


def prefix_cache(programs: Programs, model: Model, ids: np.ndarray, progress: Progress) -> KVCache:
    """Compute the prefix cache of a path from the root, which rows may continue.

    Args:
        ids: int32 [p], at most as many as the model's positions; padded here to a row length.
    """
    cached, needs = model.functions.cached, model.functions.paths
    assert cached is not None  # otherwise the planner does not use prefixes
    slots = prefix_slots(model, len(ids))
    padded = np.zeros((1, slots), np.int32)
    padded[0, : len(ids)] = ids
    position = np.minimum(np.arange(slots, dtype=np.int32), len(ids) - 1)[None]
    end = np.full((1, slots), slots, np.int32)
    plan = None if needs is None else plan_path(slots, needs)
    state_tokens = np.array([len(ids) - 1], np.int32)
    args = (
        model.params,
        *programs.put((padded, position, end)),
        *put_paths(programs, plan, state_tokens),
    )
    run = keys_and_values(cached)
    computed = programs.run(("prefix", slots), run, args, progress, outputs=KEYS_VALUES)
    first, length = programs.put((np.int32(0), np.array([len(ids)], np.int32)))
    return KVCache(computed.key, computed.value, first, length, computed.states)


def prefix_slots(model: Model, n_tokens: int) -> int:
    """Return the number of slots of the cache of a prefix with this many tokens."""
    return next(n for n in row_lengths(model.max_positions) if n >= n_tokens)


def put_paths(
    programs: Programs, plan: PathPlan | None, state_tokens: np.ndarray
) -> tuple[Paths | None, Any]:
    """Copy a path plan and the tokens whose states are returned to the devices, if there is one."""
    if plan is None:
        return None, None
    chunks = None
    if plan.chunks is not None:
        *arrays, n_steps = plan.chunks
        chunks = Chunks(*programs.put((*arrays, np.int32(n_steps))))
    return Paths(programs.put(plan.parent), chunks), programs.put(state_tokens)


def keys_and_values(cached: Cached) -> Any:
    """Return a function that computes `KeysValues`, see `decoder.extend`.

    Its arguments are (params, ids, position, subtree_end, paths, state_tokens, *caches).
    """
    return functools.partial(_keys_and_values, cached.extend)


def _keys_and_values(
    extend: Extend,
    params: Any,
    ids: Any,
    position: Any,
    subtree_end: Any,
    paths: Paths | None,
    state_tokens: Any,
    *caches: KVCache,
) -> Any:
    return extend(params, ids, position, subtree_end, caches, paths, state_tokens)[1]


class Variant(NamedTuple):
    """Variant of a model for some request lengths.

    Attributes:
        score: function of (shape, params, batch, *caches) that returns scores.
    """

    model: Model
    programs: Programs
    score: Callable[..., Scores]


def variants_of(model: Model, options: dict[str, Any]) -> list[Variant]:
    """Return one variant, or two if long requests have different rotary frequencies.

    Args:
        options: compiler options, see `device.backends.deterministic_options`.
    """
    mesh = model.devices.mesh
    run = score_batch if mesh is None else score_shard
    versions = [model.functions] if model.longer is None else [model.functions, model.longer[1]]
    return [
        Variant(
            dataclasses.replace(model, functions=functions),
            Programs(mesh, options),
            functools.partial(run, functions.hidden_states, functions.unembedding),
        )
        for functions in versions
    ]

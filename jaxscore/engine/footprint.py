"""Memory, FLOPs, collectives and kernels of a scoring program, from the compiler.

Neither weights nor an execution are needed. Collectives and kernels are parsed from XLA's optimised
HLO: each operation is one line, and the body of a loop occurs once, however often it runs.
"""

import collections
import dataclasses
import functools
import importlib.metadata
import importlib.util
import math
import re
import time
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxscore.device import jax_settings
from jaxscore.device.rows import PathShape, Rows, ScoredPositions, packed_size
from jaxscore.device.score import score_batch, score_shard
from jaxscore.device.sharding import REPLICATED, ROWS, DeviceMesh, array_specs
from jaxscore.engine.devices import is_out_of_memory
from jaxscore.engine.targets import compiling_for
from jaxscore.errors import InputError
from jaxscore.models.model import Model
from jaxscore.plan.chunks import ChunkShape
from jaxscore.plan.row_batches import TARGETS_PER_TOKEN, batch_rows, tails

# An asynchronous collective is two operations; `-done` has the result's shape.
COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
COLLECTIVE = re.compile(rf"= (.*?) ({COLLECTIVES})(-done)?\(")
# In a TPU's program, a reduce-scatter is a fusion whose computation contains an all-reduce.
FUSED_SCATTER = "%all-reduce-scatter"
SCATTER = re.compile(rf"= (.*?) fusion\(.*calls={FUSED_SCATTER}")
# A collective that a TPU overlaps with other operations occurs several times: in the fusions of its
# start, its end and each of these operations.
CHAIN = re.compile(r'channel_id=([0-9]+).*chain_id="([0-9]+)"')
SHAPE = re.compile(r"\b(pred|[a-z]+?([0-9]+)\w*)\[([0-9,]*)\]")
JOINED = 'custom_call_target="ConcatBitcast"'
KERNEL = re.compile(r'op_name="[^"]*?([^"/]+)/pallas_call"')


@dataclasses.dataclass(frozen=True)
class Collective:
    """Collectives of one kind in a program.

    Attributes:
        op: the HLO operation, such as "all-gather".
        count: number of operations.
        bytes: bytes of their results.
    """

    op: str
    count: int
    bytes: int


def text_of(program: Any) -> str:
    """Return a compiled program as HLO text; empty if the compiler does not provide it.

    Raises:
        InputError: the installed TPU compiler does not match JAX, which cannot read its output.
    """
    try:
        return program.as_text() or ""
    except JaxRuntimeError as error:
        if importlib.util.find_spec("libtpu") is None:
            raise
        jax, libtpu = (importlib.metadata.version(name) for name in ("jax", "libtpu"))
        raise InputError(
            f"JAX {jax} cannot read the program that libtpu {libtpu} has compiled; install the "
            f"version that JAX requires: pip install 'jax[tpu]=={jax}'"
        ) from error


def collectives(text: str) -> list[Collective]:
    """Count collective operations by kind; a loop's body counts once."""
    count: collections.Counter[str] = collections.Counter()
    size: collections.Counter[str] = collections.Counter()
    chains: set[tuple[str, ...]] = set()
    is_fused = False
    for line in text.splitlines():
        if not line.startswith((" ", "}")):
            is_fused = line.startswith(FUSED_SCATTER)
        if match := SCATTER.search(line):
            op = "reduce-scatter"
        elif not is_fused and (match := COLLECTIVE.search(line)):
            op = match[2]
        else:
            continue
        if chain := CHAIN.search(line):
            if chain.groups() in chains:
                continue
            chains.add(chain.groups())
        count[op] += 1
        size[op] += shape_bytes(match[1])
    return [Collective(op, count[op], size[op]) for op in sorted(count)]


def joined_slices(text: str) -> int:
    """Count operations that join adjacent slices into one array without generating TPU code.

    See `CreateBitcastConcat` in XLA's memory space assignment.
    """
    return text.count(JOINED)


def shape_bytes(text: str) -> int:
    """Return the bytes of an HLO shape; the sum of all elements if it is a tuple."""
    bits = 0
    for dtype, width, dims in SHAPE.findall(text):
        n_numbers = math.prod(map(int, dims.split(","))) if dims else 1
        bits += n_numbers * (8 if dtype == "pred" else int(width))
    return bits // 8


def kernels(text: str) -> list[str]:
    """Return the distinct names of the Pallas kernels, sorted."""
    return sorted(set(KERNEL.findall(text)))


Where: TypeAlias = DeviceMesh | jax.Device | None  # None is JAX's default device


class Footprint(NamedTuple):
    """Memory and cost of one program that scores a batch.

    Attributes:
        rows, length: the batch's shape.
        temporary_bytes: working memory without parameters, rows and scores.
        batch_bytes: memory of the input rows and the resulting scores.
        compile_seconds: compile time, including tracing.
        xla_flops: XLA's count of FLOPs, in which a loop's body counts once; None if the compiler
            does not report it.
        collectives: operations between devices; a loop's body counts once.
    """

    rows: int
    length: int
    temporary_bytes: int
    batch_bytes: int
    compile_seconds: float
    xla_flops: float | None
    collectives: list[Collective]

    @property
    def working_bytes(self) -> int:
        """Memory in addition to the parameters."""
        return self.temporary_bytes + self.batch_bytes


class Refused(NamedTuple):
    """Program that the compiler rejected because it does not fit on the device.

    Attributes:
        rows, length: the batch's shape.
        total_bytes: the program's memory as the compiler reports it, including parameters.
    """

    rows: int
    length: int
    total_bytes: int


# Matches "the total memory required for HLO temporaries (144.87G) exceeds available HBM (95.74G)".
# The temporaries include the parameters; G is 2**30 bytes.
REQUIRED = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT])\)? (?:exceeds|of)\b")
POWERS = {"K": 10, "M": 20, "G": 30, "T": 40}


@jax_settings.isolated()
def measure(
    model: Model,
    rows: int,
    length: int,
    device: jax.Device | None = None,
    measures: tuple[str, ...] = (),
) -> Footprint:
    """Compile the scoring program for a batch of this shape; all bytes are per device.

    Args:
        model: the model, on one device or on a mesh; its `params` may be `jax.ShapeDtypeStruct`.
        rows, length: shape of the batch of each share of `data`.
        device: an absent device of the model, or None for JAX's devices.
        measures: names of `ModelFunctions.measures` that the program computes.

    Raises:
        InputError: the compiler of this device does not report memory.
        JaxRuntimeError: the compiler rejects the program since it needs too much memory; see
            `refused`.
    """
    started = time.perf_counter()
    mesh = model.devices.mesh
    batch = abstract_batch(rows, length, _path_shape(model, rows * length))
    score, packed_batch = scoring(model, rows, length, device if mesh is None else mesh)
    score = functools.partial(score, measures=measures)
    lowered = lower(score, (model.params, packed_batch), mesh, device)
    with compiling_for(device):
        program = lowered.compile()
    seconds = time.perf_counter() - started
    memory, costs = program.memory_analysis(), program.cost_analysis()
    if memory is None:
        raise InputError(
            f"the compiler for {jax.default_backend()} does not report the memory of its programs; "
            "give --device cpu"
        )
    batch_leaves = jax.tree.leaves((batch, lowered.out_info))
    return Footprint(
        rows,
        length,
        int(memory.temp_size_in_bytes),
        sum(leaf.size * leaf.dtype.itemsize for leaf in batch_leaves),
        seconds,
        float(costs["flops"]) if costs else None,
        collectives(text_of(program)) if mesh is not None else [],
    )


def refused(problem: JaxRuntimeError, rows: int, length: int) -> Refused | None:
    """Parse a compiler's out-of-memory error; return None for other errors."""
    match = REQUIRED.search(str(problem)) if is_out_of_memory(problem) else None
    if match is None:
        return None
    return Refused(rows, length, int(float(match[1]) * 2 ** POWERS[match[2]]))


def lower(
    function: Any,
    args: tuple[Any, ...],
    mesh: DeviceMesh | None,
    device: jax.Device | None,
    outputs: PartitionSpec = REPLICATED,
) -> jax.stages.Lowered:
    """Lower a function of one shard for arguments that may be shapes.

    Args:
        device: an absent device, see `measure`.
        outputs: partition specs of the results on the mesh.
    """
    if mesh is not None:
        function = mesh.over(function, array_specs(args), outputs)
    with compiling_for(device):
        return jax.jit(function).lower(*args)


def scoring(model: Model, rows: int, length: int, where: Where) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Return the scoring function of (parameters, batch), and the shape of its batch.

    On a mesh there is one batch for each share of `data`.
    """
    run = score_batch if model.devices.mesh is None else score_shard
    states, unembedding = model.functions.hidden_states, model.functions.unembedding
    function = functools.partial(run, states, unembedding, (rows, length))
    path_shape = _path_shape(model, rows * length)
    if path_shape is not None:
        function = functools.partial(function, path_shape=path_shape)
    batch = abstract_batch(rows, length, path_shape)
    if not isinstance(where, DeviceMesh):
        return function, jax.ShapeDtypeStruct(batch.shape, batch.dtype, sharding=on(where))
    shape, sharding = (where.shape.data, *batch.shape), NamedSharding(where.mesh, ROWS)
    return function, jax.ShapeDtypeStruct(shape, batch.dtype, sharding=sharding)


def on(where: Where) -> SingleDeviceSharding | None:
    """Return the sharding of an array on a single device, or None without a device."""
    return SingleDeviceSharding(where) if isinstance(where, jax.Device) else None


def side_by_side(arrays: Any, where: Where) -> Any:
    """Place shapes of arrays on a device, or on a mesh with one copy per share of `data`."""

    def place(leaf: Any) -> Any:
        if not isinstance(where, DeviceMesh):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=on(where))
        shard_shape = leaf.shape or (1,)
        shape = where.shape.data * shard_shape[0], *shard_shape[1:]
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(where.mesh, ROWS))

    return jax.tree.map(place, arrays)


def batch_shapes(
    length: int, batch_tokens: int, *, recurrent: bool = False
) -> list[tuple[int, int]]:
    """Return the shapes (rows, row length) of the packer's batches of such rows, smallest first.

    Args:
        length: the row length.
        batch_tokens: number of tokens of a full batch.
        recurrent: True for a model whose layers carry a state.
    """
    full = max(1, batch_tokens // length)
    counts = {1}  # a plan with a single row
    for tail in tails(expensive=recurrent):
        counts |= {*batch_rows(full + 1, length, batch_tokens, tail)}
    return [(rows, length) for rows in sorted(counts)]


def abstract_batch(
    rows: int, length: int, path_shape: PathShape | None = None
) -> jax.ShapeDtypeStruct:
    """Return the shape of a batch as it is sent: packed into one int32 array."""
    n = rows * length
    return jax.ShapeDtypeStruct((packed_size(n, TARGETS_PER_TOKEN * n, path_shape),), jnp.int32)


def _path_shape(model: Model, n_tokens: int) -> ChunkShape | None:
    """Return the usual chunk sizes for recurrent layers, or None if the model has none."""
    needs = model.functions.paths
    return None if needs is None else needs.usual_shape(n_tokens)


def abstract_rows(rows: int, length: int) -> Rows:
    """Return the shapes of a batch's arrays as the packer creates them."""

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    token, budget = ints(rows, length), rows * length
    answers = ints(TARGETS_PER_TOKEN * budget)
    positions: Any = ints(budget), ints(), answers, answers, ints()
    return Rows(token, token, token, ScoredPositions(*positions))  # type: ignore[arg-type]

"""What a compiled program takes: asked of the compiler, without weights and without running it."""

import functools
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jaxscore.device.mesh import EVERYWHERE, ROWS, DeviceMesh, specs_of
from jaxscore.device.rows import Asked, Rows
from jaxscore.device.score import score_rows, score_shard
from jaxscore.errors import InputError
from jaxscore.models.model import Model
from jaxscore.plan.row_batches import ANSWERS
from jaxscore.plan.row_shapes import batch_rows


class Footprint(NamedTuple):
    """One program that scores a batch.

    Attributes:
        rows, length: the batch's shape.
        temporary_bytes: what it needs while it runs, parameters, rows and scores left out.
        batch_bytes: of the rows that it is given and the scores that it gives.
        compile_seconds: tracing included.
        xla_flops: as XLA counts them, a loop's body once however often it runs.
    """

    rows: int
    length: int
    temporary_bytes: int
    batch_bytes: int
    compile_seconds: float
    xla_flops: float

    @property
    def working_bytes(self) -> int:
        """Everything beside the parameters."""
        return self.temporary_bytes + self.batch_bytes


def measure(model: Model, rows: int, length: int) -> Footprint:
    """The scorer's program for a batch of this shape; bytes are those of each device.

    Args:
        model: on one device or on a mesh; its `params` may be `jax.ShapeDtypeStruct`.
        rows, length: of a batch, of which each share of `data` has one.

    Raises:
        InputError: the compiler of this device does not say.
    """
    started = time.perf_counter()
    batch, where = abstract_rows(rows, length), model.mesh
    run = score_rows if where is None else score_shard
    scored: Any = functools.partial(run, model.hidden_states, model.unembedding)
    args = model.params, batch
    if where is not None:
        args = model.params, _side_by_side(batch, where)
        scored = where.over(scored, specs_of(args), EVERYWHERE)
    lowered = jax.jit(scored).lower(*args)
    program = lowered.compile()
    seconds = time.perf_counter() - started
    memory, costs = program.memory_analysis(), program.cost_analysis()
    if memory is None or not costs:
        raise InputError(
            f"the compiler for {model.platform} does not say what its programs take; "
            "give --device cpu"
        )
    batch_leaves = jax.tree.leaves((batch, lowered.out_info))
    return Footprint(
        rows,
        length,
        int(memory.temp_size_in_bytes),
        sum(leaf.size * leaf.dtype.itemsize for leaf in batch_leaves),
        seconds,
        float(costs["flops"]),
    )


def _side_by_side(batch: Rows, where: DeviceMesh) -> Rows:
    """A batch for each share of `data`, as `score_shard` takes them."""
    sharding = NamedSharding(where.mesh, ROWS)

    def one(leaf: Any) -> Any:
        own = leaf.shape or (1,)
        shape = where.shape.data * own[0], *own[1:]
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(one, batch)


def batch_shapes(length: int, batch_tokens: int) -> list[tuple[int, int]]:
    """Rows and row length of the batches that the packer makes of such rows, small ones first."""
    full = max(1, batch_tokens // length)
    return [(rows, length) for rows in sorted(set(batch_rows(full + 1, length, batch_tokens)))]


def abstract_rows(rows: int, length: int) -> Rows:
    """The shapes of a batch as the packer makes it."""

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    token, budget = ints(rows, length), rows * length
    answers = ints(ANSWERS * budget)
    asked: Any = ints(budget), ints(), answers, answers, ints()
    return Rows(token, token, token, Asked(*asked))  # type: ignore[arg-type]

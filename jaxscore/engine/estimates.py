"""Time estimates of a layer and of the LM head, from the compiler's model of the chip.

Nothing is measured. XLA's estimates count a loop's body once, so the programs compiled here do not
contain loops: a decoder of one layer, and the LM head. A Pallas kernel counts with its declared
cost estimate.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.errors import JaxRuntimeError

from jaxscore.device.backends import BACKENDS, Backend, current_platform
from jaxscore.device.decoder_config import RECURRENT, DecoderConfig
from jaxscore.device.lm_head import IMPLEMENTATIONS
from jaxscore.device.lm_head.sums import terms
from jaxscore.device.rows import Chunks, Paths, ScoredPositions
from jaxscore.device.sharding import ROWS, DeviceMesh
from jaxscore.engine.footprint import (
    Collective,
    Where,
    abstract_rows,
    collectives,
    joined_slices,
    kernels,
    lower,
    on,
    refused,
    side_by_side,
    text_of,
)
from jaxscore.engine.targets import Target, compiling_for
from jaxscore.models import costs, native
from jaxscore.models.model import Model
from jaxscore.models.model_types import Dtype
from jaxscore.models.weights.params import shapes_of

# Vocabulary size of a one-layer decoder, so small that its embedding is negligible. It is a prime:
# no mesh can split it, so no sum over its shards is counted for the layer.
FEW_COLUMNS = 257


@dataclasses.dataclass(frozen=True)
class LayerEstimate:
    """Estimate of one layer for one batch, on each device.

    Attributes:
        rows, length: the batch's shape.
        is_recurrent: True if the layer has a recurrence; the states of its exits are left out.
        seconds: estimated time, or None if the compiler lacks an estimate or rejects the program.
        mfu: model FLOPs utilization: useful FLOPs divided by the device's FLOPs in that time at its
            bfloat16 peak. All products with weights, and causal attention in rows of one text
            each, are useful.
        operations_left_out: number of operations that the compiler cannot estimate and that do not
            move data.
        collectives, kernels: operations of the layer.
    """

    rows: int
    length: int
    is_recurrent: bool
    seconds: float | None
    mfu: float | None
    operations_left_out: int
    collectives: list[Collective]
    kernels: list[str]


@dataclasses.dataclass(frozen=True)
class VocabularyEstimate:
    """Estimate of the LM head for some scored positions, on each device.

    Attributes:
        queries: number of scored positions.
        seconds: estimated time, or None if the compiler lacks an estimate.
        products_share: share of matrix products in that time, at the device's bfloat16 peak.
        operations_left_out: see `LayerEstimate`.
        kernels: Pallas kernels of the LM head.
    """

    queries: int
    seconds: float | None
    products_share: float | None
    operations_left_out: int
    kernels: list[str]


def estimate_layer(
    config: DecoderConfig,
    dtype: Dtype,
    model_type: str,
    target: Target,
    where: Where,
    rows: int,
    length: int,
    *,
    recurrent: bool = False,
) -> LayerEstimate:
    """Estimate the layer with the widest attention window, or a recurrent layer.

    Args:
        where: a mesh or a device of the target.
        rows, length: shape of the batch of each share of `data`.
        recurrent: if True, estimate a layer without attention.
    """
    layer = one_layer(config, recurrent=recurrent)
    labels = rows, length, layer.recurrent is not None
    mesh = where if isinstance(where, DeviceMesh) else None
    backend = dataclasses.replace(BACKENDS[target.platform], mlp_tokens=None)  # no loop
    model = abstract_model(layer, dtype, model_type, where, backend)
    batch = abstract_rows(rows, length)
    arrays: Any = (batch.ids, batch.position, batch.subtree_end)
    if layer.recurrent is not None:
        arrays = *arrays, (), abstract_paths(model, rows * length)
    arrays = side_by_side(arrays, where)
    args = model.params, *arrays
    lowered = lower(model.functions.hidden_states, args, mesh, target.devices[0], outputs=ROWS)
    try:
        with compiling_for(target.devices[0]):
            program = lowered.compile()
    except JaxRuntimeError as error:
        if refused(error, rows, length) is None:
            raise
        return LayerEstimate(*labels, None, None, 0, [], [])
    text = text_of(program)
    layer_collectives = [] if mesh is None else collectives(text)
    (seconds, left_out), mfu = seconds_of(program, text), None
    if seconds is not None and target.flops is not None:
        shards = 1 if mesh is None else mesh.shape.model
        mfu = layer_flops(layer, rows, length) / shards / target.flops / seconds
    return LayerEstimate(*labels, seconds, mfu, left_out, layer_collectives, kernels(text))


def abstract_paths(model: Model, n_tokens: int) -> Paths:
    """Return the shapes of `Paths` without exits, whose states are computed in a loop."""
    needs = model.functions.paths
    assert needs is not None

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    n_chunks, size, _ = needs.shape(n_tokens)
    chunks: Any = None
    if n_chunks:
        per_chunk = ints(n_chunks)
        arrays: Any = ints(n_chunks, size), per_chunk, per_chunk, per_chunk, ints()
        chunks = Chunks(*arrays)
    return Paths(ints(n_tokens), chunks)  # type: ignore[arg-type]


def seconds_of(program: Any, text: str) -> tuple[float | None, int]:
    """Return XLA's time estimate of a program, and the number of operations that it leaves out.

    XLA counts an operation that it cannot estimate as -1 s. If all of these are joined slices,
    which generate no device code, they are left out; otherwise the estimate is None.
    """
    estimate = (program.cost_analysis() or {}).get("optimal_seconds", 0.0)
    joined = joined_slices(text)
    if joined and 0 < estimate + joined < 1:
        return estimate + joined, joined
    return (estimate if estimate > 0 and not joined else None), 0


def layer_flops(config: DecoderConfig, rows: int, length: int) -> int:
    """Compute the useful FLOPs of a decoder without its LM head, for rows of one text each."""
    shapes = shapes_of(config, native.NUMPY_DTYPES["bfloat16"])
    attention = sum(costs.attention_flops(config, depth) for depth in range(1, length + 1))
    return rows * (length * costs.linear_flops(shapes, config) + attention)


def estimate_vocabulary(
    config: DecoderConfig,
    dtype: Dtype,
    model_type: str,
    target: Target,
    where: Where,
    queries: int,
) -> VocabularyEstimate:
    """Estimate the LM head on one shard's columns, without the few requested targets.

    Args:
        where: a mesh or a device of the target.
        queries: number of scored positions of a batch.
    """
    shards = where.shape.model if isinstance(where, DeviceMesh) else 1
    is_split = config.vocab_size % shards == 0
    n_columns = config.vocab_size // shards if is_split else config.vocab_size
    device, width = target.devices[0], config.embedding.width or config.width
    decoder = dataclasses.replace(one_layer(config), vocab_size=n_columns)
    model = abstract_model(decoder, dtype, model_type, device)
    hidden = jax.ShapeDtypeStruct((queries, width), jnp.float32, sharding=on(device))
    scored = side_by_side(abstract_rows(1, queries).scored, device)

    def run(params: Any, hidden_QD: jax.Array, scored: ScoredPositions) -> Any:
        head = model.functions.unembedding(params)
        return terms(IMPLEMENTATIONS[head.backend.lm_head](hidden_QD, scored, head, 0, ()), head)

    lowered = lower(run, (model.params, hidden, scored), None, device)
    with compiling_for(device):
        program = lowered.compile()
    text = text_of(program)
    (seconds, left_out), share = seconds_of(program, text), None
    if seconds is not None and target.flops is not None:
        share = 2 * queries * n_columns * width / target.flops / seconds
    return VocabularyEstimate(queries, seconds, share, left_out, kernels(text))


def one_layer(config: DecoderConfig, *, recurrent: bool = False) -> DecoderConfig:
    """Reduce a decoder to one layer and a small vocabulary.

    The layer is one with the more frequent MLP: the one with the widest attention window, or, if
    `recurrent`, one without attention.
    """
    plain = () if config.mlp.other is None else config.mlp.other.layers
    if len(plain) > config.n_layers / 2:
        plain = tuple(n for n in range(config.n_layers) if n not in plain)
    layers = [n for n in range(config.n_layers) if n not in plain]
    if recurrent:
        recurrent_layers = [n for n in range(config.n_layers) if config.kind_of(n) == RECURRENT]
        layers = [n for n in layers if n in recurrent_layers] or recurrent_layers
    else:
        layers = [n for n in layers if config.has_attention(n)] or layers
    widest = max(layers, key=lambda n: config.attention.scores.windows[n] or config.max_positions)
    return config.only(widest).replace(long_rotary=(), long_from=0, vocab_size=FEW_COLUMNS)


def abstract_model(
    config: DecoderConfig,
    dtype: Dtype,
    model_type: str,
    where: Where = None,
    backend: Backend | None = None,
) -> Model:
    """Create a native decoder placed on devices, with shapes as parameters.

    Args:
        dtype: dtype of the matrices.
        where: a mesh or a device, present or absent; None for JAX's default device.
        backend: the backend, or None for that of the device.

    Raises:
        ValueError: the mesh does not split this decoder.
    """
    mesh = where if isinstance(where, DeviceMesh) else None
    placement: Any = mesh.placement(config) if mesh is not None else lambda *_: on(where)
    device = mesh.mesh.devices.flat[0] if mesh is not None else where
    integers = BACKENDS[current_platform(device)].integers
    params = native.abstract_params(config, dtype, placement, integers=integers)
    return native.from_params(
        config, params, dtype, model_type, mesh=mesh, device=device, backend=backend
    )

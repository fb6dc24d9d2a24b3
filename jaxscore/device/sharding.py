"""Sharding of all parameters over a mesh, and the mesh itself.

Rows are split over the axis `data`. The axis `model` splits

    query heads        consecutive heads, equally many per shard
    key heads          consecutive heads; replicated if a shard has less than one query group, see
                       `check_divisible`
    MLP channels       consecutive channels, also those of a mixture's shared expert
    experts            consecutive experts if `model` divides them, otherwise each one's channels
    recurrent layers   consecutive heads, blocks of a gated unit, or channels of a short
                       convolution, with their states; key heads and groups as in attention
    vocabulary         consecutive columns if `model` divides them, otherwise replicated

With `fsdp` (arXiv 2304.11277), `data` also splits every weight along the first axis that it
divides: experts, outputs or vocabulary columns, otherwise inputs. A layer gathers its weights as
they are stored, before dequantization (`dots.Shard`). Vectors, position embeddings and weights
without such an axis are replicated.

As in Megatron, a projection is split along its outputs (the first axis of its weight, with bias and
scales), the next projection along its inputs, and the partial sums are added over shards. In rows
of several tokens, each shard keeps the sums and the residual stream of its tokens, and a layer
gathers its normed input (`backends.Build`). All functions of `device/` are written for one shard:
its rows, its heads, its vocabulary columns. `DeviceMesh.over` runs a function on every shard, and
functions call the collectives that they need.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxscore.device.decoder_config import (
    DecoderConfig,
    GatedDelta,
    GatedUnit,
    Lightning,
    SelectiveScan,
    ShortConvolution,
    StateSpace,
)
from jaxscore.device.dots import FIELDS, Form, Shard
from jaxscore.device.mesh_shape import DATA, MODEL, MeshShape

HEADS, KV_HEADS, EXPERTS = "query heads", "key heads", "experts"
INNER, SHARED_INNER = "MLP channels", "shared MLP channels"
EXPERT_INNER = "channels of an expert"
OTHER_INNER, OTHER_KV_HEADS = "MLP channels of other layers", "key heads of other layers"
RECURRENT_HEADS = "heads, blocks or channels of recurrent layers"
RECURRENT_KEYS = "key heads or groups of recurrent layers"
VOCABULARY = "vocabulary columns"
PER_LAYER_ROWS = "rows of per-layer embeddings"
NGRAM_ROWS = "rows of each table of n-grams"
MAY_BE_WHOLE = (
    KV_HEADS,
    OTHER_KV_HEADS,
    RECURRENT_KEYS,
    VOCABULARY,
    PER_LAYER_ROWS,
    NGRAM_ROWS,
)
EITHER = (EXPERTS, EXPERT_INNER)  # channels are split if `model` does not divide the experts

MATRICES = ("token", "weight")  # last keys of parameters that `fsdp` splits over DATA
UNSTACKED = ("embed", "unembed", "streams", "out_of")  # first keys of unstacked parameters

Path = tuple[str, ...]  # keys of the parameter tree
Axes = tuple[str | None, ...]  # for each axis, the key of `counts` if it may be split, or None


def _product(path: str, *axes: str | None) -> tuple[tuple[str, Axes], ...]:
    """Return the rules of a projection: its weight, and its bias and scales per output."""
    return (f"{path}/weight", axes), (f"{path}/(bias|channel_scale)", axes[:-1])


LATENT = "(layers/attention|attentions/main)/latent"
ATTENTION = "(layers|blocks|block_uses)/attention"
MAIN_MLP = "(layers/mlp|mlps/main|blocks/mlp|block_uses/mlp)"

# (pattern of a parameter's full path, its axes). The first rule that matches path and number of
# axes applies. A parameter without a rule is an error, so every new one needs a rule. If several
# axes may be split, the first one that `model` divides is.
RULES: tuple[tuple[str, Axes], ...] = (
    ("embed/token", (VOCABULARY, None)),
    ("embed/(position|into/weight)|out_of/weight", (None, None)),
    ("(embed/norm|final_norm)/(scale|bias)", (None,)),
    ("(layers|blocks)/(attention|mlp)(_after)?_norm/(scale|bias)", (None, None)),
    *_product(f"{ATTENTION}/(q|gate)(_low)?", None, HEADS, None),
    *_product(f"{ATTENTION}/[kv](_low)?", None, KV_HEADS, None),
    *_product(f"{ATTENTION}/out", None, None, HEADS),
    *_product("block_uses/(attention/[qkv]_low_in|mlp/low_in|into)", None, None, None),
    ("layers/attention/sinks", (None, HEADS)),
    *_product(f"{LATENT}/(query_in|key_value)", None, None, None),
    (f"{LATENT}/(query_)?norm/scale", (None, None)),
    *_product(f"{LATENT}/(q|gate|key_up|value_up)", None, HEADS, None),
    *_product("attentions/(main|other)/(q|gate)", None, HEADS, None),
    *_product("attentions/main/[kv]", None, KV_HEADS, None),
    *_product("attentions/other/[kv]", None, OTHER_KV_HEADS, None),
    *_product("attentions/(main|other)/out", None, None, HEADS),
    ("attentions/(main|other)/sinks", (None, HEADS)),
    ("attentions/(main|other)/[qk]_norm/scale", (None, None)),
    ("embed/per_layer/token", (PER_LAYER_ROWS, None)),
    ("embed/per_layer_in/weight", (None, None)),
    ("embed/per_layer_norm/scale", (None,)),
    *_product("layers/per_layer/(gate|out)", None, None, None),
    ("layers/per_layer/norm/scale", (None, None)),
    ("layers/layer_scale", (None, None)),
    ("streams/(into|out_of)/weight", (None, None, None)),
    ("layers/streams/(router|predicting|correcting)/weight", (None, None, None)),
    ("layers/streams/(norm/scale|output_scale)", (None, None)),
    *_product("layers/streams/(attention|mlp)/(gate/left|gate/right|shares)", None, None, None),
    ("layers/streams/(attention|mlp)/norm/scale", (None, None, None)),
    ("streams/out_of/gate/(left|right)/weight", (None, None)),
    ("streams/out_of/norm/scale", (None, None)),
    ("embed/ngrams/[0-9]+/token", (NGRAM_ROWS, None)),
    *_product("ngrams/(key|value)", None, None, None),
    ("ngrams/(key|query|conv)_norm/scale", (None, None, None)),
    ("ngrams/conv/taps", (None, None, None, None)),
    *_product("layers/laurel/(left|right)", None, None, None),
    ("layers/laurel/norm/scale", (None, None)),
    *_product("layers/attention_norm_gate/(left|right)", None, None, None),
    *_product(f"{MAIN_MLP}/norm_gate/(left|right)", None, None, None),
    (f"{MAIN_MLP}/(experts|experts_after|shared_after|after)_norm/scale", (None, None)),
    (f"{MAIN_MLP}/(router|expert)_scale", (None, None)),
    (
        "layers/attention/[qk]_norm/(scale|bias)",
        (None, None),
    ),  # one head's scale, shared by all heads
    ("(layers/attention|attentions/main)/q_norm/(scale|bias)", (None, HEADS, None)),
    ("(layers/attention|attentions/main)/k_norm/(scale|bias)", (None, KV_HEADS, None)),
    *_product(f"{MAIN_MLP}/(gate|up)(_low)?", None, INNER, None),
    *_product(f"{MAIN_MLP}/down", None, None, INNER),
    *_product("mlps/other/(gate|up)", None, OTHER_INNER, None),
    *_product("mlps/other/down", None, None, OTHER_INNER),
    (".*/activation/.*", (None, None)),
    *_product(f"{MAIN_MLP}/(router|shared_gate|latent_in|latent_out)", None, None, None),
    (f"{MAIN_MLP}/correction", (None, None)),
    *_product(f"{MAIN_MLP}/shared/(gate|up)", None, SHARED_INNER, None),
    *_product(f"{MAIN_MLP}/shared/down", None, None, SHARED_INNER),
    *_product("experts/(gate|up)", None, EXPERTS, EXPERT_INNER, None),
    *_product("experts/down", None, EXPERTS, None, EXPERT_INNER),
    *_product("unembed", VOCABULARY, None),
    *_product("recurrent/(q|k|b|c)", None, RECURRENT_KEYS, None),
    *_product("recurrent/(v|x|z|step|rate|before|after|value)", None, RECURRENT_HEADS, None),
    *_product("recurrent/(z|step)_in", None, None, None),
    *_product("recurrent/out", None, None, RECURRENT_HEADS),
    ("recurrent/[qkbc]_conv/taps", (None, RECURRENT_KEYS, None, None)),
    ("recurrent/[bc]_conv/bias", (None, RECURRENT_KEYS)),
    ("recurrent/([vx]_)?conv/taps", (None, RECURRENT_HEADS, None, None)),
    ("recurrent/(x_)?conv/bias", (None, RECURRENT_HEADS)),
    # Scale of one head, or of all heads, of which each shard selects its slice
    ("recurrent/(.*_)?norm/scale", (None, None)),
    ("recurrent/norm/scale", (None, RECURRENT_KEYS, None)),  # scale per group of heads
    ("recurrent/(decay_rate|log_rate|skip|slope|step_bias)", (None, RECURRENT_HEADS)),
    ("recurrent/(decay|input)_gate/weight", (None, RECURRENT_HEADS, None, None)),
    ("recurrent/(decay|input)_gate/bias", (None, RECURRENT_HEADS, None)),
    ("recurrent/selected_(step|b|c)/weight", (None, None, RECURRENT_HEADS)),
    ("recurrent/log_rate", (None, None, RECURRENT_HEADS)),  # per state and channel
    ("recurrent/(selected_(step|b|c)|step)/weight", (None, RECURRENT_HEADS, None, None)),
    ("recurrent/log_rate", (None, RECURRENT_HEADS, None, None)),
    ("recurrent/(skip|step/bias)", (None, RECURRENT_HEADS, None)),
)


def keys_of(path: Any) -> Path:
    """Return the keys of a `jax.tree_util` path: of dictionaries, and a field of `Blocks`."""
    return tuple(getattr(entry, "key", None) or entry.name for entry in path)


def counts(config: DecoderConfig) -> dict[str, int]:
    """Return the sizes that the rules may split, for the parameters that this model has."""
    out = {VOCABULARY: config.vocab_size}
    if any(map(config.has_attention, range(config.n_layers))):
        out = {HEADS: config.attention.n_heads, KV_HEADS: config.attention.n_kv_heads, **out}
    if config.embedding.per_layer_width:
        out[PER_LAYER_ROWS] = config.embedding.per_layer_rows or config.vocab_size
    if config.ngrams is not None:
        out[NGRAM_ROWS] = math.gcd(*(table.rows for table in config.ngrams.tables))
    if config.attention.other_heads is not None:
        out[OTHER_KV_HEADS] = config.attention.other_heads.n_kv_heads
    if config.mlp.other is not None:
        out[OTHER_INNER] = config.mlp.other.width
    out |= recurrent_counts(config)
    if not config.mlp_kinds()["main"] and config.shared_blocks is None:
        return out
    if config.experts is None:
        return out | {INNER: config.mlp.width}
    out |= {EXPERTS: config.experts.count, EXPERT_INNER: config.mlp.width}
    if config.experts.shared.width:
        out[SHARED_INNER] = config.experts.shared.width
    return out


def recurrent_counts(config: DecoderConfig) -> dict[str, int]:
    """Return the `counts` of recurrent layers."""
    match config.recurrent and config.recurrent.mixer:
        case GatedDelta() as mixer:
            return {RECURRENT_HEADS: mixer.n_value_heads, RECURRENT_KEYS: mixer.n_key_heads}
        case GatedUnit() as mixer:
            return {RECURRENT_HEADS: mixer.n_blocks}
        case Lightning() as mixer:
            return {RECURRENT_HEADS: mixer.n_heads, RECURRENT_KEYS: mixer.n_heads}
        case ShortConvolution():
            return {RECURRENT_HEADS: config.width}
        case StateSpace() as mixer:
            return {RECURRENT_HEADS: mixer.n_heads, RECURRENT_KEYS: mixer.n_groups}
        case SelectiveScan() as mixer:
            return {RECURRENT_HEADS: mixer.n_heads or mixer.inner}
    return {}


def check_divisible(config: DecoderConfig, model: int) -> None:
    """Check that `model` splits this decoder evenly.

    `model` need not divide key heads, or key heads and groups of recurrent layers. Each shard then
    computes all of them, and its queries must use exactly one, that is, belong to one group.
    Allowed are 8 query heads over 2 key heads on 4 shards

        queries  0 1 | 2 3 | 4 5 | 6 7        keys  0 0 | 0 0 | 1 1 | 1 1

    and on 8 shards. Not allowed are 12 query heads over 4 key heads on 6 shards: queries 2 and 3 of
    the second shard use keys 0 and 1. `model` need not divide the vocabulary either, which is then
    replicated, since padding would copy it.

    Raises:
        ValueError: `model` does not split the decoder; the message lists its counts and the sizes
            of `model` that do.
    """
    if not divides(config, model):
        limit = min(counts(config)[name] for name in _required(counts(config)))
        sizes = [n for n in range(1, limit + 1) if divides(config, n)]
        sizes_text = ", ".join(f"{count} {name}" for name, count in counts(config).items())
        for name, form in _split_rows(config, model):
            if form.columns % (model * form.smallest_part):
                name = name.removesuffix("/weight")
                sizes_text += (
                    f", {form.columns} columns of {name} in blocks of {form.smallest_part}"
                )
        raise ValueError(
            f"{MODEL}={model} does not split this model evenly, which has {sizes_text}; "
            f"{MODEL} can be {', '.join(map(str, sizes))}"
        )


def _required(n: dict[str, int]) -> list[str]:
    """Return the names in `counts` that `model` must divide."""
    return [name for name in n if name not in (*MAY_BE_WHOLE, *EITHER)]


def _split_by_model(axes: Axes, n: dict[str, int], model: int) -> list[bool]:
    """Return True for the axis of a parameter that is split over MODEL; at most one is."""
    divisible = [axis is not None and n.get(axis, 1) % model == 0 for axis in axes]
    return [divides and not any(divisible[:k]) for k, divides in enumerate(divisible)]


def divides(config: DecoderConfig, model: int) -> bool:
    """Return True if `check_divisible` accepts this size of `model`."""
    n = counts(config)
    is_even = all(n[name] % model == 0 for name in _required(n))
    is_even = is_even and (EXPERTS not in n or any(n[name] % model == 0 for name in EITHER))
    is_even = is_even and all(
        form.columns % (model * form.smallest_part) == 0 for _, form in _split_rows(config, model)
    )
    key_counts = [
        attention_config.attention.n_kv_heads for attention_config in config.attention_configs()
    ]
    key_counts += [n[name] for name in n if name == RECURRENT_KEYS]
    return is_even and all(n % model == 0 or model % n == 0 for n in key_counts)


def _split_rows(config: DecoderConfig, model: int) -> list[tuple[str, Form]]:
    """Return the block-quantized weights whose rows are split over MODEL."""
    n = counts(config)
    return [
        (name, form)
        for name, form in config.stored
        if any(
            re.fullmatch(pattern, name) and _split_by_model(axes, n, model)[-1]
            for pattern, axes in RULES
        )
    ]


def replicated_counts(config: DecoderConfig, model: int) -> dict[str, int]:
    """Return the entries of `counts` that `model` does not divide, so that they are replicated."""
    return {
        name: count
        for name, count in counts(config).items()
        if count % model and name not in EITHER
    }


def parameter_spec(
    path: Path, shape: tuple[int, ...], config: DecoderConfig, mesh: MeshShape
) -> PartitionSpec:
    """Return the `PartitionSpec` of one parameter.

    Args:
        path: its keys in the tree of `init_params`.
        shape: the unsharded shape.
        mesh: a mesh whose `model` passes `check_divisible`.

    Raises:
        ValueError: no rule matches, or the sizes of the matching rule differ.
    """
    name = "/".join(path)
    in_blocks = path[-2:-1] == ("weight",) and path[-1] in FIELDS
    axes = _axes_of("/".join(path[:-1]) if in_blocks else name, shape)
    n = counts(config)
    for k, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        # A block spans several channels of a row; `divides` has checked this axis.
        if in_blocks and k == len(shape) - 1:
            continue
        if axis is not None and (axis not in n or size % n[axis]):
            raise ValueError(
                f"parameter {name} of shape {shape}: its sharding rule is for {n.get(axis)} {axis}"
            )
    split: list[Any] = [
        MODEL if is_split else None for is_split in _split_by_model(axes, n, mesh.model)
    ]
    if in_blocks and shape[-1] == 1:  # a row's only scale is replicated
        split[-1] = None
    if mesh.fsdp and (in_blocks or path[-1] in MATRICES):
        first = 0 if path[0] in UNSTACKED else 1  # layers are gathered one at a time
        for k in range(first, len(shape)):
            parts = mesh.data * (1 if split[k] is None else mesh.model)
            if shape[k] % parts == 0:
                split[k] = DATA if split[k] is None else (MODEL, DATA)
                break
    return PartitionSpec(*split) if any(split) else PartitionSpec()


def split_axis(name: str, shape: tuple[int, ...]) -> int | None:
    """Return the axis of a parameter that a mesh may split, or None if no mesh splits it.

    Args:
        name: the path of the parameter, joined by `/`.

    Raises:
        ValueError: no rule matches.
    """
    axes = _axes_of(name, shape)
    return next((k for k, axis in enumerate(axes) if axis is not None), None)


def _axes_of(name: str, shape: tuple[int, ...]) -> Axes:
    for pattern, axes in RULES:
        if len(axes) == len(shape) and re.fullmatch(pattern, name):
            return axes
    raise ValueError(f"parameter {name} of shape {shape}: no sharding rule; add one to RULES")


def parameter_specs(params: Any, config: DecoderConfig, mesh: MeshShape) -> Any:
    """Return a tree of `PartitionSpec` with the structure of `params`.

    Args:
        params: the tree of `init_params`, arrays or `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: the mesh does not split this decoder, see `check_divisible`, or no rule
            matches a parameter.
    """
    check_divisible(config, mesh.model)
    spec_of = functools.partial(parameter_spec, config=config, mesh=mesh)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: spec_of(keys_of(path), leaf.shape), params
    )


def bytes_a_device(params: Any, placed: Any, mesh: MeshShape) -> Any:
    """Return the bytes of each parameter on one device, as a tree; `placed` are the specs."""
    sizes = {DATA: mesh.data, MODEL: mesh.model}

    def bytes_of(leaf: Any, spec: PartitionSpec) -> int:
        shards = math.prod(sizes[axis] for axes in spec for axis in mesh_axes(axes))
        return leaf.size // shards * leaf.dtype.itemsize

    return jax.tree.map(bytes_of, params, placed)


def mesh_axes(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes of one entry of a `PartitionSpec`."""
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


def as_shards(params: Any, placed: Any) -> Any:
    """Replace the parameters of one device that are split over DATA by `Shard`.

    Args:
        params: the parameters of one device.
        placed: the specs of the parameters.
    """

    def as_shard(leaf: Any, spec: PartitionSpec) -> Any:
        axes = [k for k, entry in enumerate(spec) if DATA in mesh_axes(entry)]
        return Shard(leaf, axes[0] - leaf.ndim) if axes else leaf

    return jax.tree.map(as_shard, params, placed)


ROWS = PartitionSpec(DATA)
REPLICATED = PartitionSpec()
KEYS_VALUES = PartitionSpec(None, None, MODEL)  # [layers, rows, heads, slots, channels]


class DeviceMesh:
    """A grid of devices.

    Attributes:
        shape: the number of devices along `data`, which splits rows, and `model`, which splits
            layers.
        mesh: the `jax.sharding.Mesh`.
    """

    def __init__(self, shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> None:
        """Create a mesh of the first devices.

        Args:
            shape: the shape of the mesh.
            devices: the available devices; None are all devices of JAX.

        Raises:
            ValueError: there are too few devices, or, with several processes, too many.
        """
        available = jax.devices() if devices is None else devices
        if len(available) < shape.size or (
            jax.process_count() > 1 and len(available) != shape.size
        ):
            raise ValueError(
                f"mesh {shape} takes {shape.size} devices, and there are {len(available)} "
                f"({jax.process_count()} processes); give a mesh of that many"
            )
        self.shape = shape
        self.mesh = Mesh(
            np.array(list(available[: shape.size])).reshape(shape.data, shape.model), (DATA, MODEL)
        )

    def placement(self, config: DecoderConfig) -> Callable[..., NamedSharding]:
        """Return the function that gives a parameter's sharding, see `weights.params.Placement`.

        Raises:
            ValueError: `model` does not split this decoder evenly.
        """
        check_divisible(config, self.shape.model)
        return lambda path, shape: NamedSharding(
            self.mesh, parameter_spec(path, shape, config, self.shape)
        )

    def put(self, values: Any, where: PartitionSpec) -> Any:
        """Copy host arrays, which are equal in all processes, to the mesh."""
        sharding = NamedSharding(self.mesh, where)

        def put_array(value: Any) -> jax.Array:
            array = np.asarray(value)
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

        return jax.tree.map(put_array, values)

    def over(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        """Return `function` mapped over shards; `inputs` has a tree of specs per argument."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )


def array_specs(tree: Any) -> Any:
    """Return the `PartitionSpec` of each array of a tree; replicated if it is on one device."""
    return jax.tree.map(lambda leaf: getattr(leaf.sharding, "spec", REPLICATED), tree)

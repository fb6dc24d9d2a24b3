"""The placement of every parameter on a mesh, and the mesh itself.

Rows are split over the axis `data`. Over the axis `model` are split

    query heads        in order, equally many per shard
    key heads          in order; a shard that has less than one query group has all of them and
                       uses one, see `check_divisible`
    MLP channels       in order; likewise those of a mixture's shared MLP
    experts            in order if they divide, otherwise each expert's channels
    recurrent layers   heads, blocks of a gated unit or channels of a short convolution, in order,
                       with their states;
                       key heads and groups as key heads of attention
    vocabulary         in order if it divides, otherwise whole on every shard

With `fsdp` (arXiv 2304.11277) `data` splits every weight further, along the first axis that it
divides: experts, outputs or columns of the vocabulary, otherwise inputs. A layer gathers its
weights as they are stored, before they are dequantized (`dots.Shard`). Vectors, embeddings of
positions and weights with no axis that it divides are whole.

A product's outputs are split (its weight's first axis, with bias and scales), the product that
reads them is split along its inputs, and the shards' sums are added. In rows of several tokens each
shard keeps the sums of its own tokens, and their residual stream; a layer gathers its normed input
(`backends.Build`). All functions of `device/` are written for one shard: its rows, its heads, its
vocabulary columns. `DeviceMesh.over` runs one on every shard, and each function names the
collectives that it needs.
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
EITHER = (EXPERTS, EXPERT_INNER)  # the channels are split if the experts do not divide

MATRICES = ("token", "weight")  # last keys of what is split over DATA, too
UNSTACKED = ("embed", "unembed", "streams", "out_of")  # first keys of parameters of no layer

Path = tuple[str, ...]  # keys of the parameter tree
Axes = tuple[str | None, ...]  # of a parameter: what each of its axes counts, if it may be split


def _product(path: str, *axes: str | None) -> tuple[tuple[str, Axes], ...]:
    """A weight and, along its outputs, what is added to or multiplied with them."""
    return (f"{path}/weight", axes), (f"{path}/(bias|channel_scale)", axes[:-1])


LATENT = "(layers/attention|attentions/main)/latent"
ATTENTION = "(layers|blocks|block_uses)/attention"
MAIN_MLP = "(layers/mlp|mlps/main|blocks/mlp|block_uses/mlp)"

# (all of a parameter's path, its axes). The first counts that matches in both, and there is none
# for whatever is left: a new parameter has to be thought about. Of several axes the first is split
# that divides.
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
    ("layers/attention/[qk]_norm/(scale|bias)", (None, None)),  # one head's, for all heads
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
    # Of one head, or of all: each shard selects its part
    ("recurrent/(.*_)?norm/scale", (None, None)),
    ("recurrent/norm/scale", (None, RECURRENT_KEYS, None)),  # of groups of heads
    ("recurrent/(decay_rate|log_rate|skip|slope|step_bias)", (None, RECURRENT_HEADS)),
    ("recurrent/(decay|input)_gate/weight", (None, RECURRENT_HEADS, None, None)),
    ("recurrent/(decay|input)_gate/bias", (None, RECURRENT_HEADS, None)),
    ("recurrent/selected_(step|b|c)/weight", (None, None, RECURRENT_HEADS)),
    ("recurrent/log_rate", (None, None, RECURRENT_HEADS)),  # of each channel's numbers
    ("recurrent/(selected_(step|b|c)|step)/weight", (None, RECURRENT_HEADS, None, None)),
    ("recurrent/log_rate", (None, RECURRENT_HEADS, None, None)),
    ("recurrent/(skip|step/bias)", (None, RECURRENT_HEADS, None)),
)


def keys_of(path: Any) -> Path:
    """Keys of a `jax.tree_util` path in our tree of dictionaries, and a field of `Blocks`."""
    return tuple(getattr(entry, "key", None) or entry.name for entry in path)


def counts(config: DecoderConfig) -> dict[str, int]:
    """How many there are of what the rules split, of those that this model has."""
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
    """`counts` of the recurrent layers."""
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
    """Refuse a `model` that does not split this decoder evenly.

    Key heads, and key heads or groups of recurrent layers, need not divide. A shard then computes
    all of them, which is the same everywhere, and its queries use one of them, so they must lie
    within one group: 8 query heads over 2 key heads on 4 shards are

        queries  0 1 | 2 3 | 4 5 | 6 7        keys  0 0 | 0 0 | 1 1 | 1 1

    and on 8 shards one each. 12 query heads over 4 key heads on 6 shards are not: the second
    shard's queries, 2 and 3, use keys 0 and 1. Vocabularies need not divide either; padding one
    would copy it.

    Raises:
        ValueError: naming what does not divide and which sizes of `model` do.
    """
    if not divides(config, model):
        most = min(counts(config)[name] for name in _required(counts(config)))
        sizes = [n for n in range(1, most + 1) if divides(config, n)]
        found = ", ".join(f"{count} {name}" for name, count in counts(config).items())
        for name, form in _split_rows(config, model):
            if form.columns % (model * form.smallest_part):
                name = name.removesuffix("/weight")
                found += f", {form.columns} columns of {name} in blocks of {form.smallest_part}"
        raise ValueError(
            f"{MODEL}={model} does not split this model evenly, which has {found}; "
            f"{MODEL} can be {', '.join(map(str, sizes))}"
        )


def _required(n: dict[str, int]) -> list[str]:
    """Those of `counts` that must divide."""
    return [name for name in n if name not in (*MAY_BE_WHOLE, *EITHER)]


def _split_by_model(axes: Axes, n: dict[str, int], model: int) -> list[bool]:
    """Which axes of a parameter are split over MODEL, at most one."""
    divisible = [axis is not None and n.get(axis, 1) % model == 0 for axis in axes]
    return [yes and not any(divisible[:k]) for k, yes in enumerate(divisible)]


def divides(config: DecoderConfig, model: int) -> bool:
    """Whether `check_divisible` takes this size of `model`."""
    n = counts(config)
    even = all(n[name] % model == 0 for name in _required(n))
    even = even and (EXPERTS not in n or any(n[name] % model == 0 for name in EITHER))
    even = even and all(
        form.columns % (model * form.smallest_part) == 0 for _, form in _split_rows(config, model)
    )
    of_keys = [one.attention.n_kv_heads for one in config.attention_configs()]
    of_keys += [n[name] for name in n if name == RECURRENT_KEYS]
    return even and all(n % model == 0 or model % n == 0 for n in of_keys)


def _split_rows(config: DecoderConfig, model: int) -> list[tuple[str, Form]]:
    """Weights in blocks whose rows are split over MODEL."""
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
    """The entries of `counts` that do not divide by the shards: each shard has them whole."""
    return {
        name: count
        for name, count in counts(config).items()
        if count % model and name not in EITHER
    }


def parameter_spec(
    path: Path, shape: tuple[int, ...], config: DecoderConfig, mesh: MeshShape
) -> PartitionSpec:
    """Where one parameter lies.

    Args:
        path: its keys in the tree of `init_params`.
        shape: of the whole parameter.
        mesh: whose `model` `check_divisible` has taken.

    Raises:
        ValueError: no rule matches, or the one that does is for other sizes.
    """
    name = "/".join(path)
    in_blocks = path[-2:-1] == ("weight",) and path[-1] in FIELDS
    axes = _axes("/".join(path[:-1]) if in_blocks else name, shape)
    n = counts(config)
    for place, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        # Blocks along a row are of several channels, and `divides` has counted them.
        if in_blocks and place == len(shape) - 1:
            continue
        if axis is not None and (axis not in n or size % n[axis]):
            raise ValueError(
                f"parameter {name} of shape {shape}: its sharding rule is for {n.get(axis)} {axis}"
            )
    split: list[Any] = [MODEL if yes else None for yes in _split_by_model(axes, n, mesh.model)]
    if in_blocks and shape[-1] == 1:  # one scale for a row, of which a shard has columns
        split[-1] = None
    if mesh.fsdp and (in_blocks or path[-1] in MATRICES):
        first = 0 if path[0] in UNSTACKED else 1  # layers are gathered one by one
        for k in range(first, len(shape)):
            parts = mesh.data * (1 if split[k] is None else mesh.model)
            if shape[k] % parts == 0:
                split[k] = DATA if split[k] is None else (MODEL, DATA)
                break
    return PartitionSpec(*split) if any(split) else PartitionSpec()


def split_axis(name: str, shape: tuple[int, ...]) -> int | None:
    """Axis of a parameter that a mesh may split, or None if no mesh splits it.

    Args:
        name: the path of the parameter, its keys joined by `/`.

    Raises:
        ValueError: no rule matches.
    """
    axes = _axes(name, shape)
    return next((k for k, axis in enumerate(axes) if axis is not None), None)


def _axes(name: str, shape: tuple[int, ...]) -> Axes:
    for pattern, axes in RULES:
        if len(axes) == len(shape) and re.fullmatch(pattern, name):
            return axes
    raise ValueError(f"parameter {name} of shape {shape}: no sharding rule; add one to RULES")


def parameter_specs(params: Any, config: DecoderConfig, mesh: MeshShape) -> Any:
    """Where each parameter lies: a tree of `PartitionSpec` like `params`.

    Args:
        params: arrays or `jax.ShapeDtypeStruct`, the tree of `init_params`.

    Raises:
        ValueError: the mesh does not split this decoder, see `check_divisible`, or no rule
            matches a parameter.
    """
    check_divisible(config, mesh.model)
    place = functools.partial(parameter_spec, config=config, mesh=mesh)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: place(keys_of(path), leaf.shape), params
    )


def bytes_a_device(params: Any, placed: Any, mesh: MeshShape) -> Any:
    """Bytes of each parameter on one device: a tree like `params`; `placed` are its specs."""
    sizes = {DATA: mesh.data, MODEL: mesh.model}

    def one(leaf: Any, spec: PartitionSpec) -> int:
        shards = math.prod(sizes[axis] for axes in spec for axis in mesh_axes(axes))
        return leaf.size // shards * leaf.dtype.itemsize

    return jax.tree.map(one, params, placed)


def mesh_axes(entry: Any) -> tuple[str, ...]:
    """Mesh axes of one entry of a `PartitionSpec`."""
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


def as_shards(params: Any, placed: Any) -> Any:
    """Parameters of one device, with those that are split over DATA as `Shard`.

    Args:
        placed: their specs.
    """

    def one(leaf: Any, spec: PartitionSpec) -> Any:
        axes = [k for k, entry in enumerate(spec) if DATA in mesh_axes(entry)]
        return Shard(leaf, axes[0] - leaf.ndim) if axes else leaf

    return jax.tree.map(one, params, placed)


ROWS = PartitionSpec(DATA)
REPLICATED = PartitionSpec()
KEYS_VALUES = PartitionSpec(None, None, MODEL)  # [layers, rows, heads, slots, channels]


class DeviceMesh:
    """Devices in a grid.

    Attributes:
        shape: devices along `data`, which share the rows, and along `model`, which share each
            layer.
        mesh: JAX's own.
    """

    def __init__(self, shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> None:
        """Take the first devices.

        Args:
            devices: to take them from; None are all that JAX has.

        Raises:
            ValueError: there are fewer, or another number over several processes.
        """
        found = jax.devices() if devices is None else devices
        if len(found) < shape.size or (jax.process_count() > 1 and len(found) != shape.size):
            raise ValueError(
                f"mesh {shape} takes {shape.size} devices, and there are {len(found)} "
                f"({jax.process_count()} processes); give a mesh of that many"
            )
        self.shape = shape
        self.mesh = Mesh(
            np.array(list(found[: shape.size])).reshape(shape.data, shape.model), (DATA, MODEL)
        )

    def placement(self, config: DecoderConfig) -> Callable[..., NamedSharding]:
        """Where each parameter of a decoder lies, see `models.params.Placement`.

        Raises:
            ValueError: `model` does not split this decoder.
        """
        check_divisible(config, self.shape.model)
        return lambda path, shape: NamedSharding(
            self.mesh, parameter_spec(path, shape, config, self.shape)
        )

    def put(self, values: Any, where: PartitionSpec) -> Any:
        """Arrays of the host, the same in every process, as arrays on the mesh."""
        sharding = NamedSharding(self.mesh, where)

        def one(value: Any) -> jax.Array:
            array = np.asarray(value)
            return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

        return jax.tree.map(one, values)

    def over(self, function: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
        """`function` of a shard as one of whole arrays; a tree of specs for each argument."""
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False
        )


def array_specs(tree: Any) -> Any:
    """How the arrays of a tree lie; whole where they lie on one device."""
    return jax.tree.map(lambda leaf: getattr(leaf.sharding, "spec", REPLICATED), tree)

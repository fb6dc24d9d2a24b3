"""Weight sources of decoders with recurrent layers, and fields of their mixers.

Each kind of layer is stacked separately.
"""

import dataclasses
import itertools
import math
from typing import Any

from jaxscore.device.decoder_config import (
    DecoderConfig,
    GatedDelta,
    Recurrent,
    SelectiveScan,
    StateSpace,
)
from jaxscore.errors import InputError
from jaxscore.models.families import fields
from jaxscore.models.families.family import Part, Source, Table, linear, norm

ATTENTION, RECURRENT = ("layers", "attention"), ("recurrent",)
# Values of `layer_types`
LINEAR, FULL, SLIDING = "linear_attention", "full_attention", "sliding_attention"


def by_kind(config: DecoderConfig, table: Table) -> Table:
    """Restrict the sources of attention and recurrence to the layers that have them.

    Args:
        table: sources of attention under `ATTENTION`, as for a decoder with attention in all
            layers, of the recurrence under `RECURRENT`, and others.
    """
    if config.recurrent is None and config.mlp.layers is None:
        return {path: source for path, source in table.items() if path[0] != RECURRENT[0]}
    if config.recurrent is not None and config.recurrent.beside is not None:
        return table
    recurrent = () if config.recurrent is None else config.recurrent.layers
    attention = tuple(filter(config.has_attention, range(config.n_layers)))
    out: Table = {}
    for path, source in table.items():
        if path[0] == RECURRENT[0]:
            out[path] = dataclasses.replace(source, layers=recurrent)
        elif path[:2] != ATTENTION:
            out[path] = source
        elif attention:
            out["attentions", "main", *path[2:]] = dataclasses.replace(source, layers=attention)
    return out


def parts(groups: int, *rows: int) -> list[Part]:
    """Split a fused tensor: each of its groups has `rows[k]` rows of the k-th part."""
    piece = math.gcd(*rows)
    stops = [stop // piece for stop in itertools.accumulate(rows)]
    starts = [0, *stops[:-1]]
    return [Part(groups, stops[-1], start, stop) for start, stop in zip(starts, stops, strict=True)]


def layers_of_type(config: Any, layer_type: str, *others: str) -> tuple[int, ...]:
    """Return the layers of one type.

    Raises:
        InputError: `layer_types` has a type other than `layer_type` and `others`.
    """
    types = fields.per_layer_values(config, "layer_types")
    if unknown := sorted(set(map(str, types)) - {layer_type, *others}):
        raise InputError(f"layer_types has {unknown}, which is not handled")
    return tuple(i for i, name in enumerate(types) if name == layer_type)


def recurrence_alone(config: Any, mixer: Any, **overrides: Any) -> DecoderConfig:
    """Return a decoder whose layers are one recurrence each, without attention and MLPs.

    Args:
        mixer: see `Recurrent`.
        overrides: further fields of `DecoderConfig`.
    """
    n_layers = config.num_hidden_layers
    return DecoderConfig.of(
        **{
            "vocab_size": config.vocab_size,
            "width": config.hidden_size,
            "n_layers": n_layers,
            "n_heads": 1,
            "n_kv_heads": 1,
            "head_width": 1,
            "mlp_width": 1,
            "max_positions": fields.MAX_POSITIONS,
            "windows": (0,) * n_layers,
            "norm_kind": "rms",
            "norm_eps": config.layer_norm_epsilon,
            "mlp_activation": "silu",
            "score_scale": 1.0,
            "head_tied": config.tie_word_embeddings,
            "recurrent": Recurrent(tuple(range(n_layers)), mixer),
            "mlp_layers": (),
            **overrides,
        }
    )


def gated_delta(config: Any, **mixer_fields: Any) -> GatedDelta:
    """Return a gated delta rule with the sizes `linear_*` and the fields in `mixer_fields`.

    Raises:
        InputError: sizes that do not form a valid layer.
    """
    for name in ("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"):
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}, expected at least 1")
    n_keys, n_values = config.linear_num_key_heads, config.linear_num_value_heads
    if n_keys < 1 or n_values % n_keys:
        raise InputError(
            f"linear_num_value_heads {n_values} is not a multiple of linear_num_key_heads {n_keys}"
        )
    return GatedDelta(
        n_keys,
        n_values,
        config.linear_key_head_dim,
        config.linear_value_head_dim,
        config.linear_conv_kernel_dim,
        fields.activation(config),  # type: ignore[arg-type]
        **mixer_fields,
    )


def state_space(
    n_heads: int,
    head_width: int,
    n_groups: int,
    time_step_limit: Any,
    **mixer_fields: Any,
) -> StateSpace:
    """Return a Mamba-2 mixer whose outputs are normed after their gate.

    Args:
        time_step_limit: the smallest and largest step size, as in a config.
        mixer_fields: fields of `StateSpace` that are added or differ.

    Raises:
        InputError: sizes that do not form a valid layer.
    """
    if n_groups < 1 or n_heads % n_groups:
        raise InputError(f"{n_heads} Mamba heads are not a multiple of {n_groups} groups")
    limits = time_step_limit
    is_pair = isinstance(limits, list | tuple) and len(limits) == 2
    if not is_pair or not all(type(x) in (int, float) and x >= 0 for x in limits):
        raise InputError(f"time_step_limit is {limits!r}, expected two numbers of at least 0")
    mixer = StateSpace(
        n_heads=n_heads,
        head_width=head_width,
        n_groups=n_groups,
        least_step=float(limits[0]),
        most_step=float(limits[1]),
        **mixer_fields,
    )
    if min(mixer.taps, mixer.state_width, mixer.head_width) < 1:
        raise InputError(f"sizes of Mamba layers are {mixer}, expected at least 1")
    return mixer


def state_space_sources(config: DecoderConfig, name: str) -> Table:
    """Return the sources of Mamba-2 layers under `name`; projections and convolutions are fused."""
    if config.recurrent is None:
        return {}
    mixer = config.recurrent.mixer
    assert isinstance(mixer, StateSpace)
    inner, shared = mixer.n_heads * mixer.head_width, mixer.n_groups * mixer.state_width
    table: Table = {}
    fused_rows = parts(1, inner, inner, shared, shared, mixer.n_heads)
    for param, rows in zip(("z", "x", "b", "c", "step"), fused_rows, strict=True):
        table |= linear((*RECURRENT, param), name + "in_proj", mixer.bias, part=rows)
    for param, rows in zip("xbc", parts(1, inner, shared, shared), strict=True):
        at = (*RECURRENT, f"{param}_conv")
        table[*at, "taps"] = Source(name + "conv1d.weight", part=rows)
        if mixer.conv_bias:
            table[*at, "bias"] = Source(name + "conv1d.bias", part=rows)
    for param, hf_name in {"log_rate": "A_log", "step_bias": "dt_bias", "skip": "D"}.items():
        table[*RECURRENT, param] = Source(name + hf_name)
    if mixer.norm:
        table |= norm((*RECURRENT, "norm"), name + "norm", False)
    return table | linear((*RECURRENT, "out"), name + "out_proj", mixer.out_bias)


def selective_scan(
    inner: int, rank: Any, activation: Any, norm_eps: float = 0.0, **mixer_fields: Any
) -> SelectiveScan:
    """Return a Mamba-1 mixer with the fields in `mixer_fields`.

    Args:
        inner: number of channels.
        rank: the rank of the product that computes step sizes.
        activation: the activation after the convolution.
        norm_eps: see `SelectiveScan`.

    Raises:
        InputError: sizes that do not form a valid layer.
    """
    mixer = SelectiveScan(
        inner=inner, rank=rank, activation=activation, norm_eps=norm_eps, **mixer_fields
    )
    sizes = mixer.inner, mixer.state_width, mixer.rank, mixer.taps
    if not all(type(size) is int and size >= 1 for size in sizes):
        raise InputError(f"sizes of Mamba layers are {mixer}, expected at least 1")
    return mixer


def selective_scan_sources(config: DecoderConfig, name: str) -> Table:
    """Return the sources of Mamba-1 layers under `name`.

    One tensor has x and z, and one has step sizes, B and C. With heads, the rows of x and z
    alternate, and further tensors have an axis of heads.
    """
    if config.recurrent is None:
        return {}
    mixer = config.recurrent.mixer
    assert isinstance(mixer, SelectiveScan)
    heads = mixer.n_heads > 0
    of_head = "[{j}]" if heads else ""
    table: Table = {}
    groups = mixer.inner if heads else 1
    for param, rows in zip("xz", parts(groups, 1, 1), strict=True):
        table |= linear((*RECURRENT, param), name + "in_proj", mixer.bias, part=rows)
    table[*RECURRENT, "conv", "taps"] = Source(name + "conv1d.weight")
    if mixer.conv_bias:
        table[*RECURRENT, "conv", "bias"] = Source(name + "conv1d.bias")
    weight, bias = ("_weight[{j}]", "_bias[{j}]") if heads else (".weight", ".bias")
    fused_rows = parts(1, mixer.rank, mixer.state_width, mixer.state_width)
    for hf_name, rows in zip(("dt", "b", "c"), fused_rows, strict=True):
        param = f"selected_{'step' if hf_name == 'dt' else hf_name}"
        table[*RECURRENT, param, "weight"] = Source(f"{name}x_proj{weight}", part=rows)
        if mixer.norm == "scale":
            table |= norm((*RECURRENT, f"{param}_norm"), f"{name}{hf_name}_layernorm", False)
    table[*RECURRENT, "step", "weight"] = Source(f"{name}dt_proj{weight}")
    table[*RECURRENT, "step", "bias"] = Source(f"{name}dt_proj{bias}")
    table[*RECURRENT, "log_rate"] = Source(f"{name}A_log{of_head}", transposed=True)
    table[*RECURRENT, "skip"] = Source(f"{name}D{of_head}")
    return table | linear((*RECURRENT, "out"), name + "out_proj", mixer.bias)

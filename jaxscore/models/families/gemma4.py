"""gemma4 and gemma3n: shared keys, per-layer embeddings, heads of two sizes.

gemma4 may have experts in addition to an MLP, and gemma3n has four residual streams.
"""

import math
import statistics
from typing import Any

from jaxscore.device import attention_kinds
from jaxscore.device.decoder_config import (
    AltUp,
    DecoderConfig,
    Experts,
    OtherHeads,
    OtherMlp,
    Rotary,
)
from jaxscore.errors import InputError
from jaxscore.models.config.check import is_real
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Source, Table, layer_norms, linear, norm
from jaxscore.models.families.gemma import SANDWICH_NORMS
from jaxscore.models.rope import rotary

FULL, SLIDING = "full_attention", "sliding_attention"
PER_LAYER_KEYS = {"head_dim", "num_key_value_heads"}  # keys of an entry of `per_layer_config`


def _gemma4(config: Any) -> DecoderConfig:
    if config.use_bidirectional_attention == "all":
        raise InputError("use_bidirectional_attention is 'all', which is not handled")
    per_layer = getattr(config, "hidden_size_per_layer_input", 0)
    if per_layer:
        fields.require(config, vocab_size_per_layer_input=config.vocab_size)
    types = fields.per_layer_values(config, "layer_types")
    windows = fields.windows_by_layer_type(config)
    shared = keys_of(config, types)
    return llama.llama_config(
        config,
        **_head_fields(config, types),
        **_rotary_fields(config, types),
        **_mlp_fields(config, shared),
        mlp_activation=fields.activation(config, "hidden_activation"),
        score_scale=1.0,
        keys_of=shared,
        qk_norm_kind="head",
        value_norm=True,
        norm_place="both",
        windows=windows,
        embedding_per_layer_width=per_layer or 0,
        layer_scale=True,
        embedding_scale=math.sqrt(config.hidden_size),
        head_softcap=config.final_logit_softcapping,
        **fields.biases(config),
    )


def _head_sizes(config: Any, layer: int) -> tuple[int, int]:
    """Return the number of KV heads and the head width of a layer."""
    sizes = config.per_layer_config.get(layer, {})
    unknown = sorted(set(sizes) - PER_LAYER_KEYS) if isinstance(sizes, dict) else sizes
    if unknown or not isinstance(sizes, dict):
        raise InputError(
            f"per_layer_config has {unknown} for layer {layer}, expected "
            f"{' and '.join(sorted(PER_LAYER_KEYS))}"
        )
    heads = sizes.get("num_key_value_heads") or config.num_key_value_heads
    return heads, sizes.get("head_dim") or config.head_dim


def _head_fields(config: Any, types: list[str]) -> dict[str, Any]:
    """Return the head fields of the sliding layers, and of the full ones if those differ."""
    sizes = {
        layer_type: {_head_sizes(config, i) for i, name in enumerate(types) if name == layer_type}
        for layer_type in (SLIDING, FULL)
    }
    if any(len(variants) > 1 for variants in sizes.values()):
        raise InputError(f"per_layer_config has several sizes of one layer type: {sizes}")
    [(n_kv_heads, width)] = sizes[SLIDING] or sizes[FULL]
    out: dict[str, Any] = {"n_kv_heads": n_kv_heads, "head_width": width}
    full = tuple(i for i, layer_type in enumerate(types) if layer_type == FULL)
    values_are_keys = bool(config.attention_k_eq_v)
    if sizes[SLIDING] and full and (sizes[FULL] != sizes[SLIDING] or values_are_keys):
        [(other_heads, other_width)] = sizes[FULL]
        out["other_heads"] = OtherHeads(full, other_heads, other_width, values_are_keys)
    elif not sizes[SLIDING]:
        out["value_are_keys"] = values_are_keys
    n_heads = config.num_attention_heads
    for heads, _ in sizes[SLIDING] | sizes[FULL]:
        if heads < 1 or n_heads % heads:
            raise InputError(
                f"num_attention_heads {n_heads} is not a multiple of num_key_value_heads {heads}"
            )
    return out


def keys_of(config: Any, types: list[str]) -> tuple[int, ...]:
    """Return for each layer the index of the layer whose keys it uses.

    The last `num_kv_shared_layers` layers use the keys of the last layer of their type before them.
    """
    n, shared = config.num_hidden_layers, config.num_kv_shared_layers
    if not shared:
        return ()
    if type(shared) is not int or not 0 < shared < n or set(types[: n - shared]) != set(types):
        raise InputError(
            f"num_kv_shared_layers is {shared!r}, expected a number that leaves a "
            "layer of each type before them"
        )
    last = {
        layer_type: max(i for i in range(n - shared) if types[i] == layer_type)
        for layer_type in set(types)
    }
    return tuple(i if i < n - shared else last[types[i]] for i in range(n))


def _rotary_fields(config: Any, types: list[str]) -> dict[str, Any]:
    """Return a rotary table per layer type, by the width of its heads, padded to equal length."""
    layer_types = list(dict.fromkeys(types))
    tables = {
        layer_type: rotary(
            _head_sizes(config, types.index(layer_type))[1],
            fields.frequency_parameters(config, config.rope_parameters[layer_type]),
        )
        for layer_type in layer_types
        if config.rope_parameters[layer_type] is not None
    }
    n_pairs = max((len(table.frequencies) for table in tables.values()), default=0)

    def padded(layer_type: str) -> Rotary:
        table = tables.get(layer_type, Rotary(()))
        missing = n_pairs - len(table.frequencies)
        return Rotary(table.frequencies + (0.0,) * missing, table.factor)

    return {
        "rotary": tuple(map(padded, layer_types)),
        "rotary_of": tuple(map(layer_types.index, types)),
    }


def _mlp_fields(config: Any, keys_of: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of experts, or of an MLP with twice the width in layers that share keys."""
    mlp_fields: dict[str, Any] = {}
    if config.use_double_wide_mlp and keys_of:
        layers = tuple(i for i, source in enumerate(keys_of) if source != i)
        mlp_fields["mlp_other"] = OtherMlp(layers, 2 * config.intermediate_size)
    if not getattr(config, "enable_moe_block", False):
        return mlp_fields
    if mlp_fields:
        raise InputError("enable_moe_block with use_double_wide_mlp: not handled together")
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.top_k_experts,
        router_renormalised=True,
        shared_width=config.intermediate_size,
        shared_gated=False,
        separate_norms=True,
        router_norm=True,
        router_expert_scale=True,
    )
    experts = mixtures.check_counts(experts, "top_k_experts")
    return {"experts": experts, "mlp_width": config.moe_intermediate_size}


def _attention_sources(
    config: DecoderConfig,
    at: tuple[str, ...],
    layers: tuple[int, ...] | None,
    with_keys: tuple[int, ...] | None,
) -> Table:
    """Return the sources of attention in `layers`; only `with_keys` have keys and values."""
    name = "layers.{i}.self_attn."
    table: Table = {}
    layers_of = {"q": layers, "k": with_keys}
    if not config.attention.values.are_keys:
        layers_of["v"] = with_keys
    for param, layers_with_param in layers_of.items():
        path = (*at, param)
        table |= linear(
            path, f"{name}{param}_proj", config.attention.qkv_bias, layers=layers_with_param
        )
    for param, layers_with_param in {"q_norm": layers, "k_norm": with_keys}.items():
        table[*at, param, "scale"] = Source(f"{name}{param}.weight", layers=layers_with_param)
    return table | linear((*at, "out"), name + "o_proj", config.attention.out_bias, layers=layers)


def _all_attention_sources(config: DecoderConfig) -> Table:
    if not attention_kinds.stacked_by_kind(config):
        return _attention_sources(config, ("layers", "attention"), None, None)
    table: Table = {}
    for index, kind_config in enumerate(config.attention_configs()):
        at = ("attentions", attention_kinds.KINDS[index])
        layers, with_keys = attention_kinds.layers_of(config, index)
        table |= _attention_sources(kind_config, at, tuple(layers), tuple(with_keys))
    return table


def _mlp_sources(config: DecoderConfig) -> Table:
    layer, at = "layers.{i}.", ("layers", "mlp")
    if config.experts is None:
        layers, other = mixtures.split_layers(config)
        if layers is None:
            return llama.mlp_sources(config)
        main = mixtures.mlp_sources(config, ("mlps", "main"), layer + "mlp.", layers)
        return main | mixtures.mlp_sources(config, ("mlps", "other"), layer + "mlp.", other)
    table = mixtures.mlp_sources(config, (*at, "shared"), layer + "mlp.", None)
    table |= mixtures.router_sources(config, layer + "router.proj")
    table[*at, "router_scale"] = Source(layer + "router.scale")
    table[*at, "expert_scale"] = Source(layer + "router.per_expert_scale")
    for param, hf_name in {
        "experts_norm": "pre_feedforward_layernorm_2",
        "experts_after_norm": "post_feedforward_layernorm_2",
        "shared_after_norm": "post_feedforward_layernorm_1",
    }.items():
        table |= norm((*at, param), layer + hf_name, False)
    gate_up, down = layer + "experts.gate_up_proj", layer + "experts.down_proj"
    return table | mixtures.fused_expert_sources(config, gate_up, down, transposed=False)


def attention_and_norm_sources(config: DecoderConfig) -> Table:
    """Return the sources of the embedding, attention, and the norms of every layer."""
    table = llama.embedding_sources(config) | _all_attention_sources(config)
    return table | layer_norms(SANDWICH_NORMS)


def per_layer_sources() -> Table:
    """Return the sources of per-layer embeddings."""
    at, layer = ("layers", "per_layer"), "layers.{i}."
    table: Table = {
        ("embed", "per_layer", "token"): Source("embed_tokens_per_layer.weight"),
        ("embed", "per_layer_in", "weight"): Source("per_layer_model_projection.weight"),
        ("embed", "per_layer_norm", "scale"): Source("per_layer_projection_norm.weight"),
    }
    table |= linear((*at, "gate"), layer + "per_layer_input_gate", False)
    table |= linear((*at, "out"), layer + "per_layer_projection", False)
    return table | norm((*at, "norm"), layer + "post_per_layer_input_norm", False)


def _sources(config: DecoderConfig) -> Table:
    table = attention_and_norm_sources(config) | _mlp_sources(config)
    table["layers", "layer_scale"] = Source("layers.{i}.layer_scalar")
    return table | per_layer_sources() if config.embedding.per_layer_width else table


def unread(config: DecoderConfig) -> tuple[str, ...]:
    """Return patterns of unused keys and values in released checkpoints.

    They belong to layers that use the keys of another layer.
    """
    shared = [i for i, source in enumerate(config.attention.keys_of) if source != i]
    return tuple(rf"layers\.{i}\.self_attn\.([kv]_proj|[kv]_norm)\.weight" for i in shared)


READS = (
    "head_dim attention_bias hidden_activation layer_types sliding_window attention_k_eq_v "
    "global_head_dim num_global_key_value_heads per_layer_config num_kv_shared_layers "
    "use_double_wide_mlp final_logit_softcapping use_bidirectional_attention"
)


HALF = 2**-0.5  # scale of the sum of the stream, attention and LAuReL
UNREAD = "altup_coef_clip altup_lr_multiplier query_pre_attn_scalar"


def _gemma3n(config: Any) -> DecoderConfig:
    sizes = fields.per_layer_values(config, "intermediate_size")
    if len(set(sizes)) > 1:
        raise InputError(f"intermediate_size is {sizes!r}, expected one size for all layers")
    for name in ("hidden_size_per_layer_input", "laurel_rank"):
        if (size := getattr(config, name)) < 1:
            raise InputError(f"{name} is {size!r}, expected a number of at least 1")
    n, rows = config.num_hidden_layers, config.vocab_size_per_layer_input
    if not 1 <= rows <= config.vocab_size:
        raise InputError(
            f"vocab_size_per_layer_input is {rows}, expected 1 to vocab_size {config.vocab_size}"
        )
    types = fields.per_layer_values(config, "layer_types")
    return llama.llama_config(
        config,
        **fields.rotary_by_layer_type(config),
        mlp_activation=fields.activation(config, "hidden_activation"),
        streams=_altup(config),
        score_scale=1.0,
        embedding_scale=math.sqrt(config.hidden_size),
        keys_of=keys_of(config, types),
        laurel_rank=config.laurel_rank,
        head_softcap=config.final_logit_softcapping,
        mlp_cutoffs=_cutoffs(config),
        mlp_width=sizes[0],
        norm_place="both",
        embedding_per_layer_rows=rows,
        embedding_per_layer_width=config.hidden_size_per_layer_input,
        qk_norm_kind="head",
        sum_factors=((HALF, HALF, 1.0, 1.0),) * n,
        value_norm=True,
        windows=fields.windows_by_layer_type(config),
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
    )


def _altup(config: Any) -> AltUp:
    n, active = config.altup_num_inputs, config.altup_active_idx
    if n < 2 or not 0 <= active < n:
        raise InputError(
            f"altup_num_inputs is {n} and altup_active_idx {active}, expected at least 2 inputs "
            "and the index of one"
        )
    return AltUp(n, active, config.altup_correct_scale)


def _cutoffs(config: Any) -> tuple[float | None, ...]:
    """Return each layer's cutoff in standard deviations above the mean.

    A normal variable is below the cutoff with the probability in `activation_sparsity_pattern`.
    Probability 0 gives None.
    """
    shares = fields.per_layer_values(config, "activation_sparsity_pattern")
    if not all(is_real(share) and 0 <= share < 1 for share in shares):
        raise InputError(
            f"activation_sparsity_pattern is {str(shares)[:60]}, expected shares from 0 to below 1"
        )
    quantile = statistics.NormalDist().inv_cdf
    cutoffs = tuple(quantile(share) if share else None for share in shares)
    return cutoffs if any(shares) else ()


def _gemma3n_sources(config: DecoderConfig) -> Table:
    table = attention_and_norm_sources(config) | llama.mlp_sources(config)
    table |= per_layer_sources()
    for param, hf_name in {"into": "projections", "out_of": "unembed_projections"}.items():
        table["streams", param, "weight"] = Source(f"altup_{hf_name}.{{j}}.weight")
    layer, at = "layers.{i}.", ("layers", "streams")
    for param, hf_name in {
        "router": "modality_router",
        "predicting": "prediction_coefs",
        "correcting": "correction_coefs",
    }.items():
        table |= linear((*at, param), f"{layer}altup.{hf_name}", False)
    table |= norm((*at, "norm"), layer + "altup.router_norm", False)
    assert isinstance(config.residual.streams, AltUp)
    if config.residual.streams.scaled:
        table[*at, "output_scale"] = Source(layer + "altup.correct_output_scale")
    at = ("layers", "laurel")
    for param in ("left", "right"):
        table |= linear((*at, param), f"{layer}laurel.linear_{param}", False)
    return table | norm((*at, "norm"), layer + "laurel.post_laurel_norm", False)


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    """Return `unread` and the patterns of scales that are not applied."""
    assert isinstance(config.residual.streams, AltUp)
    scales = (
        () if config.residual.streams.scaled else (r"layers\.\d+\.altup\.correct_output_scale",)
    )
    return unread(config) + scales


FAMILIES = {
    "gemma4_text": llama.family(
        _gemma4,
        READS,
        "hidden_size_per_layer_input vocab_size_per_layer_input enable_moe_block num_experts",
        "top_k_experts moe_intermediate_size",
        sources=_sources,
        unread=unread,
        lacks="hidden_act",
    ),
    "gemma4_unified_text": llama.family(
        _gemma4, READS, sources=_sources, unread=unread, lacks="hidden_act"
    ),
    "gemma3n_text": llama.family(
        _gemma3n,
        "activation_sparsity_pattern altup_active_idx altup_correct_scale altup_num_inputs",
        "attention_bias final_logit_softcapping head_dim hidden_activation laurel_rank",
        "hidden_size_per_layer_input layer_types num_kv_shared_layers sliding_window",
        "vocab_size_per_layer_input",
        UNREAD,
        sources=_gemma3n_sources,
        unread=_unread,
        lacks="hidden_act",
    ),
}

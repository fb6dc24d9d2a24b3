"""Mixtures with attention sinks: flint, gpt_oss and mimo_v2_flash.

gpt_oss has biases and a clamped gate in its experts. The values of mimo_v2_flash are narrower than
its keys, and its layers with a window have more KV heads.
"""

from typing import Any

from jaxscore.device import attention_kinds
from jaxscore.device.decoder_config import Clamped, DecoderConfig, Experts, OtherHeads
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Source, Table, linear

FULL, SLIDING = "full_attention", "sliding_attention"
# Attributes of released configs that PyTorch's class does not read
RELEASED = (
    "add_full_attention_sink_bias add_swa_attention_sink_bias hybrid_block_size "
    "hybrid_layer_pattern layernorm_epsilon moe_layer_freq n_shared_experts "
    "partial_rotary_factor rope_theta scoring_func swa_head_dim swa_num_attention_heads "
    "swa_num_key_value_heads swa_rope_theta swa_v_head_dim topk_method"
)


def _require_released(config: Any, windows: tuple[int, ...], plain: tuple[int, ...]) -> None:
    """Check that the attributes that the class does not read agree with what it implements."""
    full, sliding = config.rope_parameters[FULL], config.rope_parameters[SLIDING]
    fields.require(
        config,
        add_full_attention_sink_bias=False,
        add_swa_attention_sink_bias=True,
        hybrid_block_size=None,
        hybrid_layer_pattern=[int(window > 0) for window in windows],
        layernorm_epsilon=config.rms_norm_eps,
        moe_layer_freq=[int(i not in plain) for i in range(config.num_hidden_layers)],
        n_shared_experts=None,
        partial_rotary_factor=full["partial_rotary_factor"],
        rope_theta=full["rope_theta"],
        scoring_func="sigmoid",
        swa_head_dim=config.head_dim,
        swa_num_attention_heads=config.num_attention_heads,
        swa_num_key_value_heads=2 * config.num_key_value_heads,
        swa_rope_theta=sliding["rope_theta"],
        swa_v_head_dim=config.v_head_dim,
        topk_method="noaux_tc",
    )


def _head_fields(config: Any, windows: tuple[int, ...]) -> dict[str, Any]:
    """Return the head fields: layers with a window have twice as many KV heads, and sinks."""
    width, value, heads = config.head_dim, config.v_head_dim, config.num_key_value_heads
    if not 1 <= value <= width:
        raise InputError(f"v_head_dim is {value}, expected 1 to {width} of head_dim")
    head_fields: dict[str, Any] = {"value_width": 0 if value == width else value}
    if not any(windows):
        return head_fields | {"n_kv_heads": heads}
    if full := tuple(i for i, window in enumerate(windows) if not window):
        head_fields["other_heads"] = OtherHeads(full, heads, width, sinks=False)
    return head_fields | {"n_kv_heads": 2 * heads, "sinks": True}


def _mimo(config: Any) -> DecoderConfig:
    windows, plain = fields.windows_by_layer_type(config), mixtures.dense_layers(config)
    for layer_type, parameters in config.rope_parameters.items():
        if parameters is None or parameters["rope_type"] != "default":
            raise InputError(
                f"rope_parameters.{layer_type} is {parameters}, handled is type 'default'"
            )
    shares = {parameters["partial_rotary_factor"] for parameters in config.rope_parameters.values()}
    if len(shares) > 1:
        raise InputError(f"partial_rotary_factor differs between layer types: {sorted(shares)}")
    _require_released(config, windows, plain)
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts)
    width, scale = config.moe_intermediate_size, config.attention_value_scale
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        **_head_fields(config, windows),
        **fields.rotary_by_layer_type(config),
        qkv_bias=config.attention_bias,
        value_factor=1.0 if scale is None else scale,
        windows=windows,
    )


def _attention_sources(config: DecoderConfig) -> Table:
    table: Table = {}
    several = attention_kinds.stacked_by_kind(config)
    for index, kind_config in enumerate(config.attention_configs()):
        at = ("attentions", attention_kinds.KINDS[index]) if several else ("layers", "attention")
        layers = tuple(attention_kinds.layers_of(config, index)[0]) if several else None
        name = "layers.{i}.self_attn."
        for param in "qkv":
            table |= linear(
                (*at, param), f"{name}{param}_proj", kind_config.attention.qkv_bias, layers=layers
            )
        table |= linear((*at, "out"), name + "o_proj", False, layers=layers)
        if kind_config.attention.scores.sinks:
            table[*at, "sinks"] = Source(name + "attention_sink_bias", layers=layers)
    return table


def _flint(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings; the others are NoPE."""
    windows = fields.windows_by_layer_type(config)
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=config.norm_topk_prob,
        shared_width=config.shared_expert_intermediate_size,
        shared_gated=False,
        router_scores="sigmoid",
    )
    plain, width = mixtures.layers_between_steps(config), config.moe_intermediate_size
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        qk_norm_kind="head",
        sinks=True,
        windows=windows,
        **fields.rotary_in_layers(config, map(bool, windows)),
        **fields.biases(config),
    )


def _flint_sources(config: DecoderConfig) -> Table:
    mlp = "layers.{i}.mlp."
    return (
        llama.sources_without_mlp(config)
        | llama.qk_norm_sources(config)
        | {("layers", "attention", "sinks"): Source("layers.{i}.self_attn.softmax_offset")}
        | mixtures.plain_mlp_sources(config)
        | mixtures.router_sources(config, mlp + "gate")
        | mixtures.expert_sources(config, mlp)
        | mixtures.shared_expert_sources(config, mlp + "shared_expert.")
    )


def _gpt_oss(config: Any) -> DecoderConfig:
    per_token = config.num_experts_per_tok
    # experts_per_token is an older name
    fields.require(config, hidden_act="silu", experts_per_token=per_token)
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=per_token,
        router_renormalised=True,  # equal to a softmax over the chosen logits
        router_bias=True,
        bias=True,
    )
    return llama.llama_config(
        config,
        experts=mixtures.check_counts(experts),
        mlp_clamped=Clamped(config.swiglu_limit, config.swiglu_alpha),
        sinks=True,
        windows=fields.windows_by_layer_type(config),
        **fields.biases(config),
    )


def _gpt_oss_sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    gate_up, down = layer + "mlp.experts.gate_up_proj", layer + "mlp.experts.down_proj"
    return (
        llama.sources_without_mlp(config)
        | {("layers", "attention", "sinks"): Source(layer + "self_attn.sinks")}
        | mixtures.router_sources(config, layer + "mlp.router")
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=True, interleaved=True)
    )


FAMILIES = {
    "flint": llama.family(
        _flint,
        "head_dim attention_bias layer_types sliding_window decoder_sparse_step mlp_only_layers",
        "moe_intermediate_size num_experts num_experts_per_tok norm_topk_prob",
        "shared_expert_intermediate_size",
        mixtures.TRAINING,
        sources=_flint_sources,
        renamed={".self_attn.sinks": ".self_attn.softmax_offset"},  # in transformers 5
    ),
    "mimo_v2_flash": llama.family(
        _mimo,
        "attention_bias head_dim v_head_dim attention_value_scale layer_types sliding_window",
        "sliding_window_size mlp_layer_types moe_intermediate_size n_routed_experts n_group",
        "topk_group num_experts_per_tok norm_topk_prob routed_scaling_factor",
        "attention_chunk_size output_router_logits",
        RELEASED,
        sources=lambda config: mixtures.sources(config, _attention_sources(config)),
        unread=lambda config: (r"mtp\..+",),
        renamed={".self_attn.sinks": ".self_attn.attention_sink_bias"},  # in transformers 5
    ),
    "gpt_oss": llama.family(
        _gpt_oss,
        "head_dim attention_bias layer_types sliding_window swiglu_limit swiglu_alpha",
        "num_local_experts num_experts_per_tok experts_per_token initial_context_length",
        mixtures.TRAINING,
        sources=_gpt_oss_sources,
    ),
}

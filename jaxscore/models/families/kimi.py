"""The delta rule with a decay of each channel (Kimi delta attention) in most layers: kimi_linear.

The other layers have latent attention without rotation. All layers but the first ones have experts.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, GatedDelta, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import deepseek, fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Source, Table, linear, norm
from jaxscore.models.families.hybrid import FULL, LINEAR

KIMI_PROJECTIONS = {  # in our order of a layer's parameters
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "step_in": "f_a_proj",
    "step": "f_b_proj",
    "z_in": "g_a_proj",
    "z": "g_b_proj",
    "rate": "b_proj",
    "out": "o_proj",
}


def _kimi_linear(config: Any) -> DecoderConfig:
    # PyTorch's class has no other; the last four are of published files.
    fields.require(config, tie_word_embeddings=False, mla_use_nope=True, moe_layer_freq=1)
    fields.require(config, use_grouped_topk=True, moe_router_activation_func="sigmoid")
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    width, count, taps = (
        getattr(config, f"linear_{name}") for name in ("head_dim", "num_heads", "conv_kernel_dim")
    )
    if min(width, count, taps) < 1:
        raise InputError(f"linear layers have {count} heads of {width} and {taps} taps")
    activation: Any = fields.activation(config)
    eps = config.rms_norm_eps
    mixer = GatedDelta(
        count, count, width, width, taps, activation, 1.0, eps, channel_decay=True, rank=width
    )
    inner = config.moe_intermediate_size
    experts = mixtures.sigmoid_experts(
        config, config.num_experts, shared_width=config.num_shared_experts * inner
    )
    plain = mixtures.dense_layers(config)
    no_rotation = fields.no_rotation(config.qk_rope_head_dim // 2)
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        rotary=(no_rotation,),
        rotary_of=(0,) * config.num_hidden_layers,
        **mixtures.mlp_fields(config, experts, inner, plain, config.intermediate_size),
        **deepseek.latent_fields(config),
    )


def _kimi_delta_sources(config: DecoderConfig) -> Table:
    if config.recurrent is None:
        return {}
    at, name = hybrid.RECURRENT, "layers.{i}.self_attn."
    table: Table = {}
    for ours, theirs in KIMI_PROJECTIONS.items():
        table |= linear((*at, ours), name + theirs, False)
    for ours, part in zip("qkv", hybrid.parts(1, 1, 1, 1), strict=True):
        table[*at, f"{ours}_conv", "taps"] = Source(name + "conv1d.weight", part=part)
    table[*at, "log_rate"] = Source(name + "A_log")
    table[*at, "step_bias"] = Source(name + "dt_bias")
    return table | norm((*at, "norm"), name + "o_norm", False)


def _kimi_sources(config: DecoderConfig) -> Table:
    mixers = hybrid.by_kind(
        config, deepseek.attention_sources(config) | _kimi_delta_sources(config)
    )
    mlp = "layers.{i}.mlp."
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | mixers
        | mixtures.plain_mlp_sources(config)
        | mixtures.router_sources(config, mlp + "gate")
        | mixtures.separate_expert_sources(config, mlp, ("w1", "w3", "w2"))
        | mixtures.shared_expert_sources(config, mlp + "shared_experts.")
    )


FAMILIES = {
    "kimi_linear": llama.family(
        _kimi_linear,
        "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim",
        "head_dim qk_head_dim layer_types linear_attn_config linear_conv_kernel_dim",
        "linear_head_dim linear_num_heads mlp_layer_types first_k_dense_replace model_max_length",
        "moe_intermediate_size moe_renormalize num_expert_group num_experts num_experts_per_token",
        "num_shared_experts routed_scaling_factor topk_group output_router_logits mla_use_nope",
        "moe_layer_freq moe_router_activation_func use_grouped_topk rope_theta",
        mixtures.NEXT_TOKENS,
        sources=_kimi_sources,
        lacks="rope_parameters max_position_embeddings",
        renamed={".block_sparse_moe.": ".mlp.", ".forget_gate.": "."},
        joined={"conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")},
        next_tokens=True,
    ),
}

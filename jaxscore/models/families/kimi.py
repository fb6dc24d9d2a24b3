"""The delta rule with a decay per channel (Kimi delta attention) in most layers: kimi_linear,
bailing_hybrid.

The other layers have latent attention: without rotary embeddings in kimi_linear, with a gate per
head in bailing_hybrid. All layers except the first ones have experts.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, GatedDelta, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import deepseek, fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Source, Table, linear, norm
from jaxscore.models.families.hybrid import FULL, LINEAR

KIMI_PROJECTIONS = {  # in the order of our parameters
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
BAILING_PROJECTIONS = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "step": "f_proj",
    "z": "g_proj",
    "rate": "b_proj",
    "out": "o_proj",
}


def _decoder(config: Any, mixer_fields: dict[str, Any], **overrides: Any) -> DecoderConfig:
    """Return the decoder of both families.

    Args:
        mixer_fields: fields of `GatedDelta` that are added or differ.
        overrides: fields of the decoder that are added or differ.
    """
    fields.require(config, tie_word_embeddings=False)  # PyTorch's classes tie nothing
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    width, count, taps = (
        getattr(config, f"linear_{name}") for name in ("head_dim", "num_heads", "conv_kernel_dim")
    )
    if min(width, count, taps) < 1:
        raise InputError(f"linear layers have {count} heads of {width} and {taps} taps")
    activation: Any = fields.activation(config)
    eps = config.rms_norm_eps
    mixer_fields = mixer_fields | {"channel_decay": True, "sigmoid_gate": True}
    mixer = GatedDelta(count, count, width, width, taps, activation, 1.0, eps, **mixer_fields)
    inner = config.moe_intermediate_size
    experts = mixtures.sigmoid_experts(
        config, config.num_experts, shared_width=config.num_shared_experts * inner
    )
    plain = mixtures.dense_layers(config)
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        **mixtures.mlp_fields(config, experts, inner, plain, config.intermediate_size),
        **deepseek.latent_fields(config),
        **overrides,
    )


def _kimi_linear(config: Any) -> DecoderConfig:
    # Published files have these; PyTorch's class implements nothing else.
    fields.require(config, mla_use_nope=True, moe_layer_freq=1)
    fields.require(config, use_grouped_topk=True, moe_router_activation_func="sigmoid")
    return _decoder(
        config,
        {"rank": config.linear_head_dim},
        rotary=(fields.no_rotation(config.qk_rope_head_dim // 2),),
        rotary_of=(0,) * config.num_hidden_layers,
    )


# Attributes of Ling 3.0's configs, with the values that PyTorch's class implements
LING: dict[str, Any] = {
    "gated_attention_proj_granularity_type": "head_wise",
    "group_norm_size": 1,
    "linear_silu": True,
    "moe_router_enable_expert_bias": True,
    "no_kda_lora": True,
    "num_kv_heads_for_linear_attn": 0,
    "rope_interleave": True,
    "router_dtype": "fp32",
    "score_function": "sigmoid",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "use_qk_norm": True,
}


def _bailing_hybrid(config: Any) -> DecoderConfig:
    share = config.qk_rope_head_dim / max(config.linear_head_dim, 1)
    # transformers' class moves it into rope_parameters, where types other than "default" apply it
    # again.
    is_default = config.rope_parameters.get("rope_type", "default") == "default"
    fields.require(
        config,
        **LING,
        moe_shared_expert_intermediate_size=config.moe_intermediate_size,
        partial_rotary_factor=share if is_default else 1.0,
        rotary_dim=config.qk_rope_head_dim,
    )
    bound = config.kda_lower_bound if config.kda_safe_gate else None
    return _decoder(
        config, {"least_decay": bound}, interleaved=True, query_gate=True, gate_per_head=True
    )


def _delta_sources(config: DecoderConfig) -> Table:
    if config.recurrent is None:
        return {}
    mixer = config.recurrent.mixer
    assert isinstance(mixer, GatedDelta)
    projections = KIMI_PROJECTIONS if mixer.rank else BAILING_PROJECTIONS
    at, name = hybrid.RECURRENT, "layers.{i}.self_attn."
    table: Table = {}
    for param, hf_name in projections.items():
        table |= linear((*at, param), name + hf_name, False)
    for param, rows in zip("qkv", hybrid.parts(1, 1, 1, 1), strict=True):
        table[*at, f"{param}_conv", "taps"] = Source(name + "conv1d.weight", part=rows)
    table[*at, "log_rate"] = Source(name + "A_log")
    table[*at, "step_bias"] = Source(name + "dt_bias")
    return table | norm((*at, "norm"), name + "o_norm", False)


def _sources(
    config: DecoderConfig,
    experts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Table:
    attention, mlp = deepseek.attention_sources(config), "layers.{i}.mlp."
    if config.attention.query_gate:
        attention |= linear((*hybrid.ATTENTION, "gate"), "layers.{i}.self_attn.g_proj", False)
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | hybrid.by_kind(config, attention | _delta_sources(config))
        | mixtures.plain_mlp_sources(config)
        | mixtures.router_sources(config, mlp + "gate")
        | mixtures.expert_sources(config, mlp, experts)
        | mixtures.shared_expert_sources(config, mlp + "shared_experts.")
    )


def _kimi_sources(config: DecoderConfig) -> Table:
    return _sources(config, ("w1", "w3", "w2"))


READS = (
    "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim "
    "head_dim qk_head_dim layer_types linear_conv_kernel_dim linear_head_dim linear_num_heads "
    "mlp_layer_types first_k_dense_replace model_max_length moe_intermediate_size "
    "moe_renormalize num_expert_group num_experts num_experts_per_token num_shared_experts "
    "routed_scaling_factor topk_group output_router_logits"
)
CONVOLUTIONS = {"conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")}

FAMILIES = {
    "bailing_hybrid": llama.family(
        _bailing_hybrid,
        READS,
        "kda_lower_bound kda_safe_gate layer_group_size mtp_loss_scaling_factor",
        "short_conv_kernel_size moe_shared_expert_intermediate_size partial_rotary_factor",
        "max_window_layers rotary_dim seq_aux",
        *LING,
        mixtures.NEXT_TOKENS,
        sources=_sources,
        lacks="max_position_embeddings",
        renamed={
            "word_embeddings.": "embed_tokens.",
            ".attention.": ".self_attn.",
            ".self_attn.dense.": ".self_attn.o_proj.",
            ".forget_gate.": ".",
            ".gate.expert_bias": ".gate.e_score_correction_bias",
        },
        joined=CONVOLUTIONS,
        next_tokens=True,
    ),
    "kimi_linear": llama.family(
        _kimi_linear,
        READS,
        "linear_attn_config mla_use_nope moe_layer_freq moe_router_activation_func",
        "use_grouped_topk rope_theta",
        mixtures.NEXT_TOKENS,
        sources=_kimi_sources,
        lacks="rope_parameters max_position_embeddings",
        renamed={".block_sparse_moe.": ".mlp.", ".forget_gate.": "."},
        joined=CONVOLUTIONS,
        next_tokens=True,
    ),
}

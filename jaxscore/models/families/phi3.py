"""phi3, phi4_multimodal, phimoe, minicpm3: other rotary frequencies beyond the original length."""

import dataclasses
import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import deepseek, fields, llama, mixtral, mixtures
from jaxscore.models.families.family import Part, Table, linear
from jaxscore.models.rope import longrope


def rotary_fields(config: Any, scales: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the rotary fields of rope types "default" and "longrope".

    Args:
        scales: names of the rotary parameters that replace the factor of sine and cosine in the
            table for short requests and in the one for long requests.
    """
    if fields.require_rope_type(config, "default", "longrope") == "default":
        return fields.rotary_fields(config)
    parameters = dict(config.rope_parameters)
    factors = []
    for name in scales:
        factor = parameters.pop(name, None)
        if type(factor) not in (int, float) or not factor > 0:
            raise InputError(f"rope_scaling has {name} {factor!r}, expected a positive number")
        factors.append(float(factor))
    short, long = longrope(fields.head_width(config), parameters, config.max_position_embeddings)
    if factors:
        short = dataclasses.replace(short, factor=factors[0])
        long = dataclasses.replace(long, factor=factors[1])
    return fields.rotary_by_length(config, short, long)


def _phi3(config: Any) -> DecoderConfig:
    """Llama with fused tensors of attention and MLP."""
    # Phi-4-mini has these values; PyTorch's class reads neither.
    fields.require(config, full_attn_mod=1, interpolate_factor=1)
    rotary = rotary_fields(config)
    return llama.llama_config(config, windows=fields.uniform_window(config), **rotary)


def _phi3_sources(config: DecoderConfig) -> Table:
    layer, n, k = "layers.{i}.self_attn.", config.attention.n_heads, config.attention.n_kv_heads
    heads = n + 2 * k
    table = llama.embedding_sources(config) | llama.pre_norm_sources(config)
    for param, start, stop in (("q", 0, n), ("k", n, n + k), ("v", n + k, heads)):
        rows = Part(1, heads, start, stop)
        table |= linear(("layers", "attention", param), layer + "qkv_proj", False, part=rows)
    table |= linear(("layers", "attention", "out"), layer + "o_proj", False)
    return table | llama.fused_mlp_sources()


def _phimoe(config: Any) -> DecoderConfig:
    """Mixtral with layer norms and a router that weights one expert after the other."""
    fields.require(config, num_experts_per_tok=2)  # PyTorch's class always runs two
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=False,
        router_scores="sparsemixer",
        router_jitter=config.router_jitter_noise,
    )
    return llama.llama_config(
        config,
        norm_kind="layer",
        norm_bias=True,
        head_bias=config.lm_head_bias,
        experts=mixtures.check_counts(experts),
        windows=fields.uniform_window(config),
        **fields.biases(config),
        **rotary_fields(config, ("short_mscale", "long_mscale")),
    )


def _minicpm3(config: Any) -> DecoderConfig:
    by_length = config.rope_parameters["rope_type"] == "longrope"
    overrides = deepseek.latent_fields(config)
    overrides |= rotary_fields(config) if by_length else fields.rotary_fields(config)
    return llama.llama_config(
        config,
        **overrides,
        mlp_bias=config.mlp_bias,
        embedding_scale=float(config.scale_emb),
        branch_scale=config.scale_depth / math.sqrt(config.num_hidden_layers),
        head_scale=config.dim_model_base / config.hidden_size,
    )


def _minicpm_sources(config: DecoderConfig) -> Table:
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | deepseek.attention_sources(config)
        | llama.mlp_sources(config)
    )


FAMILIES = {
    "phi3": llama.family(
        _phi3,
        "original_max_position_embeddings sliding_window full_attn_mod interpolate_factor",
        sources=_phi3_sources,
    ),
    "phi4_multimodal": llama.family(
        _phi3,
        "original_max_position_embeddings sliding_window vision_config audio_config",
        sources=_phi3_sources,
        unread=lambda config: (r"embed_tokens_extend\..+",),
        unread_part="towers",
    ),
    "phimoe": llama.family(
        _phimoe,
        "attention_bias head_dim lm_head_bias sliding_window num_local_experts num_experts_per_tok",
        "router_jitter_noise hidden_dropout input_jitter_noise",
        mixtures.TRAINING,
        sources=mixtral.mixtral_sources,
        renamed={".mlp.router.": ".mlp.gate."} | mixtral.MIXTRAL,
    ),
    "minicpm3": llama.family(
        _minicpm3,
        "attention_bias mlp_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim",
        "v_head_dim head_dim qk_head_dim scale_emb scale_depth dim_model_base",
        sources=_minicpm_sources,
    ),
}

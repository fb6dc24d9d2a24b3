"""llama4_text: attention in chunks of positions, NoPE layers, experts that weigh their input."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, QueryGrowth
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table


def _llama4(config: Any) -> DecoderConfig:
    has_rotary = [bool(flag) for flag in fields.per_layer_values(config, "no_rope_layers")]
    share = config.attn_scale if config.attn_temperature_tuning else 0.0
    growth = QueryGrowth(
        tuple(0.0 if rotates else float(share) for rotates in has_rotary),
        float(config.floor_scale),
        1,
    )
    expert_layers = fields.layer_indices(config, "moe_layers")
    plain = tuple(i for i in range(config.num_hidden_layers) if i not in expert_layers)
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalised=False,
        shared_width=config.intermediate_size,
        shared_gated=False,
        scores="sigmoid",
        weighs_input=True,
    )
    qk_norm: dict[str, Any] = {}
    if config.use_qk_norm:
        qk_norm = {
            "qk_norm": "head",
            "qk_norm_scale": False,
            "qk_norm_turned": True,
            "qk_norm_of": tuple(has_rotary),
        }
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(
            config, experts, config.intermediate_size, plain, config.intermediate_size_mlp
        ),
        **qk_norm,
        **fields.rotary_in_layers(config, has_rotary),
        interleaved=True,
        query_growth=growth if any(growth.shares) else None,
        windows=fields.windows_by_layer_type(config, "chunked_attention", "attention_chunk_size"),
        chunked=True,
        **fields.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}.feed_forward."
    gate_up, down = layer + "experts.gate_up_proj", layer + "experts.down_proj"
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | llama.attention_sources(config)
        | mixtures.plain_mlp_sources(config, "feed_forward")
        | mixtures.router_sources(config, layer + "router")
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=True)
        | mixtures.shared_expert_sources(config, layer + "shared_expert.")
    )


FAMILIES = {
    "llama4_text": llama.family(
        _llama4,
        "head_dim attention_bias layer_types attention_chunk_size no_rope_layers",
        "no_rope_layer_interval use_qk_norm attn_temperature_tuning attn_scale floor_scale",
        "moe_layers interleave_moe_layer_step intermediate_size_mlp num_local_experts",
        "num_experts_per_tok router_jitter_noise",
        mixtures.TRAINING,
        sources=_sources,
    )
}

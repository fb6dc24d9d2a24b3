"""gpt_oss: attention sinks, and experts with biases and a clamped gate."""

from typing import Any

from jaxscore.device.decoder_config import Clamped, DecoderConfig, Experts
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Source, Table


def _gpt_oss(config: Any) -> DecoderConfig:
    per_token = config.num_experts_per_tok
    # experts_per_token is an older name
    fields.require(config, hidden_act="silu", experts_per_token=per_token)
    experts = Experts(
        config.num_local_experts,
        per_token,
        renormalised=True,  # equal to a softmax over the chosen logits
        router_bias=True,
        bias=True,
    )
    return llama.llama_config(
        config,
        experts=mixtures.check_counts(experts),
        clamped=Clamped(config.swiglu_limit, config.swiglu_alpha),
        sinks=True,
        windows=fields.windows_by_layer_type(config),
        **fields.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    gate_up, down = layer + "mlp.experts.gate_up_proj", layer + "mlp.experts.down_proj"
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | llama.attention_sources(config)
        | {("layers", "attention", "sinks"): Source(layer + "self_attn.sinks")}
        | mixtures.router_sources(config, layer + "mlp.router")
        | mixtures.fused_expert_sources(config, gate_up, down, transposed=True, interleaved=True)
    )


FAMILIES = {
    "gpt_oss": llama.family(
        _gpt_oss,
        "head_dim attention_bias layer_types sliding_window swiglu_limit swiglu_alpha",
        "num_local_experts num_experts_per_tok experts_per_token initial_context_length",
        mixtures.TRAINING,
        sources=_sources,
    ),
}

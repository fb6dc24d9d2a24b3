"""gpt_oss: attention sinks, and experts with biases and a clamped gate."""

from typing import Any

from jaxscore.device.decoder_config import Clamped, DecoderConfig, Experts
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Source, Table


def _translate(config: Any) -> DecoderConfig:
    chosen = config.num_experts_per_tok
    parts.refuse(config, hidden_act="silu", experts_per_token=chosen)  # an older name for it
    experts = Experts(
        config.num_local_experts,
        chosen,
        renormalised=True,  # the same as a softmax over the chosen logits
        router_bias=True,
        bias=True,
    )
    bias = config.attention_bias
    return llamalike.llamalike(
        config,
        experts=mixtures.check_counts(experts),
        clamped=Clamped(config.swiglu_limit, config.swiglu_alpha),
        sinks=True,
        windows=parts.windows_of_types(config),
        qkv_bias=bias,
        out_bias=bias,
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    inward, outward = layer + "mlp.experts.gate_up_proj", layer + "mlp.experts.down_proj"
    return (
        llamalike.ends(config)
        | llamalike.norms_before(config)
        | llamalike.attention_sources(config)
        | {("layers", "attention", "sinks"): Source(layer + "self_attn.sinks")}
        | mixture_sources.router(config, layer + "mlp.router")
        | mixture_sources.experts_together(
            config, inward, outward, transposed=True, interleaved=True
        )
    )


GPT_OSS = Family(
    llamalike.READS
    | parts.reads(
        "head_dim attention_bias layer_types sliding_window swiglu_limit swiglu_alpha",
        "num_local_experts num_experts_per_tok experts_per_token initial_context_length",
        mixtures.TRAINING,
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)

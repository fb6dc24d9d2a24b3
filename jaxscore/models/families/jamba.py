"""jamba: Mamba-1, attention without rotation in every n-th layer, experts in every m-th."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Source, Table, layer_norms, norm
from jaxscore.models.families.family import unembedding as head_sources

LAYER = "layers.{i}."
FEED_FORWARD = LAYER + "feed_forward."


def _every(config: Any, name: str) -> tuple[int, ...]:
    """Layers of a period and an offset."""
    period, offset = (getattr(config, f"{name}_layer_{end}") for end in ("period", "offset"))
    if period < 1:
        raise InputError(f"{name}_layer_period is {period}, expected at least 1")
    if not 0 <= offset < period:
        raise InputError(f"{name}_layer_offset is {offset}, expected 0 to {period - 1}")
    return tuple(i for i in range(config.num_hidden_layers) if i % period == offset)


def _config(config: Any) -> DecoderConfig:
    fields.require(config, sliding_window=None, mamba_inner_layernorms=True)
    attention, sparse = (_every(config, name) for name in ("attn", "expert"))
    layers = tuple(i for i in range(config.num_hidden_layers) if i not in attention)
    mixer = hybrid.selective_scan(
        config,
        config.mamba_expand * config.hidden_size,
        config.mamba_dt_rank,
        state_width=config.mamba_d_state,
        taps=config.mamba_d_conv,
        conv_bias=config.mamba_conv_bias,
        bias=config.mamba_proj_bias,
        norm="scale",
        norm_eps=config.rms_norm_eps,
    )
    plain = tuple(
        i for i in range(config.num_hidden_layers) if i not in sparse or config.num_experts == 1
    )
    experts = Experts(config.num_experts, config.num_experts_per_tok, renormalised=False)
    width = config.intermediate_size
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        rotary=(),
        rotary_of=(),
        **mixtures.mlp_fields(config, experts, width, plain, width),
    )


def _sources(config: DecoderConfig) -> Table:
    mixers = llama.attention_sources(config) | hybrid.selective_scan_sources(
        config, LAYER + "mamba."
    )
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | norm(("final_norm",), "final_layernorm", False)
        | head_sources(config)
        | layer_norms({"attention_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm"})
        | hybrid.by_kind(config, mixers)
        | mixtures.plain_mlp_sources(config, "feed_forward")
        | mixtures.router_sources(config, FEED_FORWARD + "router")
        | mixtures.separate_or_fused_expert_sources(config, FEED_FORWARD, transposed=False)
    )


FAMILIES = {
    "jamba": llama.family(
        _config,
        "attn_layer_offset attn_layer_period expert_layer_offset expert_layer_period num_experts",
        "num_experts_per_tok mamba_conv_bias mamba_d_conv mamba_d_state mamba_dt_rank mamba_expand",
        "mamba_proj_bias use_mamba_kernels use_mambapy use_associative_scan",
        "calc_logits_for_entire_prompt mamba_inner_layernorms num_logits_to_keep sliding_window",
        mixtures.TRAINING,
        sources=_sources,
        lacks="rope_parameters",
    )
}

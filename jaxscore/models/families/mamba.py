"""Mamba-1: mamba, falcon_mamba and jamba.

jamba has attention without rotary embeddings in every n-th layer, and experts in every m-th.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Family, Source, Table, layer_norms, norm, unembedding


def _mamba(config: Any, **mixer_fields: Any) -> DecoderConfig:
    inner = config.intermediate_size
    # Published files also have other names of these sizes.
    fields.require(config, d_inner=inner, d_model=config.hidden_size, rms_norm=True, ssm_cfg={})
    fields.require(config, n_layer=config.num_hidden_layers)
    mixer = hybrid.selective_scan(
        inner,
        config.time_step_rank,
        fields.activation(config),
        state_width=config.state_size,
        taps=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        **mixer_fields,
    )
    return hybrid.recurrence_alone(config, mixer)


def _falcon_mamba(config: Any) -> DecoderConfig:
    """Mamba with norms of step sizes, B and C."""
    return _mamba(config, norm="plain", norm_eps=config.mixer_rms_eps)


def _sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embeddings.weight")}
        | norm(("final_norm",), "norm_f", False)
        | unembedding(config)
        | layer_norms({"attention_norm": "norm"})
        | hybrid.selective_scan_sources(config, "layers.{i}.mixer.")
    )


READS = (
    "vocab_size hidden_size num_hidden_layers tie_word_embeddings layer_norm_epsilon state_size "
    "expand intermediate_size conv_kernel use_bias use_conv_bias hidden_act time_step_rank "
    "time_step_floor time_step_init_scheme time_step_max time_step_min time_step_scale "
    "residual_in_fp32 rescale_prenorm_residual use_mambapy use_associative_scan"
)
# Name in the authors' code
RENAMED = {"embedding.": "embeddings."}


LAYER = "layers.{i}."
FEED_FORWARD = LAYER + "feed_forward."


def _every(config: Any, name: str) -> tuple[int, ...]:
    """Return the layers given by the attributes `{name}_layer_period` and `{name}_layer_offset`."""
    period, offset = (getattr(config, f"{name}_layer_{end}") for end in ("period", "offset"))
    if period < 1:
        raise InputError(f"{name}_layer_period is {period}, expected at least 1")
    if not 0 <= offset < period:
        raise InputError(f"{name}_layer_offset is {offset}, expected 0 to {period - 1}")
    return tuple(i for i in range(config.num_hidden_layers) if i % period == offset)


def _jamba(config: Any) -> DecoderConfig:
    fields.require(config, sliding_window=None, mamba_inner_layernorms=True)
    attention, sparse = (_every(config, name) for name in ("attn", "expert"))
    layers = tuple(i for i in range(config.num_hidden_layers) if i not in attention)
    mixer = hybrid.selective_scan(
        config.mamba_expand * config.hidden_size,
        config.mamba_dt_rank,
        fields.activation(config),
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
    experts = Experts.of(
        count=config.num_experts, per_token=config.num_experts_per_tok, router_renormalised=False
    )
    width = config.intermediate_size
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        rotary=(),
        rotary_of=(),
        **mixtures.mlp_fields(config, experts, width, plain, width),
    )


def _jamba_sources(config: DecoderConfig) -> Table:
    mixers = llama.attention_sources(config) | hybrid.selective_scan_sources(
        config, LAYER + "mamba."
    )
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | norm(("final_norm",), "final_layernorm", False)
        | unembedding(config)
        | layer_norms({"attention_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm"})
        | hybrid.by_kind(config, mixers)
        | mixtures.plain_mlp_sources(config, "feed_forward")
        | mixtures.router_sources(config, FEED_FORWARD + "router")
        | mixtures.expert_sources(config, FEED_FORWARD)
    )


FAMILIES = {
    "falcon_mamba": Family(
        fields.reads(READS, "mixer_rms_eps use_falcon_mambapy"),
        _falcon_mamba,
        _sources,
        prefix="backbone.",
    ),
    "mamba": Family(
        fields.reads(
            READS, "d_inner d_model fused_add_norm n_layer pad_vocab_size_multiple rms_norm ssm_cfg"
        ),
        _mamba,
        _sources,
        prefix="backbone.",
        renamed=RENAMED,
    ),
    "jamba": llama.family(
        _jamba,
        "attn_layer_offset attn_layer_period expert_layer_offset expert_layer_period num_experts",
        "num_experts_per_tok mamba_conv_bias mamba_d_conv mamba_d_state mamba_dt_rank mamba_expand",
        "mamba_proj_bias use_mamba_kernels use_mambapy use_associative_scan",
        "calc_logits_for_entire_prompt mamba_inner_layernorms num_logits_to_keep sliding_window",
        mixtures.TRAINING,
        sources=_jamba_sources,
        lacks="rope_parameters",
    ),
}

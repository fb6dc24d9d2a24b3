"""mamba and falcon_mamba, whose layers are Mamba-1 alone."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import fields, hybrid
from jaxscore.models.families.family import Family, Source, Table, layer_norms, norm, unembedding


def _mamba(config: Any, **own: Any) -> DecoderConfig:
    inner = config.intermediate_size
    # Published files have further names of sizes.
    fields.require(config, d_inner=inner, d_model=config.hidden_size, rms_norm=True, ssm_cfg={})
    fields.require(config, n_layer=config.num_hidden_layers)
    mixer = hybrid.selective_scan(
        config,
        inner,
        config.time_step_rank,
        state_width=config.state_size,
        taps=config.conv_kernel,
        conv_bias=config.use_conv_bias,
        bias=config.use_bias,
        **own,
    )
    return hybrid.recurrence_alone(config, mixer)


def _falcon_mamba(config: Any) -> DecoderConfig:
    """With norms of step sizes, B and C."""
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
# As the authors' own code names it
RENAMED = {"embedding.": "embeddings."}

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
}

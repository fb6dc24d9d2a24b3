"""Llama-like families with norms after attention and MLP: exaone4, glm4, olmo2, olmo3."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import fields, llama
from jaxscore.models.families.family import Table, layer_norms


def _exaone4(config: Any) -> DecoderConfig:
    """If some layers have a window, those have rotary embeddings and the others are NoPE."""
    windows = fields.windows_by_layer_type(config)
    everywhere = config.sliding_window is None
    return llama.llama_config(
        config,
        norm_place="after",
        qk_norm="head",
        windows=windows,
        **fields.rotary_in_layers(config, (everywhere or window > 0 for window in windows)),
    )


def _olmo2(config: Any, **own: Any) -> DecoderConfig:
    """Norms of queries and keys over all heads."""
    return llama.llama_config(
        config, norm_place="after", qk_norm="flat", **fields.biases(config), **own
    )


def _olmo3(config: Any) -> DecoderConfig:
    """Layers with a window have frequencies of their own."""
    windows = fields.windows_by_layer_type(config)
    return _olmo2(config, windows=windows, **fields.rotary_by_layer_type(config))


def after_norm_sources() -> Table:
    """Norms after attention and MLP, under the names of exaone4 and olmo2."""
    return layer_norms(
        {
            "attention_after_norm": "post_attention_layernorm",
            "mlp_after_norm": "post_feedforward_layernorm",
        }
    )


def _sources(config: DecoderConfig) -> Table:
    return (
        llama.embedding_sources(config)
        | llama.attention_sources(config)
        | llama.mlp_sources(config)
        | llama.qk_norm_sources(config)
        | after_norm_sources()
    )


def _glm4(config: Any) -> DecoderConfig:
    """Norms before and after; partial rotary embeddings over pairs of adjacent channels."""
    return llama.llama_config(
        config, norm_place="both", interleaved=True, qkv_bias=config.attention_bias
    )


def _glm4_sources(config: DecoderConfig) -> Table:
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | llama.attention_sources(config)
        | llama.fused_mlp_sources()
        | layer_norms(
            {
                "attention_after_norm": "post_self_attn_layernorm",
                "mlp_after_norm": "post_mlp_layernorm",
            }
        )
    )


FAMILIES = {
    "exaone4": llama.family(
        _exaone4, "head_dim layer_types sliding_window sliding_window_pattern", sources=_sources
    ),
    "glm4": llama.family(_glm4, "head_dim attention_bias", sources=_glm4_sources),
    "olmo2": llama.family(_olmo2, "attention_bias", sources=_sources),
    "olmo3": llama.family(_olmo3, "attention_bias layer_types sliding_window", sources=_sources),
}

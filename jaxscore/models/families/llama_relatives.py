"""Llama with other norms, layouts or windows: glm, helium, internlm3, jais2, ministral, olmo."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama
from jaxscore.models.families.family import Source, Table, unembedding

OLMO_EPS = 1e-5  # fixed in PyTorch's class


def clip_limit(config: Any) -> float | None:
    """Limit on queries, keys and values, `clip_qkv`.

    Raises:
        InputError: it is neither null nor above 0.
    """
    limit: float | None = config.clip_qkv
    if limit is not None and limit <= 0:
        raise InputError(f"clip_qkv is {limit!r}, expected null or a number above 0")
    return limit


def _glm(config: Any) -> DecoderConfig:
    """Partial rotary embeddings over pairs of adjacent channels; a fused MLP."""
    return llama.llama_config(config, interleaved=True, qkv_bias=config.attention_bias)


def _glm_sources(config: DecoderConfig) -> Table:
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | llama.attention_sources(config)
        | llama.fused_mlp_sources()
    )


def _helium(config: Any) -> DecoderConfig:
    """Rotary pairs of adjacent channels; the output of attention has no bias."""
    own = fields.biases(config) | {"out_bias": False}
    return llama.llama_config(config, interleaved=True, **own)


def _internlm3(config: Any) -> DecoderConfig:
    """Released models have no biases, and PyTorch's class has only all of them or none."""
    fields.require(config, attention_bias=False, mlp_bias=False)
    return llama.llama_config(config)


def _jais2(config: Any) -> DecoderConfig:
    """Layer norms; an ungated MLP."""
    return llama.llama_config(
        config,
        norm="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_eps,
        gated=False,
        **fields.biases(config),
    )


def _ministral(config: Any) -> DecoderConfig:
    """Some layers have a window, whose size PyTorch's class needs in any case."""
    fields.window_size(config)
    return llama.llama_config(config, windows=fields.windows_by_layer_type(config))


def _olmo(config: Any) -> DecoderConfig:
    """Layer norms without scale and bias; a limit on queries, keys and values."""
    return llama.llama_config(
        config,
        norm="layer",
        norm_eps=OLMO_EPS,
        norm_scale=False,
        qkv_limit=clip_limit(config),
        **fields.biases(config),
    )


def _olmo_sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | llama.attention_sources(config)
        | llama.mlp_sources(config)
        | unembedding(config)
    )


FAMILIES = {
    "glm": llama.family(_glm, "head_dim attention_bias", sources=_glm_sources),
    "helium": llama.family(_helium, "head_dim attention_bias mlp_bias"),
    "internlm3": llama.family(_internlm3, "head_dim attention_bias mlp_bias"),
    "jais2": llama.family(_jais2, "head_dim attention_bias mlp_bias", norm_eps="layer_norm_eps"),
    "ministral": llama.family(_ministral, "head_dim layer_types sliding_window"),
    "olmo": llama.family(_olmo, "attention_bias clip_qkv", sources=_olmo_sources, norm_eps=""),
}

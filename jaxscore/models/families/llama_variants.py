"""Llama with other biases, activations, positions, norms, layouts or windows.

apertus, arcee, cwm, ernie4_5, glm, helium, internlm3, jais2, ministral, nanochat, olmo, seed_oss,
smollm3, and with norms after attention and MLP exaone4, glm4, olmo2, olmo3.
"""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Rotary
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama
from jaxscore.models.families.family import Source, Table, layer_norms, linear, unembedding

# Parameters of the xIELU activation (arXiv 2411.13010): our name -> the checkpoint's
XIELU = {"above": "alpha_p", "below": "alpha_n", "slope": "beta", "least": "eps"}


def _apertus(config: Any) -> DecoderConfig:
    """Ungated MLP with xIELU, whose parameters are learned; norms of queries and keys."""
    # Published configs have these values; PyTorch's class reads neither.
    fields.require(config, qk_norm=True, post_norm=False)
    xielu = config.hidden_act == "xielu"
    return llama.llama_config(
        config,
        mlp_activation="xielu" if xielu else fields.activation(config),
        mlp_gated=False,
        qk_norm_kind="head",
        **fields.biases(config),
    )


def _apertus_sources(config: DecoderConfig) -> Table:
    table = llama.embedding_sources(config) | llama.attention_sources(config)
    table |= llama.qk_norm_sources(config) | llama.mlp_sources(config)
    table |= layer_norms(
        {"attention_norm": "attention_layernorm", "mlp_norm": "feedforward_layernorm"}
    )
    if config.mlp.activation == "xielu":
        for param, hf_name in XIELU.items():
            path = ("layers", "mlp", "activation", param)
            table[path] = Source(f"layers.{{i}}.mlp.act_fn.{hf_name}")
    return table


def _arcee(config: Any) -> DecoderConfig:
    """Ungated MLP with a squared ReLU."""
    return llama.llama_config(config, mlp_gated=False, **fields.biases(config))


def _ernie4_5(config: Any) -> DecoderConfig:
    """Rotary pairs of adjacent channels; biases everywhere or nowhere."""
    return llama.llama_config(config, interleaved=True, **fields.biases_everywhere(config.use_bias))


def _nanochat(config: Any) -> DecoderConfig:
    """Norms without scale, one after the embedding; rotation in the opposite direction."""
    rotary = fields.rotary_fields(config)

    def opposite(table: Rotary) -> Rotary:
        return dataclasses.replace(table, frequencies=tuple(-f for f in table.frequencies))

    return llama.llama_config(
        config,
        rotary=tuple(map(opposite, rotary["rotary"])),
        rotary_of=rotary["rotary_of"],
        norm_scale=False,
        embedding_norm=True,
        qk_norm_kind="head",
        qk_norm_scale=False,
        qk_norm_after_rotary=True,
        mlp_gated=False,
        head_softcap=config.final_logit_softcapping,
        **fields.biases(config),
    )


def _nanochat_sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | llama.attention_sources(config)
        | linear(("layers", "mlp", "up"), "layers.{i}.mlp.fc1", False)
        | linear(("layers", "mlp", "down"), "layers.{i}.mlp.fc2", False)
        | unembedding(config)
    )


def _seed_oss(config: Any) -> DecoderConfig:
    """The bias of the output projection has a separate switch."""
    return llama.llama_config(
        config,
        qkv_bias=config.attention_bias,
        out_bias=config.attention_out_bias,
        mlp_bias=config.mlp_bias,
    )


def _smollm3(config: Any) -> DecoderConfig:
    """Some layers have rotary embeddings; the others are NoPE."""
    return llama.llama_config(
        config,
        windows=fields.windows_by_layer_type(config),
        **fields.rotary_in_layers(config, fields.per_layer_values(config, "no_rope_layers")),
        **fields.biases(config),
    )


OLMO_EPS = 1e-5  # fixed in PyTorch's class


def clip_limit(config: Any) -> float | None:
    """Return the limit on queries, keys and values, `clip_qkv`.

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
    return llama.sources_without_mlp(config) | llama.fused_mlp_sources()


def _helium(config: Any) -> DecoderConfig:
    """Rotary pairs of adjacent channels; no bias on the output of attention."""
    bias_fields = fields.biases(config) | {"out_bias": False}
    return llama.llama_config(config, interleaved=True, **bias_fields)


def _internlm3(config: Any) -> DecoderConfig:
    """No biases: released models lack them, and PyTorch's class has all of them or none."""
    fields.require(config, attention_bias=False, mlp_bias=False)
    return llama.llama_config(config)


def _jais2(config: Any) -> DecoderConfig:
    """Layer norms; an ungated MLP."""
    return llama.llama_config(
        config,
        norm_kind="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_eps,
        mlp_gated=False,
        **fields.biases(config),
    )


def _cwm(config: Any) -> DecoderConfig:
    """Ministral with biases in the MLP."""
    return _ministral(config, mlp_bias=config.mlp_bias)


def _ministral(config: Any, **overrides: Any) -> DecoderConfig:
    """Some layers have a window; PyTorch's class needs its size even if none has."""
    fields.window_size(config)
    return llama.llama_config(config, windows=fields.windows_by_layer_type(config), **overrides)


def _olmo(config: Any) -> DecoderConfig:
    """Layer norms without scale and bias; a limit on queries, keys and values."""
    return llama.llama_config(
        config,
        norm_kind="layer",
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


def _exaone4(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings; with any such layer, the others are NoPE."""
    windows = fields.windows_by_layer_type(config)
    everywhere = config.sliding_window is None
    return llama.llama_config(
        config,
        norm_place="after",
        qk_norm_kind="head",
        windows=windows,
        **fields.rotary_in_layers(config, (everywhere or window > 0 for window in windows)),
    )


def _olmo2(config: Any, **overrides: Any) -> DecoderConfig:
    """Norms of queries and keys over all heads."""
    return llama.llama_config(
        config, norm_place="after", qk_norm_kind="flat", **fields.biases(config), **overrides
    )


def _olmo3(config: Any) -> DecoderConfig:
    """Layers with a window have separate rotary frequencies."""
    windows = fields.windows_by_layer_type(config)
    return _olmo2(config, windows=windows, **fields.rotary_by_layer_type(config))


def after_norm_sources() -> Table:
    """Return the sources of norms after attention and MLP, under the names of exaone4 and olmo2."""
    return layer_norms(
        {
            "attention_after_norm": "post_attention_layernorm",
            "mlp_after_norm": "post_feedforward_layernorm",
        }
    )


def _norms_after_sources(config: DecoderConfig) -> Table:
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
        llama.sources_without_mlp(config)
        | llama.fused_mlp_sources()
        | layer_norms(
            {
                "attention_after_norm": "post_self_attn_layernorm",
                "mlp_after_norm": "post_mlp_layernorm",
            }
        )
    )


FAMILIES = {
    "apertus": llama.family(
        _apertus,
        "head_dim attention_bias qk_norm post_norm hidden_dropout",
        sources=_apertus_sources,
    ),
    "arcee": llama.family(_arcee, "head_dim attention_bias mlp_bias"),
    "cwm": llama.family(_cwm, "head_dim layer_types mlp_bias sliding_window"),
    "ernie4_5": llama.family(_ernie4_5, "head_dim use_bias"),
    "nanochat": llama.family(
        _nanochat, "head_dim attention_bias final_logit_softcapping", sources=_nanochat_sources
    ),
    "seed_oss": llama.family(
        _seed_oss, "head_dim attention_bias attention_out_bias mlp_bias residual_dropout"
    ),
    "smollm3": llama.family(
        _smollm3,
        "attention_bias mlp_bias no_rope_layers no_rope_layer_interval layer_types sliding_window "
        "use_sliding_window max_window_layers",
    ),
    "glm": llama.family(_glm, "head_dim attention_bias", sources=_glm_sources),
    "helium": llama.family(_helium, "head_dim attention_bias mlp_bias"),
    "internlm3": llama.family(_internlm3, "head_dim attention_bias mlp_bias"),
    "jais2": llama.family(_jais2, "head_dim attention_bias mlp_bias", norm_eps="layer_norm_eps"),
    "ministral": llama.family(_ministral, "head_dim layer_types sliding_window"),
    "olmo": llama.family(_olmo, "attention_bias clip_qkv", sources=_olmo_sources, norm_eps=""),
    "exaone4": llama.family(
        _exaone4,
        "head_dim layer_types sliding_window sliding_window_pattern",
        sources=_norms_after_sources,
    ),
    "glm4": llama.family(_glm4, "head_dim attention_bias", sources=_glm4_sources),
    "olmo2": llama.family(_olmo2, "attention_bias", sources=_norms_after_sources),
    "olmo3": llama.family(
        _olmo3, "attention_bias layer_types sliding_window", sources=_norms_after_sources
    ),
}

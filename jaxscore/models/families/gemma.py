"""gemma, gemma2, gemma3_text, recurrent_gemma, vaultgemma: norms stored minus one, GELU gates.

recurrent_gemma has RG-LRUs, and attention with a window in some layers.
"""

import math
from typing import Any

import ml_dtypes

from jaxscore.device.decoder_config import DecoderConfig, GatedUnit, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama
from jaxscore.models.families.family import Source, Table, layer_norms, linear, norm
from jaxscore.models.families.family import unembedding as head_sources

PLUS = 1.0  # added to every norm's scale
SANDWICH_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_after_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_after_norm": "post_feedforward_layernorm",
}


def _gemma(config: Any, **overrides: Any) -> DecoderConfig:
    scale = math.sqrt(config.hidden_size)
    return llama.llama_config(config, embedding_scale=scale, **fields.biases(config), **overrides)


def _gemma1(config: Any) -> DecoderConfig:
    """The activation is `hidden_act`, as in PyTorch; Flax's class reads `hidden_activation`.

    "gelu" is the exact GELU, as in transformers 4.57; version 5 reads it as the tanh form, with
    which the first releases were trained.
    """
    other = config.hidden_activation
    if other is not None and other != config.hidden_act:
        raise InputError(
            f"hidden_activation is {other!r} and hidden_act {config.hidden_act!r}; "
            "transformers' versions read different ones, so make them the same"
        )
    return _gemma(config)


def _gemma2(config: Any, **overrides: Any) -> DecoderConfig:
    """Norms before and after, soft caps on scores and logits, windows in some layers."""
    fields.require(config, sliding_window_size=config.sliding_window)  # an older name
    overrides = {"norm_place": "both"} | overrides
    return _gemma(
        config,
        mlp_activation=fields.activation(config, "hidden_activation"),
        windows=fields.windows_by_layer_type(config),
        score_scale=config.query_pre_attn_scalar**-0.5,
        score_softcap=config.attn_logit_softcapping,
        head_softcap=config.final_logit_softcapping,
        **overrides,
    )


def _gemma3(config: Any) -> DecoderConfig:
    """Norms of queries and keys; layers with a window have separate rotary frequencies."""
    # PyTorch's class accepts the cap without applying it.
    fields.require(config, use_bidirectional_attention=False, attn_logit_softcapping=None)
    return _gemma2(config, qk_norm_kind="head", **fields.rotary_by_layer_type(config))


def _vaultgemma(config: Any) -> DecoderConfig:
    """gemma2 without the norms after attention and MLP."""
    return _gemma2(config, norm_place="before")


def _vaultgemma_sources(config: DecoderConfig) -> Table:
    norms = {"attention_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm"}
    return _sources(config) | layer_norms(norms, plus=PLUS)


def _sources(config: DecoderConfig) -> Table:
    table = llama.embedding_sources(config, PLUS) | llama.attention_sources(config)
    table |= llama.mlp_sources(config)
    if config.norm.place == "before":
        return table | llama.pre_norm_sources(config, PLUS)
    table |= layer_norms(SANDWICH_NORMS, plus=PLUS)
    return table | (llama.qk_norm_sources(config, PLUS) if config.attention.qk_norm.kind else {})


READS = "head_dim attention_bias hidden_activation cache_implementation"
GEMMA2_READS = (
    "layer_types sliding_window sliding_window_size query_pre_attn_scalar "
    "attn_logit_softcapping final_logit_softcapping"
)


RECURRENT, ATTENTION = "recurrent", "attention"
LAYER = "layers.{i}."
NORMS = {"attention_norm": "temporal_pre_norm", "mlp_norm": "channel_pre_norm"}


def _recurrent(config: Any) -> Recurrent | None:
    """Return the recurrence of the layers of type `RECURRENT`; `block_types` is repeated."""
    types, n_layers = config.block_types, config.num_hidden_layers
    if not types or not all(layer_type in (RECURRENT, ATTENTION) for layer_type in types):
        raise InputError(f"block_types is {types!r}, expected {RECURRENT!r} and {ATTENTION!r}")
    layers = tuple(i for i in range(n_layers) if types[i % len(types)] == RECURRENT)
    inner, n_blocks, taps = config.lru_width, config.num_attention_heads, config.conv1d_width
    if inner < 1 or inner % n_blocks:
        raise InputError(
            f"lru_width {inner} is not a multiple of num_attention_heads {n_blocks}, the number of "
            "its blocks"
        )
    if taps < 1:
        raise InputError(f"conv1d_width is {taps}, expected at least 1")
    activation: Any = fields.activation(config, "hidden_activation")
    return Recurrent(layers, GatedUnit(inner, n_blocks, taps, activation)) if layers else None


def _recurrent_gemma(config: Any) -> DecoderConfig:
    fields.require(config, embeddings_scale_by_sqrt_dim=True)
    fields.require_rope_type(config, "default")
    window = fields.window_size(config, "attention_window_size")
    return llama.llama_config(
        config,
        recurrent=_recurrent(config),
        windows=(window,) * config.num_hidden_layers,
        mlp_width=config.intermediate_size // 2,
        max_positions=fields.MAX_POSITIONS,
        mlp_activation=fields.activation(config, "hidden_activation"),
        # PyTorch's class rounds it to bfloat16
        embedding_scale=float(ml_dtypes.bfloat16(math.sqrt(config.hidden_size))),
        head_softcap=config.logits_soft_cap,
        qkv_bias=config.attention_bias,
        out_bias=True,
        mlp_bias=True,
    )


def _block_sources(config: DecoderConfig) -> Table:
    """Return the sources of attention and RG-LRUs, which share a prefix."""
    name, unit = LAYER + "temporal_block.", LAYER + "temporal_block.rg_lru."
    table: Table = {}
    for param in "qkv":
        table |= linear(
            (*hybrid.ATTENTION, param), f"{name}{param}_proj", config.attention.qkv_bias
        )
    table |= linear((*hybrid.ATTENTION, "out"), name + "o_proj", True)
    at = hybrid.RECURRENT
    for param in ("x", "z", "out"):
        hf_name = "y" if param == "z" else param
        table |= linear((*at, param), f"{name}linear_{hf_name}", True)
    for param, hf_name in {"taps": "weight", "bias": "bias"}.items():
        table[*at, "conv", param] = Source(f"{name}conv_1d.{hf_name}")
    table[*at, "decay_rate"] = Source(unit + "recurrent_param")
    for param, hf_name in {"decay_gate": "recurrent_gate", "input_gate": "input_gate"}.items():
        for suffix in ("weight", "bias"):
            table[*at, param, suffix] = Source(f"{unit}{hf_name}_{suffix}")
    return table


def _recurrent_sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | norm(("final_norm",), "final_norm", False, PLUS)
        | head_sources(config)
        | layer_norms(NORMS, plus=PLUS)
        | llama.mlp_sources(config, "mlp_block")
        | hybrid.by_kind(config, _block_sources(config))
    )


FAMILIES = {
    "gemma": llama.family(_gemma1, READS, sources=_sources),
    "gemma2": llama.family(_gemma2, READS, GEMMA2_READS, sources=_sources),
    "gemma3_text": llama.family(
        _gemma3,
        READS,
        GEMMA2_READS,
        "use_bidirectional_attention sliding_window_pattern",
        sources=_sources,
    ),
    "vaultgemma": llama.family(
        _vaultgemma,
        READS,
        GEMMA2_READS,
        sources=_vaultgemma_sources,
        lacks="hidden_act cache_implementation sliding_window_size",
    ),
    "recurrent_gemma": llama.family(
        _recurrent_gemma,
        "attention_bias attention_window_size block_types conv1d_width hidden_activation lru_width",
        "logits_soft_cap embeddings_scale_by_sqrt_dim head_dim w_init_variance_scale",
        "final_w_init_variance_scale",
        sources=_recurrent_sources,
        lacks="hidden_act max_position_embeddings",
    ),
}

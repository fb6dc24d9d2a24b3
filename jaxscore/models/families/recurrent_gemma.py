"""recurrent_gemma: RG-LRUs, and attention with a window in some layers; norms stored minus one."""

import math
from typing import Any

import ml_dtypes

from jaxscore.device.decoder_config import DecoderConfig, GatedUnit, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama
from jaxscore.models.families.family import Source, Table, layer_norms, linear, norm
from jaxscore.models.families.family import unembedding as head_sources
from jaxscore.models.families.gemma import PLUS

RECURRENT, ATTENTION = "recurrent", "attention"
LAYER = "layers.{i}."
NORMS = {"attention_norm": "temporal_pre_norm", "mlp_norm": "channel_pre_norm"}


def _recurrent(config: Any) -> Recurrent | None:
    """Layers whose type in `block_types`, which is repeated, is `RECURRENT`."""
    types, n_layers = config.block_types, config.num_hidden_layers
    if not types or not all(kind in (RECURRENT, ATTENTION) for kind in types):
        raise InputError(f"block_types is {types!r}, expected {RECURRENT!r} and {ATTENTION!r}")
    layers = tuple(i for i in range(n_layers) if types[i % len(types)] == RECURRENT)
    inner, n_blocks, taps = config.lru_width, config.num_attention_heads, config.conv1d_width
    if inner < 1 or inner % n_blocks:
        raise InputError(
            f"lru_width {inner} is no multiple of num_attention_heads {n_blocks}, in as many blocks"
        )
    if taps < 1:
        raise InputError(f"conv1d_width is {taps}, expected at least 1")
    activation: Any = fields.activation(config, "hidden_activation")
    return Recurrent(layers, GatedUnit(inner, n_blocks, taps, activation)) if layers else None


def _config(config: Any) -> DecoderConfig:
    fields.require(config, embeddings_scale_by_sqrt_dim=True)
    fields.require_rope_type(config, "default")
    window = fields.window_size(config, "attention_window_size")
    return llama.llama_config(
        config,
        recurrent=_recurrent(config),
        windows=(window,) * config.num_hidden_layers,
        mlp_width=config.intermediate_size // 2,
        max_positions=fields.MAX_POSITIONS,
        activation=fields.activation(config, "hidden_activation"),
        # As PyTorch's class rounds it
        embedding_scale=float(ml_dtypes.bfloat16(math.sqrt(config.hidden_size))),
        logit_softcap=config.logits_soft_cap,
        qkv_bias=config.attention_bias,
        out_bias=True,
        mlp_bias=True,
    )


def _block_sources(config: DecoderConfig) -> Table:
    """Attention and RG-LRUs, which have one name."""
    name, unit = LAYER + "temporal_block.", LAYER + "temporal_block.rg_lru."
    table: Table = {}
    for ours in "qkv":
        table |= linear((*hybrid.ATTENTION, ours), f"{name}{ours}_proj", config.qkv_bias)
    table |= linear((*hybrid.ATTENTION, "out"), name + "o_proj", True)
    at = hybrid.RECURRENT
    for ours in ("x", "z", "out"):
        theirs = "y" if ours == "z" else ours
        table |= linear((*at, ours), f"{name}linear_{theirs}", True)
    for ours, theirs in {"taps": "weight", "bias": "bias"}.items():
        table[*at, "conv", ours] = Source(f"{name}conv_1d.{theirs}")
    table[*at, "decay_rate"] = Source(unit + "recurrent_param")
    for ours, theirs in {"decay_gate": "recurrent_gate", "input_gate": "input_gate"}.items():
        for part in ("weight", "bias"):
            table[*at, ours, part] = Source(f"{unit}{theirs}_{part}")
    return table


def _sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | norm(("final_norm",), "final_norm", False, PLUS)
        | head_sources(config)
        | layer_norms(NORMS, plus=PLUS)
        | llama.mlp_sources(config, "mlp_block")
        | hybrid.by_kind(config, _block_sources(config))
    )


FAMILIES = {
    "recurrent_gemma": llama.family(
        _config,
        "attention_bias attention_window_size block_types conv1d_width hidden_activation lru_width",
        "logits_soft_cap embeddings_scale_by_sqrt_dim head_dim w_init_variance_scale",
        "final_w_init_variance_scale",
        sources=_sources,
        lacks="hidden_act max_position_embeddings",
    )
}

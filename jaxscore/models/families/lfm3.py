"""lfm3: lfm2 with windows, gates on attention, and norms on both sides of each half."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, lfm2, llama
from jaxscore.models.families.family import Table, layer_norms, linear
from jaxscore.models.rope import rotary

CONV, FULL, SLIDING = "conv", "full_attention", "sliding_attention"


def _config(config: Any) -> DecoderConfig:
    """Attention with and without windows, each with rotary embeddings of its own."""
    layers = hybrid.layers_of_type(config, CONV, FULL, SLIDING)
    types = config.layer_types
    for kind, parameters in config.rope_parameters.items():
        if parameters is None:
            raise InputError(f"rope_parameters.{kind} is null, expected an object")
    tables = {
        kind: rotary(fields.head_width(config), fields.frequency_parameters(config, parameters))
        for kind, parameters in config.rope_parameters.items()
    }
    order = list(tables)
    window = fields.window_size(config) if SLIDING in types else 0
    return lfm2.convolution_config(
        config,
        FULL,
        SLIDING,
        windows=tuple(window if kind == SLIDING else 0 for kind in types),
        rotary=tuple(tables.values()),
        rotary_of=tuple(0 if i in layers else order.index(types[i]) for i in range(len(types))),
        norm_place="both" if config.use_sandwich_norm else "before",
        query_gate=config.use_attention_gate,
        gate_per_head=config.use_attention_gate,
        **fields.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    if config.query_gate:
        attention |= linear((*hybrid.ATTENTION, "gate"), "layers.{i}.self_attn.g_proj", False)
    table = lfm2.sources(config, attention)
    if config.norm_place == "both":
        after = {"attention_after_norm": "post_operator_norm", "mlp_after_norm": "post_ffn_norm"}
        table |= layer_norms(after)
    return table


FAMILIES = {
    "lfm3": lfm2.family(
        _config,
        "attention_bias head_dim sliding_window use_attention_gate use_sandwich_norm",
        sources=_sources,
        renamed={".self_attn.gate_proj.": ".self_attn.g_proj."},
    )
}

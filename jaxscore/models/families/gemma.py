"""gemma, gemma2, gemma3_text, vaultgemma: norms stored minus one, scaled embeddings, GELU gates."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama
from jaxscore.models.families.family import Table, layer_norms

PLUS = 1.0  # added to every norm's scale
SANDWICH_NORMS = {
    "attention_norm": "input_layernorm",
    "attention_after_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_after_norm": "post_feedforward_layernorm",
}


def _gemma(config: Any, **own: Any) -> DecoderConfig:
    scale = math.sqrt(config.hidden_size)
    return llama.llama_config(config, embedding_scale=scale, **fields.biases(config), **own)


def _gemma1(config: Any) -> DecoderConfig:
    """The activation is `hidden_act`, as in PyTorch; Flax's class reads `hidden_activation`.

    "gelu" is the exact one, as the file says and transformers 4.57 has it; 5 takes it for the tanh
    form, with which the first releases were trained.
    """
    other = config.hidden_activation
    if other is not None and other != config.hidden_act:
        raise InputError(
            f"hidden_activation is {other!r} and hidden_act {config.hidden_act!r}; "
            "which one counts has changed over time, so make them the same"
        )
    return _gemma(config)


def _gemma2(config: Any, **own: Any) -> DecoderConfig:
    """Norms before and after, soft caps on scores and logits, windows in some layers."""
    fields.require(config, sliding_window_size=config.sliding_window)  # an older name
    own = {"norm_place": "both"} | own
    return _gemma(
        config,
        activation=fields.activation(config, "hidden_activation"),
        windows=fields.windows_by_layer_type(config),
        attention_scale=config.query_pre_attn_scalar**-0.5,
        attention_softcap=config.attn_logit_softcapping,
        logit_softcap=config.final_logit_softcapping,
        **own,
    )


def _gemma3(config: Any) -> DecoderConfig:
    """Norms of queries and keys; layers with a window have frequencies of their own."""
    # PyTorch's class accepts the cap without applying it.
    fields.require(config, use_bidirectional_attention=False, attn_logit_softcapping=None)
    return _gemma2(config, qk_norm="head", **fields.rotary_by_layer_type(config))


def _vaultgemma(config: Any) -> DecoderConfig:
    """gemma2 without the norms after each half."""
    return _gemma2(config, norm_place="before")


def _vaultgemma_sources(config: DecoderConfig) -> Table:
    norms = {"attention_norm": "input_layernorm", "mlp_norm": "pre_feedforward_layernorm"}
    return _sources(config) | layer_norms(norms, plus=PLUS)


def _sources(config: DecoderConfig) -> Table:
    table = llama.embedding_sources(config, PLUS) | llama.attention_sources(config)
    table |= llama.mlp_sources(config)
    if config.norm_place == "before":
        return table | llama.pre_norm_sources(config, PLUS)
    table |= layer_norms(SANDWICH_NORMS, plus=PLUS)
    return table | (llama.qk_norm_sources(config, PLUS) if config.qk_norm else {})


READS = "head_dim attention_bias hidden_activation cache_implementation"
GEMMA2_READS = (
    "layer_types sliding_window sliding_window_size query_pre_attn_scalar "
    "attn_logit_softcapping final_logit_softcapping"
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
}

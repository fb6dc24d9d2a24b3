"""gemma, gemma2 and gemma3_text: norms stored less one, scaled embeddings, GELU gates."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms

PLUS = 1.0  # to every norm's scale


def _gemmalike(config: Any, **own: Any) -> DecoderConfig:
    bias = config.attention_bias
    return llamalike.llamalike(
        config,
        qkv_bias=bias,
        out_bias=bias,
        embedding_scale=math.sqrt(config.hidden_size),
        **own,
    )


def _gemma(config: Any) -> DecoderConfig:
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
    return _gemmalike(config)


def _gemma2(config: Any, **own: Any) -> DecoderConfig:
    parts.refuse(config, sliding_window_size=config.sliding_window)  # an older name for it
    return _gemmalike(
        config,
        activation=parts.activation(config, "hidden_activation"),
        norm_place="both",
        windows=parts.windows_of_types(config),
        attention_scale=config.query_pre_attn_scalar**-0.5,
        attention_softcap=config.attn_logit_softcapping,
        logit_softcap=config.final_logit_softcapping,
        **own,
    )


def _gemma3(config: Any) -> DecoderConfig:
    """Layers with a window have frequencies of their own."""
    # PyTorch's class takes the cap and does not apply it.
    parts.refuse(config, use_bidirectional_attention=False, attn_logit_softcapping=None)
    return _gemma2(config, qk_norm="head", **parts.turning_by_type(config))


def _sources(config: DecoderConfig) -> Table:
    table: Table = llamalike.ends(config, PLUS) | llamalike.attention_sources(config)
    table |= llamalike.mlp_sources(config)
    if config.norm_place == "before":
        return table | llamalike.norms_before(config, PLUS)
    for ours, theirs in {
        "attention_norm": "input_layernorm",
        "attention_after_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_after_norm": "post_feedforward_layernorm",
    }.items():
        table |= parts.norm(("layers", ours), f"layers.{{i}}.{theirs}", False, PLUS)
    return table | (qk_norms(config, PLUS) if config.qk_norm else {})


def _family(translate: Any, *reads: str) -> Family:
    names = "head_dim attention_bias hidden_activation cache_implementation"
    own = parts.reads(names, *reads)
    return Family(llamalike.READS | own, translate, _sources, buffers=(parts.INV_FREQ,))


GEMMA2_READS = (
    "layer_types sliding_window sliding_window_size query_pre_attn_scalar "
    "attn_logit_softcapping final_logit_softcapping"
)
GEMMA = _family(_gemma)
GEMMA2 = _family(_gemma2, GEMMA2_READS)
GEMMA3 = _family(
    _gemma3,
    GEMMA2_READS,
    "use_bidirectional_attention sliding_window_pattern",
)

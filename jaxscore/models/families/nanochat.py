"""nanochat: norms without scale, one of them behind the embedding, and a plain squared ReLU."""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Rotary
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Source, Table


def _backwards(table: Rotary) -> Rotary:
    """Queries and keys turn the other way."""
    return dataclasses.replace(table, frequencies=tuple(-f for f in table.frequencies))


def _translate(config: Any) -> DecoderConfig:
    turning = parts.turning(config)
    return llamalike.llamalike(
        config,
        **turning | {"rotary": tuple(map(_backwards, turning["rotary"]))},
        norm_scale=False,
        embedding_norm=True,
        qk_norm="head",
        qk_norm_scale=False,
        qk_norm_turned=True,
        gated=False,
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        logit_softcap=config.final_logit_softcapping,
    )


def _sources(config: DecoderConfig) -> Table:
    return (
        {("embed", "token"): Source("embed_tokens.weight")}
        | llamalike.attention_sources(config)
        | parts.linear(("layers", "mlp", "up"), "layers.{i}.mlp.fc1", False)
        | parts.linear(("layers", "mlp", "down"), "layers.{i}.mlp.fc2", False)
        | parts.unembedding(config)
    )


NANOCHAT = Family(
    llamalike.READS | parts.reads("head_dim attention_bias final_logit_softcapping"),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)

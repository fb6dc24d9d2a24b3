"""minicpm3: latent attention, with scales on embeddings, residuals and logits."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import deepseek, fields, llama, phi3
from jaxscore.models.families.family import Table


def _minicpm3(config: Any) -> DecoderConfig:
    by_length = config.rope_parameters["rope_type"] == "longrope"
    own = deepseek.latent_fields(config)
    own |= phi3.rotary_fields(config) if by_length else fields.rotary_fields(config)
    return llama.llama_config(
        config,
        **own,
        mlp_bias=config.mlp_bias,
        embedding_scale=float(config.scale_emb),
        residual_scale=config.scale_depth / math.sqrt(config.num_hidden_layers),
        logit_scale=config.dim_model_base / config.hidden_size,
    )


def _sources(config: DecoderConfig) -> Table:
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | deepseek.attention_sources(config)
        | llama.mlp_sources(config)
    )


FAMILIES = {
    "minicpm3": llama.family(
        _minicpm3,
        "attention_bias mlp_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim",
        "v_head_dim head_dim qk_head_dim scale_emb scale_depth dim_model_base",
        sources=_sources,
    ),
}

"""ministral3: mistral, and queries that grow with their position."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, QueryGrowth
from jaxscore.models.families import llamalike, parts


def _translate(config: Any) -> DecoderConfig:
    rope = config.rope_parameters
    share = rope.get("llama_4_scaling_beta")
    growth = None
    if share:
        shares = (float(share),) * config.num_hidden_layers
        growth = QueryGrowth(shares, float(rope["original_max_position_embeddings"]), 0)
    windows = parts.window_everywhere(config)
    return llamalike.llamalike(config, windows=windows, query_growth=growth)


MINISTRAL3 = llamalike.family(_translate, "head_dim sliding_window")

"""hunyuan_v1_dense: llama with norms of each head's queries and keys, after they are turned."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Table

# What the published files have besides, and nobody reads
IDLE = (
    "cla_share_factor class_num dense_list eod_token_id im_end_id im_newline_id im_start_id "
    "mask_init_id num_media_embeds org_vocab_size pad_id pool_type text_end_id text_start_id"
)


def _translate(config: Any) -> DecoderConfig:
    # As the published files have them; PyTorch's class reads none of them.
    parts.refuse(
        config,
        attention_head_dim=parts.head_width(config),
        norm_type="rms",
        use_qk_norm=True,
        use_rotary_pos_emb=True,
    )
    return llamalike.llamalike(
        config, qk_norm="head", qk_norm_turned=True, **llamalike.biases(config)
    )


def _sources(config: DecoderConfig) -> Table:
    at, layer = ("layers", "attention"), "layers.{i}.self_attn."
    return (
        llamalike.sources(config)
        | parts.norm((*at, "q_norm"), layer + "query_layernorm", False)
        | parts.norm((*at, "k_norm"), layer + "key_layernorm", False)
    )


HUNYUAN_V1_DENSE = Family(
    llamalike.READS
    | parts.reads(
        "head_dim attention_bias attention_head_dim norm_type use_qk_norm use_rotary_pos_emb", IDLE
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)

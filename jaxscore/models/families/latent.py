"""Latent attention of deepseek's models: its fields, and the rows of its products."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Latent
from jaxscore.models.families import parts
from jaxscore.models.families.family import Part, Table

NORM_EPS = 1e-6  # of the norms within attention, whatever `rms_norm_eps` says
READS = parts.reads(
    "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim",
    "head_dim qk_head_dim",
)


def fields(config: Any) -> dict[str, Any]:
    """What of a decoder is latent attention."""
    parts.refuse(config, num_key_value_heads=config.num_attention_heads)
    latent = Latent(
        rank=config.kv_lora_rank,
        query_rank=config.q_lora_rank or 0,
        turned=config.qk_rope_head_dim,
        unturned=config.qk_nope_head_dim,
        value=config.v_head_dim,
        norm_eps=NORM_EPS,
    )
    bias = config.attention_bias
    return {
        "latent": latent,
        "n_kv_heads": 1,
        "head_width": latent.rank + latent.turned,
        "attention_scale": _scale(config),
        "qkv_bias": bias,
        "out_bias": bias,
    }


def _scale(config: Any) -> float:
    """YaRN's factor goes on the scores a second time, where `mscale_all_dim` asks for it
    (DeepSeek-V2's published code)."""
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    rope = config.rope_parameters
    overall, factor = rope.get("mscale_all_dim"), rope.get("factor", 1)
    if rope["rope_type"] == "default" or not overall or factor <= 1:
        return scale
    return scale * (0.1 * overall * math.log(factor) + 1) ** 2


def sources(config: DecoderConfig) -> Table:
    """The tensors of attention."""
    latent, at, layer = config.latent, ("layers", "attention", "latent"), "layers.{i}.self_attn."
    assert latent is not None
    table: Table = {}
    if latent.query_rank:
        table |= parts.linear((*at, "query_in"), layer + "q_a_proj", config.qkv_bias)
        table |= parts.norm((*at, "query_norm"), layer + "q_a_layernorm", False)
    name = "q_b_proj" if latent.query_rank else "q_proj"
    table |= parts.linear((*at, "q"), layer + name, False)
    table |= parts.linear((*at, "key_value"), layer + "kv_a_proj_with_mqa", config.qkv_bias)
    table |= parts.norm((*at, "norm"), layer + "kv_a_layernorm", False)
    rows = latent.unturned + latent.value
    for ours, start, stop in (("key_up", 0, latent.unturned), ("value_up", latent.unturned, rows)):
        part = Part(config.n_heads, rows, start, stop)
        table |= parts.linear((*at, ours), layer + "kv_b_proj", False, part=part)
    at_out = ("layers", "attention", "out")
    return table | parts.linear(at_out, layer + "o_proj", config.out_bias)

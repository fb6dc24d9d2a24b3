"""phi3: llama with fused tensors, and other rotary frequencies for long requests (longrope)."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import llamalike, parts
from jaxscore.models.families.family import Family, Part, Table
from jaxscore.models.rope import longrope


def _translate(config: Any) -> DecoderConfig:
    # As Phi-4-mini has them; PyTorch's class reads neither.
    parts.refuse(config, full_attn_mod=1, interpolate_factor=1)
    if parts.rope_type(config, "default", "longrope") == "default":
        turning = parts.turning(config)
    else:
        width, length = parts.head_width(config), config.max_position_embeddings
        tables = longrope(width, config.rope_parameters, length)
        turning = parts.turning_by_length(config, *tables)
    return llamalike.llamalike(config, windows=parts.window_everywhere(config), **turning)


def _sources(config: DecoderConfig) -> Table:
    layer, n, k = "layers.{i}.", config.n_heads, config.n_kv_heads
    heads = n + 2 * k
    table: Table = llamalike.ends(config) | llamalike.norms_before(config)
    for ours, start, stop in (("q", 0, n), ("k", n, n + k), ("v", n + k, heads)):
        table |= parts.linear(
            ("layers", "attention", ours),
            layer + "self_attn.qkv_proj",
            False,
            part=Part(1, heads, start, stop),
        )
    table |= parts.linear(("layers", "attention", "out"), layer + "self_attn.o_proj", False)
    return table | llamalike.fused_mlp_sources()


PHI3 = Family(
    llamalike.READS
    | parts.reads(
        "original_max_position_embeddings sliding_window full_attn_mod interpolate_factor"
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)

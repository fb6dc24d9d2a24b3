"""llama4_text: stretches of positions, layers without positions, experts that weigh their input."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, QueryGrowth
from jaxscore.errors import InputError
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table

CHUNKED = "chunked_attention"


def _windows(config: Any) -> tuple[int, ...]:
    types = parts.for_each_layer(config, "layer_types")
    if unknown := sorted(set(types) - {"full_attention", CHUNKED}):
        raise InputError(f"layer_types has {unknown}, which is not handled")
    if CHUNKED not in types:
        return (0,) * len(types)
    size = parts.window(config, "attention_chunk_size")
    return tuple(size if kind == CHUNKED else 0 for kind in types)


def _translate(config: Any) -> DecoderConfig:
    turns = [bool(flag) for flag in parts.for_each_layer(config, "no_rope_layers")]
    (table,) = parts.turning(config)["rotary"]
    share = config.attn_scale if config.attn_temperature_tuning else 0.0
    growth = QueryGrowth(
        tuple(0.0 if turned else float(share) for turned in turns), float(config.floor_scale), 1
    )
    mixed = parts.layer_numbers(config, "moe_layers")
    plain = tuple(i for i in range(config.num_hidden_layers) if i not in mixed)
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalised=False,
        shared_width=config.intermediate_size,
        shared_gated=False,
        scores="sigmoid",
        weighs_input=True,
    )
    normed: dict[str, Any] = {}
    if config.use_qk_norm:
        normed = {
            "qk_norm": "head",
            "qk_norm_scale": False,
            "qk_norm_turned": True,
            "qk_norm_of": tuple(turns),
        }
    bias = config.attention_bias
    return llamalike.llamalike(
        config,
        **mixtures.mlps(
            config, experts, config.intermediate_size, plain, config.intermediate_size_mlp
        ),
        **normed,
        rotary=(table, parts.nothing_turns(table)),
        rotary_of=tuple(int(not turned) for turned in turns),
        interleaved=True,
        query_growth=growth if any(growth.shares) else None,
        windows=_windows(config),
        chunked=True,
        qkv_bias=bias,
        out_bias=bias,
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}.feed_forward."
    inward, outward = layer + "experts.gate_up_proj", layer + "experts.down_proj"
    return (
        llamalike.ends(config)
        | llamalike.norms_before(config)
        | llamalike.attention_sources(config)
        | mixture_sources.plain_mlps(config, "feed_forward")
        | mixture_sources.router(config, layer + "router")
        | mixture_sources.experts_together(config, inward, outward, transposed=True)
        | mixture_sources.shared(config, layer + "shared_expert.")
    )


LLAMA4 = Family(
    llamalike.READS
    | parts.reads(
        "head_dim attention_bias layer_types attention_chunk_size no_rope_layers",
        "no_rope_layer_interval use_qk_norm attn_temperature_tuning attn_scale floor_scale",
        "moe_layers interleave_moe_layer_step intermediate_size_mlp num_local_experts",
        "num_experts_per_tok router_jitter_noise",
        mixtures.TRAINING,
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)

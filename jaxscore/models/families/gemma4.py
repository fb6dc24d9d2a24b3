"""gemma4_text: heads of two sizes, shared keys, layers' own embeddings, experts beside an MLP."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, OtherMlp
from jaxscore.errors import InputError
from jaxscore.models.families import gemma4_layers, gemma4_sources, llamalike, mixtures, parts
from jaxscore.models.families.family import Family


def _mlps(config: Any, keys_of: tuple[int, ...]) -> dict[str, Any]:
    """Experts beside the MLP, or twice its width in layers without keys of their own."""
    own: dict[str, Any] = {}
    if config.use_double_wide_mlp and keys_of:
        layers = tuple(i for i, source in enumerate(keys_of) if source != i)
        own["other_mlp"] = OtherMlp(layers, 2 * config.intermediate_size)
    if not config.enable_moe_block:
        return own
    if own:
        raise InputError("enable_moe_block with use_double_wide_mlp: not handled together")
    experts = Experts(
        config.num_experts,
        config.top_k_experts,
        renormalised=True,
        shared_width=config.intermediate_size,
        shared_gated=False,
        beside=True,
        router_norm=True,
        expert_scale=True,
    )
    experts = mixtures.check_counts(experts, "top_k_experts")
    return {"experts": experts, "mlp_width": config.moe_intermediate_size}


def _translate(config: Any) -> DecoderConfig:
    if config.use_bidirectional_attention == "all":
        raise InputError("use_bidirectional_attention is 'all', which is not handled")
    per_layer = config.hidden_size_per_layer_input
    if per_layer:
        parts.refuse(config, vocab_size_per_layer_input=config.vocab_size)
    types = parts.for_each_layer(config, "layer_types")
    windows = parts.windows_of_types(config)
    keys_of, bias = gemma4_layers.keys_of(config, types), config.attention_bias
    return llamalike.llamalike(
        config,
        **gemma4_layers.heads(config, types),
        **gemma4_layers.turning(config, types),
        **_mlps(config, keys_of),
        activation=parts.activation(config, "hidden_activation"),
        attention_scale=1.0,
        keys_of=keys_of,
        qk_norm="head",
        value_norm=True,
        norm_place="both",
        windows=windows,
        qkv_bias=bias,
        out_bias=bias,
        per_layer_width=per_layer or 0,
        layer_scale=True,
        embedding_scale=math.sqrt(config.hidden_size),
        logit_softcap=config.final_logit_softcapping,
    )


GEMMA4 = Family(
    (llamalike.READS - {"hidden_act"})
    | parts.reads(
        "head_dim attention_bias hidden_activation layer_types sliding_window attention_k_eq_v",
        "global_head_dim num_global_key_value_heads per_layer_config num_kv_shared_layers",
        "use_double_wide_mlp hidden_size_per_layer_input vocab_size_per_layer_input",
        "final_logit_softcapping use_bidirectional_attention enable_moe_block num_experts",
        "top_k_experts moe_intermediate_size",
    ),
    _translate,
    gemma4_sources.sources,
    buffers=(parts.INV_FREQ,),
    unread=gemma4_sources.unread,
)

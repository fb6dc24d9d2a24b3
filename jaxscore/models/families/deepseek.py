"""Latent attention: deepseek, glm4_moe_lite, glm_moe_dsa, axk1, axk2, longcat_flash and sarvam_mla
with experts in most layers, and youtu without experts.

The indexer of deepseek_v32, glm_moe_dsa and axk2 chooses `index_topk` keys for each query. It
chooses all keys of texts of at most `index_topk` tokens, so these are scored without it, and longer
texts are refused.

Each layer of longcat_flash becomes two of our layers. The experts read the first MLP's input, and
their output is added after the second MLP (arXiv 2509.01322). Some experts return their input.
"""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, Latent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Part, Source, Table, linear, norm

NORM_EPS = 1e-6  # for the norms within attention, independent of `rms_norm_eps`


def _deepseek(
    config: Any, experts: Experts, plain: tuple[int, ...] | None = None, **overrides: Any
) -> DecoderConfig:
    fields.require(config, moe_layer_freq=1)
    plain = mixtures.first_layers(config) if plain is None else plain
    width = config.moe_intermediate_size
    shared_width = (config.n_shared_experts or 0) * width
    experts = experts.replace(shared_width=shared_width, shared_gated=False)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        **latent_fields(config),
        **overrides,
    )


def latent_fields(config: Any) -> dict[str, Any]:
    """Return the fields of latent attention."""
    fields.require(config, num_key_value_heads=config.num_attention_heads)
    latent = Latent(
        rank=config.kv_lora_rank,
        query_rank=config.q_lora_rank or 0,
        rope_width=config.qk_rope_head_dim,
        nope_width=config.qk_nope_head_dim,
        value=config.v_head_dim,
        norm_eps=NORM_EPS,
    )
    bias = config.attention_bias
    return {
        "latent": latent,
        "n_kv_heads": 1,
        "head_width": latent.rank + latent.rope_width,
        "score_scale": _attention_scale(config),
        "qkv_bias": bias,
        "out_bias": bias,
    }


def _attention_scale(config: Any) -> float:
    """Return the scale of scores, times the square of YaRN's factor if `mscale_all_dim` is set.

    This follows DeepSeek-V2's published code.
    """
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    rope = getattr(config, "rope_parameters", {"rope_type": "default"})
    overall, factor = rope.get("mscale_all_dim"), rope.get("factor", 1)
    if rope["rope_type"] == "default" or not overall or factor <= 1:
        return scale
    return scale * (0.1 * overall * math.log(factor) + 1) ** 2


def _v2(config: Any) -> DecoderConfig:
    # DeepSeek's own code would scale the weights to a sum of one; transformers' class does not.
    fields.require(config, norm_topk_prob=False, scoring_func="softmax", mlp_bias=False)
    method = fields.require_one_of(config, "topk_method", "greedy", "group_limited_greedy")
    fields.require_counts(config, "n_routed_experts", "num_experts_per_tok")
    limited = method != "greedy"
    for name in ("n_group", "topk_group"):
        if limited and getattr(config, name) is None:
            raise InputError(f"{name} is None, expected a number with group_limited_greedy")
    experts = Experts.of(
        count=config.n_routed_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=False,
        router_groups=config.n_group if limited else 1,
        router_groups_per_token=config.topk_group if limited else 1,
        router_scale=config.routed_scaling_factor,
    )
    return _deepseek(config, experts, interleaved=True)


def _v3(config: Any) -> DecoderConfig:
    fields.require(config, scoring_func="sigmoid", topk_method="noaux_tc")
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts)
    return _deepseek(config, experts, interleaved=config.rope_interleave)


def _sarvam_mla(config: Any) -> DecoderConfig:
    fields.require(config, **mixtures.SARVAM, default_theta=10000.0, use_qk_norm=True)
    return _v3(config)


def sigmoid_mixture(config: Any, expert_fields: Any, **overrides: Any) -> DecoderConfig:
    """Return deepseek_v3 with an MLP type per layer.

    Args:
        expert_fields: fields of `Experts` that are added or differ.
        overrides: fields of the decoder that are added or differ.
    """
    # DeepSeek-V3.2 and GLM-5 have these; PyTorch's class reads none of them.
    fields.require(config, scoring_func="sigmoid", topk_method="noaux_tc", mlp_bias=False)
    fields.require(config, rope_interleave=True, moe_router_dtype="float32")
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts, **expert_fields)
    return _deepseek(config, experts, mixtures.dense_layers(config), interleaved=True, **overrides)


def _glm4_moe_lite(config: Any) -> DecoderConfig:
    """deepseek_v3 with an MLP type per layer."""
    plain = mixtures.dense_layers(config)
    # GLM-4.7-Flash has these; PyTorch's class reads none of them.
    fields.require(config, first_k_dense_replace=len(plain), topk_method="noaux_tc")
    fields.require(config, partial_rotary_factor=1.0)
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts)
    return _deepseek(config, experts, plain, interleaved=config.rope_interleave)


def _axk1(config: Any) -> DecoderConfig:
    """deepseek_v3 with a norm after the experts."""
    # A.X K1's released config has these; PyTorch's class reads neither.
    fields.require(config, scoring_func="sigmoid", topk_method="noaux_tc")
    fields.require_counts(config, "q_lora_rank")
    experts = mixtures.sigmoid_experts(config, config.n_routed_experts, normed=True)
    plain = mixtures.dense_layers(config)
    return _deepseek(config, experts, plain, interleaved=config.rope_interleave)


def _axk1_sources(config: DecoderConfig) -> Table:
    table = sources(config)
    if config.experts is not None:
        layers, _ = mixtures.split_layers(config)
        path = (*mixtures.mlp_path(config), "after_norm", "scale")
        table[path] = Source("layers.{i}.post_mlp_layernorm.weight", layers=layers)
    return table


def _youtu(config: Any) -> DecoderConfig:
    return llama.llama_config(config, interleaved=config.rope_interleave, **latent_fields(config))


def attention_sources(config: DecoderConfig, layer: str = "layers.{i}.self_attn.") -> Table:
    """Return the sources of latent attention; `layer` is the prefix of its tensors."""
    latent, at = config.attention.latent, ("layers", "attention", "latent")
    assert latent is not None
    table: Table = {}
    if latent.query_rank:
        table |= linear((*at, "query_in"), layer + "q_a_proj", config.attention.qkv_bias)
        table |= norm((*at, "query_norm"), layer + "q_a_layernorm", False)
    name = "q_b_proj" if latent.query_rank else "q_proj"
    table |= linear((*at, "q"), layer + name, False)
    table |= linear((*at, "key_value"), layer + "kv_a_proj_with_mqa", config.attention.qkv_bias)
    table |= norm((*at, "norm"), layer + "kv_a_layernorm", False)
    n_rows = latent.nope_width + latent.value
    for param, start, stop in (
        ("key_up", 0, latent.nope_width),
        ("value_up", latent.nope_width, n_rows),
    ):
        rows = Part(config.attention.n_heads, n_rows, start, stop)
        table |= linear((*at, param), layer + "kv_b_proj", False, part=rows)
    return table | linear(
        ("layers", "attention", "out"), layer + "o_proj", config.attention.out_bias
    )


def sources(config: DecoderConfig) -> Table:
    """Return the sources of a deepseek model."""
    return mixtures.sources(config, attention_sources(config))


READS = (
    "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim "
    "head_dim qk_head_dim first_k_dense_replace moe_intermediate_size n_routed_experts "
    "n_shared_experts num_experts_per_tok norm_topk_prob routed_scaling_factor n_group "
    "topk_group topk_method scoring_func moe_layer_freq aux_loss_alpha seq_aux ep_size "
    "output_router_logits"
)


LIMIT = "beyond index_topk keys an indexer chooses among them, which is not covered"
INDEXER = r"layers\.\d+\.self_attn\.indexer\..+"


def _indexed(config: Any, **expert_fields: Any) -> DecoderConfig:
    """deepseek_v3 for texts of which the indexers choose all keys, with fields of `Experts`."""
    budget, longest = config.index_topk, config.max_position_embeddings
    if budget < 1:
        raise InputError(f"index_topk is {budget!r}, expected a number of at least 1")
    if config.layer_types != ["indexed_attention"] * config.num_hidden_layers:
        raise InputError(
            f"layer_types is {config.layer_types!r}, handled is 'indexed_attention' for each layer"
        )
    return sigmoid_mixture(config, expert_fields, max_positions=min(budget, longest))


def _glm_moe_dsa(config: Any) -> DecoderConfig:
    """Layers without an indexer take the choice of the layer before."""
    types = config.indexer_types
    if set(types) - {"full", "shared"} or types[:1] == ["shared"]:
        raise InputError(
            f"indexer_types is {types!r}, expected 'full' and 'shared', the first one 'full'"
        )
    return _indexed(config)


def _axk2(config: Any) -> DecoderConfig:
    """Low-rank gates on the norms before attention and experts, and gates on attention's output."""
    fields.require_counts(config, "q_lora_rank", "gated_norm_rank")
    if (config.n_group is None) != (config.topk_group is None):
        raise InputError(f"n_group is {config.n_group} and topk_group {config.topk_group}")
    groups = 1 if config.n_group is None else config.n_group
    decoder = _indexed(
        config,
        router_groups=groups,
        router_groups_per_token=config.topk_group or 1,
        router_group_rank=2,
        router_dropped_score=0.0,
    )
    assert decoder.attention.latent is not None
    latent = decoder.attention.latent._replace(gated=True)
    return decoder.replace(latent=latent, norm_gate_rank=config.gated_norm_rank)


def _axk2_sources(config: DecoderConfig) -> Table:
    latent, layer = config.attention.latent, "layers.{i}."
    assert latent is not None
    table = sources(config)
    at, query_width = ("layers", "attention", "latent"), latent.rope_width + latent.nope_width
    fused_rows = hybrid.parts(config.attention.n_heads, query_width, latent.value)
    for name, rows in zip(("q", "gate"), fused_rows, strict=True):
        table |= linear((*at, name), layer + "self_attn.q_b_proj", False, part=rows)
    first, second = layer + "input_layernorm", layer + "post_attention_layernorm"
    gates: dict[tuple[str, ...], tuple[str, tuple[int, ...] | None]]
    gates = {("layers", "attention_norm_gate"): (first, None)}
    sparse, plain = mixtures.split_layers(config)
    if config.experts is None:
        plain = tuple(range(config.n_layers))
    else:
        gates[*mixtures.mlp_path(config), "norm_gate"] = second, sparse
    table["layers", "attention_norm", "scale"] = Source(f"{first}.norm.weight")
    table["layers", "mlp_norm", "scale"] = Source(
        f"{second}.norm.weight", elsewhere=(plain, f"{second}.weight")
    )
    for path, (name, layers) in gates.items():
        for param, hf_name in {"left": "W_down", "right": "W_up"}.items():
            table |= linear((*path, param), f"{name}.{hf_name}", False, layers=layers)
    return table


INDEXED_READS = (
    "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim "
    "head_dim qk_head_dim first_k_dense_replace mlp_layer_types moe_intermediate_size "
    "n_routed_experts n_shared_experts num_experts_per_tok norm_topk_prob routed_scaling_factor "
    "n_group topk_group topk_method scoring_func moe_layer_freq mlp_bias layer_types "
    "index_topk index_head_dim index_n_heads ep_size aux_loss_alpha seq_aux output_router_logits"
)
SHARED = "indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset"
NAMES: dict[str, Any] = {
    "sources": sources,
    "unread": lambda config: (INDEXER,),
    "unread_part": "indexers",
    "limit_reason": LIMIT,
    "next_tokens": True,
}


# Attributes of released configs, with the values that PyTorch's class implements
RELEASED: dict[str, Any] = {
    "attention_method": "MLA",
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "router_bias": False,
    "zero_expert_type": "identity",
}


def _longcat_flash(config: Any) -> DecoderConfig:
    fields.require(config, **RELEASED)
    fields.require_counts(config, "q_lora_rank", "kv_lora_rank")
    attention_fields = latent_fields(config)
    attention_fields["latent"] = attention_fields["latent"]._replace(
        query_factor=(config.hidden_size / config.q_lora_rank) ** 0.5,
        factor=(config.hidden_size / config.kv_lora_rank) ** 0.5,
    )
    experts = Experts.of(
        count=config.n_routed_experts,
        per_token=config.moe_topk,
        router_renormalised=False,
        shared_width=config.ffn_hidden_size,
        shared_gated=False,
        router_corrected=True,
        router_scale=config.routed_scaling_factor,
        identities=config.zero_expert_num or 0,
        late=True,
    )
    width, plain = config.expert_ffn_hidden_size, tuple(range(1, config.num_hidden_layers, 2))
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.ffn_hidden_size, "moe_topk"),
        **attention_fields,
        interleaved=True,
    )


def _longcat_sources(config: DecoderConfig) -> Table:
    layer = "layers.{pair}."
    first, second = mixtures.split_layers(config)
    table = llama.embedding_sources(config)
    table |= attention_sources(config, layer + "self_attn.{side}.")
    for param, hf_name in {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    }.items():
        table |= norm(("layers", param), f"{layer}{hf_name}.{{side}}", False)
    mlp = layer + "mlps.{side}."
    table |= mixtures.mlp_sources(config, ("mlps", "main", "shared"), mlp, first)
    table |= mixtures.mlp_sources(config, ("mlps", "other"), mlp, second)
    router = layer + "mlp.router."
    table |= mixtures.router_sources(
        config, router + "classifier", router + "e_score_correction_bias"
    )
    return table | mixtures.expert_sources(config, layer + "mlp.")


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    """Return patterns of multi-token-prediction layers and of projections of identity experts.

    transformers 5 writes the latter.
    """
    assert config.experts is not None
    count = config.experts.count
    without = "|".join(map(str, range(count, count + config.experts.identities)))
    products = rf"layers\.\d+\.mlp\.experts\.({without})\.(gate|up)_proj\.weight"
    return (r"mtp\..*", products) if without else (r"mtp\..*",)


FAMILIES = {
    "axk1": llama.family(
        _axk1,
        READS,
        "mlp_layer_types rope_interleave",
        mixtures.NEXT_TOKENS,
        sources=_axk1_sources,
        # Released files have this norm in layers without experts, too.
        unread=lambda config: (r"layers\.\d+\.post_mlp_layernorm\.weight",),
        renamed={".mlp.post_mlp_layernorm.": ".post_mlp_layernorm."},
        next_tokens=True,
    ),
    "axk2": llama.family(
        _axk2,
        INDEXED_READS,
        "gated_norm_rank",
        mixtures.NEXT_TOKENS,
        **NAMES | {"sources": _axk2_sources},
        renamed={  # names in transformers' class
            "_layernorm.mlp.fc1.": "_layernorm.W_down.",
            "_layernorm.mlp.fc2.": "_layernorm.W_up.",
            ".q_gate_proj.": ".q_b_proj.",
        },
    ),
    "deepseek_v2": llama.family(_v2, READS, "mlp_bias", sources=sources, next_tokens=True),
    "deepseek_v3": llama.family(
        _v3, READS, "rope_interleave", mixtures.NEXT_TOKENS, sources=sources, next_tokens=True
    ),
    "glm4_moe_lite": llama.family(
        _glm4_moe_lite,
        "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim",
        "mlp_layer_types moe_intermediate_size n_routed_experts n_shared_experts n_group",
        "topk_group num_experts_per_tok norm_topk_prob routed_scaling_factor rope_interleave",
        "first_k_dense_replace topk_method qk_head_dim output_router_logits partial_rotary_factor",
        mixtures.NEXT_TOKENS,
        sources=sources,
        next_tokens=True,
    ),
    "deepseek_v32": llama.family(_indexed, INDEXED_READS, mixtures.NEXT_TOKENS, **NAMES),
    "glm_moe_dsa": llama.family(
        _glm_moe_dsa,
        INDEXED_READS,
        SHARED,
        "indexer_rope_interleave index_share_for_mtp_iteration moe_router_dtype rope_interleave",
        mixtures.NEXT_TOKENS,
        **NAMES,
    ),
    "sarvam_mla": llama.family(
        _sarvam_mla,
        READS,
        *mixtures.SARVAM,
        "default_theta use_qk_norm rope_interleave max_window_layers attn_implementation",
        mixtures.NEXT_TOKENS,
        sources=sources,
    ),
    "youtu": llama.family(
        _youtu,
        "attention_bias kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim",
        "head_dim qk_head_dim rope_interleave",
        sources=sources,
    ),
    "longcat_flash": llama.family(
        _longcat_flash,
        "attention_bias num_layers ffn_hidden_size expert_ffn_hidden_size q_lora_rank",
        "kv_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim head_dim v_head_dim moe_topk",
        "n_routed_experts zero_expert_num routed_scaling_factor output_router_logits",
        *RELEASED,
        sources=_longcat_sources,
        unread=_unread,
        lacks="intermediate_size",
    ),
}

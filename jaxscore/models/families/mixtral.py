"""Mixtures of experts in every layer: dbrx, flex_olmo, minimax_m2, mixtral, olmoe.

dbrx clips queries, keys and values, and its config has objects for attention and experts.
"""

from types import SimpleNamespace
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.config import table
from jaxscore.models.config.check import check_attributes, check_types
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Family, Part, Source, Table, linear, norm, unembedding
from jaxscore.models.families.llama_variants import after_norm_sources, clip_limit

# Attributes of MiniMax-M2's released config, with the values that transformers' class implements
MINIMAX_RELEASED: dict[str, Any] = {
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "sliding_window": None,
    "use_qk_norm": True,
    "use_routing_bias": True,
}
MINIMAX_UNREAD = (
    "mlp_intermediate_size mtp_transformer_layers num_mtp_modules shared_moe_mode use_mtp"
)


# Names in transformers 5
MIXTRAL = {".mlp.": ".block_sparse_moe."}


def _mixtral(config: Any) -> DecoderConfig:
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=True,
    )
    return llama.llama_config(
        config,
        experts=mixtures.check_counts(experts),
        windows=fields.uniform_window(config),
    )


def mixtral_sources(config: DecoderConfig) -> Table:
    """Return the sources of mixtral."""
    layer = "layers.{i}.block_sparse_moe."
    return (
        llama.sources_without_mlp(config)
        | mixtures.router_sources(config, layer + "gate", layer + "e_score_correction_bias")
        | mixtures.expert_sources(config, layer, ("w1", "w3", "w2"))
    )


def _minimax_m2(config: Any) -> DecoderConfig:
    """Norms of queries and keys over all heads; a sigmoid router with corrected choice."""
    fields.require(config, **MINIMAX_RELEASED, attn_type_list=[1] * config.num_hidden_layers)
    experts = Experts.of(
        count=config.num_local_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=True,
        router_scores="sigmoid",
        router_corrected=True,
    )
    return llama.llama_config(config, experts=mixtures.check_counts(experts), qk_norm_kind="flat")


def _minimax_sources(config: DecoderConfig) -> Table:
    return mixtral_sources(config) | llama.qk_norm_sources(config)


def _flex_olmo(config: Any) -> DecoderConfig:
    """olmo2 with experts."""
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=config.norm_topk_prob,
    )
    return llama.llama_config(
        config,
        norm_place="after",
        qk_norm_kind="flat",
        experts=mixtures.check_counts(experts),
        **fields.biases(config),
    )


def _flex_olmo_sources(config: DecoderConfig) -> Table:
    mlp = "layers.{i}.mlp."
    return (
        llama.embedding_sources(config)
        | llama.attention_sources(config)
        | llama.qk_norm_sources(config)
        | after_norm_sources()
        | mixtures.router_sources(config, mlp + "gate")
        | mixtures.expert_sources(config, mlp)
    )


def _olmoe(config: Any) -> DecoderConfig:
    """Norms of queries and keys over all heads, then a limit on queries, keys and values."""
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=config.norm_topk_prob,
    )
    return llama.llama_config(
        config,
        qk_norm_kind="flat",
        qkv_limit=clip_limit(config),
        experts=mixtures.check_counts(experts),
        **fields.biases(config),
    )


def _olmoe_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    return mixtures.sources(config, attention)


NORM_EPS = 1e-5  # default of PyTorch's LayerNorm


def _nested_config(config: Any, name: str, *unread: str) -> Any:
    """Return an object within the config, with defaults for missing attributes.

    Args:
        unread: attributes that other code reads, or that change nothing.
    """
    values, defaults = getattr(config, name), table()["dbrx"].values[name]
    if not isinstance(values, dict):
        raise InputError(f"{name} is {str(values)[:60]}, expected an object")
    check_types(values, defaults, name)
    check_attributes(values, {}, {*defaults, *unread}, name, "dbrx", remedy="")
    return SimpleNamespace(**defaults | values)


def _dbrx(config: Any) -> DecoderConfig:
    attention = _nested_config(config, "attn_config", "rope_theta")
    mlp = _nested_config(config, "ffn_config", "hidden_size")
    fields.require(config, tie_word_embeddings=False)  # transformers 5 cannot tie them
    fields.require(mlp, hidden_size=config.d_model)
    fields.require_rope_type(config, "default")
    if not attention.clip_qkv or attention.clip_qkv < 0:  # PyTorch's class fails at null
        raise InputError(f"clip_qkv is {attention.clip_qkv!r}, expected a number above 0")
    act = mlp.ffn_act_fn or {"name": "silu"}
    if set(act) != {"name"}:
        raise InputError(f"ffn_act_fn is {act!r}, expected an object with only a name")
    # The order p of the p-norm that the chosen experts' weights are divided by
    exponent = fields.require_one_of(mlp, "moe_normalize_expert_weights", None, 1)
    experts = Experts.of(
        count=mlp.moe_num_experts, per_token=mlp.moe_top_k, router_renormalised=exponent is not None
    )
    return fields.decoder_config(
        config,
        **fields.rotary_fields(config),
        mlp_width=mlp.ffn_hidden_size,
        max_positions=config.max_seq_len,
        norm_kind="layer",
        norm_eps=NORM_EPS,
        mlp_activation=fields.activation(SimpleNamespace(ffn_act_fn=act["name"]), "ffn_act_fn"),
        n_kv_heads=attention.kv_n_heads,
        qkv_limit=float(attention.clip_qkv),
        experts=mixtures.check_counts(experts, "moe_top_k"),
    )


def _dbrx_sources(config: DecoderConfig) -> Table:
    assert config.experts is not None
    at, layer = ("layers", "attention"), "blocks.{i}."
    half = layer + "norm_attn_norm."
    table: Table = {("embed", "token"): Source("wte.weight")}
    table |= norm(("layers", "attention_norm"), half + "norm_1", False)
    table |= norm(("layers", "mlp_norm"), half + "norm_2", False)
    first, n_kv = config.attention.n_heads, config.attention.n_kv_heads
    n_all = first + 2 * n_kv
    for name, start, stop in (
        ("q", 0, first),
        ("k", first, first + n_kv),
        ("v", first + n_kv, n_all),
    ):
        rows = Part(1, n_all, start, stop)
        table |= linear((*at, name), half + "attn.Wqkv", False, part=rows)
    table |= linear((*at, "out"), half + "attn.out_proj", False)
    table |= mixtures.router_sources(config, layer + "ffn.router.layer")
    for param, hf_name in {"gate": "w1", "up": "v1", "down": "w2"}.items():
        table["experts", param, "weight"] = Source(
            f"{layer}ffn.experts.mlp.{hf_name}[{{j}}]",
            param == "down",
            entries=config.experts.count,
        )
    return table | norm(("final_norm",), "norm_f", False) | unembedding(config)


FAMILIES = {
    "flex_olmo": llama.family(
        _flex_olmo,
        "attention_bias num_experts num_experts_per_tok norm_topk_prob",
        mixtures.TRAINING,
        sources=_flex_olmo_sources,
    ),
    "minimax_m2": llama.family(
        _minimax_m2,
        "head_dim num_local_experts num_experts_per_tok router_jitter_noise attn_type_list",
        *MINIMAX_RELEASED,
        MINIMAX_UNREAD,
        mixtures.TRAINING,
        sources=_minimax_sources,
        renamed=MIXTRAL,
    ),
    "mixtral": llama.family(
        _mixtral,
        "head_dim sliding_window num_local_experts num_experts_per_tok router_jitter_noise",
        mixtures.TRAINING,
        sources=mixtral_sources,
        renamed=MIXTRAL,
    ),
    "olmoe": llama.family(
        _olmoe,
        "attention_bias clip_qkv num_experts num_experts_per_tok norm_topk_prob",
        mixtures.TRAINING,
        sources=_olmoe_sources,
    ),
    "dbrx": Family(
        fields.reads(
            "vocab_size d_model n_heads n_layers max_seq_len rope_parameters attn_config",
            "ffn_config num_key_value_heads tie_word_embeddings output_router_logits emb_pdrop",
        ),
        _dbrx,
        _dbrx_sources,
        prefix="transformer.",
        buffers=(r"blocks\.\d+\.norm_attn_norm\.attn\.rotary_emb\.inv_freq",),
    ),
}

"""dbrx: clipped queries, keys and values, layer norms without bias, experts in every layer.

Attributes of attention and of the experts are in objects of their own.
"""

from types import SimpleNamespace
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.config import table
from jaxscore.models.config.check import check_attributes, check_types
from jaxscore.models.families import fields, mixtures
from jaxscore.models.families.family import Family, Part, Source, Table, linear, norm, unembedding

NORM_EPS = 1e-5  # of PyTorch's LayerNorm


def _part(config: Any, name: str, *unread: str) -> Any:
    """An object within the config, with defaults for what it lacks.

    Args:
        unread: its attributes that other code reads, or that change nothing.
    """
    given, defaults = getattr(config, name), table()["dbrx"].values[name]
    if not isinstance(given, dict):
        raise InputError(f"{name} is {str(given)[:60]}, expected an object")
    check_types(given, defaults, name)
    check_attributes(given, {}, {*defaults, *unread}, name, "dbrx", remedy="")
    return SimpleNamespace(**defaults | given)


def _dbrx(config: Any) -> DecoderConfig:
    attention = _part(config, "attn_config", "rope_theta")
    mlp = _part(config, "ffn_config", "hidden_size")
    fields.require(config, tie_word_embeddings=False)  # transformers 5 has no tied model
    fields.require(mlp, hidden_size=config.d_model)
    fields.require_rope_type(config, "default")
    if not attention.clip_qkv or attention.clip_qkv < 0:  # PyTorch's class fails at null
        raise InputError(f"clip_qkv is {attention.clip_qkv!r}, expected a number above 0")
    act = mlp.ffn_act_fn or {"name": "silu"}
    if set(act) != {"name"}:
        raise InputError(f"ffn_act_fn is {act!r}, expected an object with a name alone")
    # The exponent of a norm of the chosen experts' weights, by which they are divided
    exponent = fields.require_one_of(mlp, "moe_normalize_expert_weights", None, 1)
    experts = Experts(mlp.moe_num_experts, mlp.moe_top_k, renormalised=exponent is not None)
    return fields.decoder_config(
        config,
        **fields.rotary_fields(config),
        mlp_width=mlp.ffn_hidden_size,
        max_positions=config.max_seq_len,
        norm="layer",
        norm_eps=NORM_EPS,
        activation=fields.activation(SimpleNamespace(ffn_act_fn=act["name"]), "ffn_act_fn"),
        n_kv_heads=attention.kv_n_heads,
        qkv_limit=float(attention.clip_qkv),
        experts=mixtures.check_counts(experts, "moe_top_k"),
    )


def _sources(config: DecoderConfig) -> Table:
    assert config.experts is not None
    at, layer = ("layers", "attention"), "blocks.{i}."
    half = layer + "norm_attn_norm."
    table: Table = {("embed", "token"): Source("wte.weight")}
    table |= norm(("layers", "attention_norm"), half + "norm_1", False)
    table |= norm(("layers", "mlp_norm"), half + "norm_2", False)
    first, n_kv = config.n_heads, config.n_kv_heads
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
    for ours, theirs in {"gate": "w1", "up": "v1", "down": "w2"}.items():
        table["experts", ours, "weight"] = Source(
            f"{layer}ffn.experts.mlp.{theirs}[{{j}}]", ours == "down", entries=config.experts.count
        )
    return table | norm(("final_norm",), "norm_f", False) | unembedding(config)


FAMILIES = {
    "dbrx": Family(
        fields.reads(
            "vocab_size d_model n_heads n_layers max_seq_len rope_parameters attn_config",
            "ffn_config num_key_value_heads tie_word_embeddings output_router_logits emb_pdrop",
        ),
        _dbrx,
        _sources,
        prefix="transformer.",
        buffers=(r"blocks\.\d+\.norm_attn_norm\.attn\.rotary_emb\.inv_freq",),
    )
}

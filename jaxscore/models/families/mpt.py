"""mpt: ALiBi, layer norms without bias, and attributes of attention in an object of their own."""

import math
from typing import Any

from jaxscore.device.attention.score_rule import Alibi
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.config.check import is_real
from jaxscore.models.families import fields
from jaxscore.models.families.family import Family, Part, Source, Table, linear, norm, unembedding
from jaxscore.models.families.fused_qkv import alibi_slopes

# Of `attn_config`, the values that PyTorch's class computes, whatever the file says
ATTENTION: dict[str, Any] = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
}
READ = {"clip_qkv", "softmax_scale"}
UNREAD = {"attn_impl", "attn_uses_sequence_id"}  # another way to compute, or packed texts


def _attention(config: Any) -> tuple[float | None, float]:
    """Limit on queries, keys and values, and the scale of scores, from `attn_config`."""
    given = config.attn_config or {}
    if not isinstance(given, dict):
        raise InputError(f"attn_config is {str(given)[:60]}, expected an object")
    for name, value in given.items():
        if name in ATTENTION and value != ATTENTION[name]:
            raise InputError(
                f"attn_config has {name} {value!r}, which is not handled; handled is "
                f"{ATTENTION[name]!r}"
            )
        if name in READ and value is not None and not (is_real(value) and value > 0):
            raise InputError(f"attn_config has {name} {value!r}, expected null or a number above 0")
    if unknown := sorted(set(given) - READ - UNREAD - set(ATTENTION)):
        raise InputError(f"attn_config has {', '.join(unknown)}, which is not handled")
    scale = given.get("softmax_scale")
    width = config.d_model / config.n_heads
    return given.get("clip_qkv"), 1 / math.sqrt(width) if scale is None else float(scale)


def _mpt(config: Any) -> DecoderConfig:
    # PyTorch's class reads none of these, and released models have these values.
    fields.require(config, expansion_ratio=4, logit_scale=None, no_bias=True)
    limit, scale = _attention(config)
    return fields.gpt_decoder_config(
        config,
        mlp_width=4 * config.d_model,
        max_positions=config.max_seq_len,
        norm_eps=config.layer_norm_epsilon,
        norm_bias=False,
        activation="gelu",
        attention_scale=scale,
        qkv_limit=limit,
        alibi=Alibi(alibi_slopes(config.n_heads)),
    )


def _sources(config: DecoderConfig) -> Table:
    at, layer = ("layers", "attention"), "blocks.{i}."
    table: Table = {("embed", "token"): Source("wte.weight")}
    table |= norm(("layers", "attention_norm"), layer + "norm_1", False)
    table |= norm(("layers", "mlp_norm"), layer + "norm_2", False)
    for k, name in enumerate("qkv"):
        table |= linear((*at, name), layer + "attn.Wqkv", False, part=Part(1, 3, k, k + 1))
    table |= linear((*at, "out"), layer + "attn.out_proj", False)
    for name in ("up", "down"):
        table |= linear(("layers", "mlp", name), f"{layer}ffn.{name}_proj", False)
    return table | norm(("final_norm",), "norm_f", False) | unembedding(config)


FAMILIES = {
    "mpt": Family(
        fields.reads(
            "vocab_size d_model n_heads n_layers max_seq_len layer_norm_epsilon attn_config",
            "tie_word_embeddings expansion_ratio logit_scale no_bias learned_pos_emb norm_type",
            "embedding_fraction init_device emb_pdrop verbose",
        ),
        _mpt,
        _sources,
        prefix="transformer.",
    )
}

"""falcon in its three kinds: grouped heads with two norms, one key head, or all heads and ALiBi."""

from typing import Any

from jaxscore.device.attention.score_rule import Alibi
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import parts
from jaxscore.models.families.alibi import slopes
from jaxscore.models.families.bloom import MOST_POSITIONS
from jaxscore.models.families.family import Family, Part, Source, Table
from jaxscore.models.families.gpt_neox import four_times, fused_by_head


def _translate(config: Any) -> DecoderConfig:
    grouped = config.new_decoder_architecture
    if grouped:
        n_kv_heads = config.num_kv_heads
        parts.refuse(config, parallel_attn=True)
        if (norms := config.num_ln_in_parallel_attn) not in (None, 1, 2):
            raise InputError(f"num_ln_in_parallel_attn is {norms!r}, expected 1 or 2")
        parallel = "shared" if norms == 1 else "own"
    else:
        n_kv_heads = 1 if config.multi_query else config.num_attention_heads
        parallel = "shared" if config.parallel_attn else "no"
        if config.num_ln_in_parallel_attn == 2:
            parts.refuse(config, num_ln_in_parallel_attn=None)
    width = parts.head_width(config)
    if config.alibi:
        # PyTorch rounds the penalties to bfloat16 whatever the dtype, and scales them as scores.
        coarse = Alibi(slopes(config.num_attention_heads), width**-0.5, coarse=True)
        where = {"alibi": coarse, "max_positions": MOST_POSITIONS}
    else:
        where = {**parts.turning(config), "max_positions": config.max_position_embeddings}
    return parts.decoder(
        config,
        n_kv_heads=n_kv_heads,
        mlp_width=config.ffn_hidden_size,
        norm="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_epsilon,
        activation=parts.activation(config, "activation"),
        gated=False,
        parallel=parallel,
        qkv_bias=config.bias,
        out_bias=config.bias,
        mlp_bias=config.bias,
        **where,
    )


def _sources(config: DecoderConfig) -> Table:
    layer, n, k = "h.{i}.", config.n_heads, config.n_kv_heads
    at, bias = layer + "self_attention.", config.qkv_bias
    table: Table = {("embed", "token"): Source("word_embeddings.weight")}
    norms = {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}
    if config.parallel != "own":
        norms = {"attention_norm": "input_layernorm"}
    if config.parallel == "no":
        norms["mlp_norm"] = "post_attention_layernorm"
    for ours, theirs in norms.items():
        table |= parts.norm(("layers", ours), layer + theirs, True)
    if k == n:
        table |= fused_by_head(config, at, bias)
    else:
        each = n // k
        for name, start, stop in (("q", 0, each), ("k", each, each + 1), ("v", each + 1, each + 2)):
            part = Part(k, each + 2, start, stop)
            path = ("layers", "attention", name)
            table |= parts.linear(path, at + "query_key_value", bias, part=part)
        table |= parts.linear(("layers", "attention", "out"), at + "dense", bias)
    table |= four_times(layer, bias)
    return table | parts.norm(("final_norm",), "ln_f", True) | parts.unembedding(config)


FALCON = Family(
    parts.reads(
        "num_kv_heads num_ln_in_parallel_attn layer_norm_epsilon alibi new_decoder_architecture "
        "multi_query parallel_attn bias ffn_hidden_size activation hidden_dropout",
        *parts.SIZES,
        *parts.ROPE,
    ),
    _translate,
    _sources,
    prefix="transformer.",
    buffers=(r"h\.\d+\.self_attention\.(rotary_emb|maybe_rotary)\.inv_freq",),
)

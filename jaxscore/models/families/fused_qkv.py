"""bloom, falcon, gpt_neox, mpt and persimmon: queries, keys and values in one tensor.

The MLP's tensors have Megatron's names. mpt has ALiBi, layer norms without bias, and the attributes
of attention in a nested object.
"""

import math
from typing import Any

from jaxscore.device.attention.score_rule import Alibi
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.config.check import is_real
from jaxscore.models.families import fields
from jaxscore.models.families.family import Family, Part, Source, Table, linear, norm, unembedding


def alibi_slopes(n_heads: int) -> tuple[float, ...]:
    """Return ALiBi's slope per head: 2^(-8/n), 2^(-16/n), ... for n heads (arXiv 2108.12409).

    If n is not a power of two, these are the slopes of the next lower power p, followed by every
    other slope of 2p.
    """

    def slopes(n: int) -> list[float]:
        return [2.0 ** (-8.0 * (k + 1) / n) for k in range(n)]

    below = 2 ** int(math.log2(n_heads))
    return tuple(slopes(below) + slopes(2 * below)[::2][: n_heads - below])


def attention_sources(config: DecoderConfig, fused: str, out: str, bias: bool) -> Table:
    """Return the sources of fused attention: per group, its query heads, a key and a value head.

    Args:
        fused, out: names of the two projections.
    """
    group = config.attention.n_heads // config.attention.n_kv_heads
    table: Table = {}
    for name, start, stop in (
        ("q", 0, group),
        ("k", group, group + 1),
        ("v", group + 1, group + 2),
    ):
        rows = Part(config.attention.n_kv_heads, group + 2, start, stop)
        path = ("layers", "attention", name)
        table |= linear(path, fused, bias, part=rows)
    return table | linear(("layers", "attention", "out"), out, bias)


def _attention_sources(config: DecoderConfig, layer: str, bias: bool) -> Table:
    return attention_sources(config, layer + "query_key_value", layer + "dense", bias)


def _mlp_sources(layer: str, bias: bool) -> Table:
    at, name = ("layers", "mlp"), layer + "mlp.dense_"
    return linear((*at, "up"), name + "h_to_4h", bias) | linear(
        (*at, "down"), name + "4h_to_h", bias
    )


def _bloom(config: Any) -> DecoderConfig:
    """ALiBi, a norm after the embedding, biases everywhere."""
    fields.require(
        config,
        apply_residual_connection_post_layernorm=False,
        attention_softmax_in_fp32=True,
        offset_alibi=100,
        skip_bias_add=True,
        skip_bias_add_qkv=False,
    )
    if config.pretraining_tp > 1:
        fields.require(config, slow_but_exact=False)  # if True, PyTorch omits two biases
    return fields.gpt_decoder_config(
        config,
        mlp_width=4 * config.hidden_size,
        max_positions=fields.MAX_POSITIONS,
        norm_eps=config.layer_norm_epsilon,
        mlp_activation="gelu_tanh",
        alibi=Alibi(alibi_slopes(config.num_attention_heads)),
        embedding_norm=True,
        **fields.biases_everywhere(True),
    )


def _bloom_sources(config: DecoderConfig) -> Table:
    layer = "h.{i}."
    return (
        {("embed", "token"): Source("word_embeddings.weight")}
        | norm(("embed", "norm"), "word_embeddings_layernorm", True)
        | norm(("layers", "attention_norm"), layer + "input_layernorm", True)
        | norm(("layers", "mlp_norm"), layer + "post_attention_layernorm", True)
        | _attention_sources(config, layer + "self_attention.", True)
        | _mlp_sources(layer, True)
        | norm(("final_norm",), "ln_f", True)
        | unembedding(config)
    )


def _falcon(config: Any) -> DecoderConfig:
    """Three architectures: grouped heads with two norms, multi-query, or multi-head with ALiBi."""
    if config.new_decoder_architecture:
        n_kv_heads = config.num_kv_heads
        fields.require(config, parallel_attn=True)
        if (norms := config.num_ln_in_parallel_attn) not in (None, 1, 2):
            raise InputError(f"num_ln_in_parallel_attn is {norms!r}, expected 1 or 2")
        parallel = "shared" if norms == 1 else "own"
    else:
        n_kv_heads = 1 if config.multi_query else config.num_attention_heads
        parallel = "shared" if config.parallel_attn else "no"
        if config.num_ln_in_parallel_attn == 2:
            fields.require(config, num_ln_in_parallel_attn=None)
    if config.alibi:
        # PyTorch rounds the penalties to bfloat16 in any dtype, and scales them like scores.
        scale = fields.head_width(config) ** -0.5
        alibi = Alibi(alibi_slopes(config.num_attention_heads), scale, coarse=True)
        positions = {"alibi": alibi, "max_positions": fields.MAX_POSITIONS}
    else:
        positions = fields.rotary_fields(config)
        positions["max_positions"] = config.max_position_embeddings
    return fields.gpt_decoder_config(
        config,
        n_kv_heads=n_kv_heads,
        mlp_width=config.ffn_hidden_size,
        norm_eps=config.layer_norm_epsilon,
        mlp_activation=fields.activation(config, "activation"),
        parallel=parallel,
        **fields.biases_everywhere(config.bias),
        **positions,
    )


def _falcon_sources(config: DecoderConfig) -> Table:
    layer, bias = "h.{i}.", config.attention.qkv_bias
    table: Table = {("embed", "token"): Source("word_embeddings.weight")}
    norms = {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"}
    if config.residual.parallel != "own":
        norms = {"attention_norm": "input_layernorm"}
    if config.residual.parallel == "no":
        norms["mlp_norm"] = "post_attention_layernorm"
    for param, hf_name in norms.items():
        table |= norm(("layers", param), layer + hf_name, True)
    table |= _attention_sources(config, layer + "self_attention.", bias)
    table |= _mlp_sources(layer, bias)
    return table | norm(("final_norm",), "ln_f", True) | unembedding(config)


def _gpt_neox(config: Any) -> DecoderConfig:
    """Partial rotary embeddings; attention and MLP optionally in parallel."""
    return fields.gpt_decoder_config(
        config,
        mlp_width=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.layer_norm_eps,
        mlp_activation=fields.activation(config),
        parallel="own" if config.use_parallel_residual else "no",
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        mlp_bias=True,
        **fields.rotary_fields(config),
    )


def _gpt_neox_sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    return (
        {("embed", "token"): Source("embed_in.weight")}
        | norm(("layers", "attention_norm"), layer + "input_layernorm", True)
        | norm(("layers", "mlp_norm"), layer + "post_attention_layernorm", True)
        | _attention_sources(config, layer + "attention.", config.attention.qkv_bias)
        | _mlp_sources(layer, True)
        | norm(("final_norm",), "final_layer_norm", True)
        | unembedding(config, "embed_out")
    )


def _persimmon(config: Any) -> DecoderConfig:
    """Partial rotary embeddings; layer norms of each head's queries and keys."""
    return fields.gpt_decoder_config(
        config,
        mlp_width=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.layer_norm_eps,
        mlp_activation=fields.activation(config),
        qk_norm_kind="head" if config.qk_layernorm else "",
        qk_norm_bias=True,
        **fields.biases_everywhere(True),
        **fields.rotary_fields(config),
    )


def _persimmon_sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    table: Table = {("embed", "token"): Source("embed_tokens.weight")}
    table |= norm(("layers", "attention_norm"), layer + "input_layernorm", True)
    table |= norm(("layers", "mlp_norm"), layer + "post_attention_layernorm", True)
    table |= _attention_sources(config, layer + "self_attn.", True) | _mlp_sources(layer, True)
    if config.attention.qk_norm.kind:
        for name in "qk":
            path = ("layers", "attention", f"{name}_norm")
            table |= norm(path, f"{layer}self_attn.{name}_layernorm", True)
    return table | norm(("final_norm",), "final_layernorm", True) | unembedding(config)


# Attributes of `attn_config`, with the values that PyTorch's class implements whatever the file
# says
ATTENTION: dict[str, Any] = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_type": "multihead_attention",
    "prefix_lm": False,
    "qk_ln": False,
}
READ = {"clip_qkv", "softmax_scale"}
UNREAD = {"attn_impl", "attn_uses_sequence_id"}  # another implementation, or packed texts


def _attention(config: Any) -> tuple[float | None, float]:
    """Return the limit on queries, keys and values, and the scale of scores, from `attn_config`."""
    values = config.attn_config or {}
    if not isinstance(values, dict):
        raise InputError(f"attn_config is {str(values)[:60]}, expected an object")
    for name, value in values.items():
        if name in ATTENTION and value != ATTENTION[name]:
            raise InputError(
                f"attn_config has {name} {value!r}, which is not handled; handled is "
                f"{ATTENTION[name]!r}"
            )
        if name in READ and value is not None and not (is_real(value) and value > 0):
            raise InputError(f"attn_config has {name} {value!r}, expected null or a number above 0")
    if unknown := sorted(set(values) - READ - UNREAD - set(ATTENTION)):
        raise InputError(f"attn_config has {', '.join(unknown)}, which is not handled")
    scale = values.get("softmax_scale")
    width = config.d_model / config.n_heads
    return values.get("clip_qkv"), 1 / math.sqrt(width) if scale is None else float(scale)


def _mpt(config: Any) -> DecoderConfig:
    # Released models have these values, and PyTorch's class reads none of them.
    fields.require(config, expansion_ratio=4, logit_scale=None, no_bias=True)
    limit, scale = _attention(config)
    return fields.gpt_decoder_config(
        config,
        mlp_width=4 * config.d_model,
        max_positions=config.max_seq_len,
        norm_eps=config.layer_norm_epsilon,
        norm_bias=False,
        mlp_activation="gelu",
        score_scale=scale,
        qkv_limit=limit,
        alibi=Alibi(alibi_slopes(config.n_heads)),
    )


def _mpt_sources(config: DecoderConfig) -> Table:
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
    "bloom": Family(
        # Attributes of the last two lines are for the training code; PyTorch's class reads none of
        # them.
        fields.reads(
            "vocab_size hidden_size n_layer n_head layer_norm_epsilon tie_word_embeddings",
            "apply_residual_connection_post_layernorm slow_but_exact hidden_dropout",
            "attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi",
            "seq_length skip_bias_add skip_bias_add_qkv unk_token_id",
        ),
        _bloom,
        _bloom_sources,
        prefix="transformer.",
    ),
    "falcon": Family(
        fields.reads(
            "num_kv_heads num_ln_in_parallel_attn layer_norm_epsilon alibi",
            "new_decoder_architecture multi_query parallel_attn bias ffn_hidden_size activation",
            "hidden_dropout",
            *fields.SIZES,
            *fields.ROPE,
        ),
        _falcon,
        _falcon_sources,
        prefix="transformer.",
        buffers=(r"h\.\d+\.self_attention\.(rotary_emb|maybe_rotary)\.inv_freq",),
    ),
    "gpt_neox": Family(
        fields.reads(
            "intermediate_size hidden_act layer_norm_eps use_parallel_residual attention_bias",
            "hidden_dropout",
            *fields.SIZES,
            *fields.ROPE,
        ),
        _gpt_neox,
        _gpt_neox_sources,
        prefix="gpt_neox.",
        buffers=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
        head="embed_out.weight",
    ),
    "persimmon": Family(
        fields.reads(
            "intermediate_size hidden_act layer_norm_eps qk_layernorm hidden_dropout",
            *fields.SIZES,
            *fields.ROPE,
        ),
        _persimmon,
        _persimmon_sources,
        buffers=(fields.INV_FREQ,),
    ),
    "mpt": Family(
        fields.reads(
            "vocab_size d_model n_heads n_layers max_seq_len layer_norm_epsilon attn_config",
            "tie_word_embeddings expansion_ratio logit_scale no_bias learned_pos_emb norm_type",
            "embedding_fraction init_config init_device emb_pdrop tokenizer_name verbose",
        ),
        _mpt,
        _mpt_sources,
        prefix="transformer.",
    ),
}

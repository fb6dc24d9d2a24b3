"""gpt_neox: layer norms, a part of each head turned, q, k and v head by head in one tensor."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family, Part, Source, Table


def fused_by_head(config: DecoderConfig, layer: str, bias: bool) -> Table:
    """Queries, keys and values that lie as q k v q k v, a head after the other."""
    table: Table = {}
    for k, name in enumerate("qkv"):
        part = Part(config.n_heads, 3, k, k + 1)
        path = ("layers", "attention", name)
        table |= parts.linear(path, layer + "query_key_value", bias, part=part)
    return table | parts.linear(("layers", "attention", "out"), layer + "dense", bias)


def four_times(layer: str, bias: bool) -> Table:
    """The plain MLP under the names that Megatron gave it."""
    at, name = ("layers", "mlp"), layer + "mlp.dense_"
    return parts.linear((*at, "up"), name + "h_to_4h", bias) | parts.linear(
        (*at, "down"), name + "4h_to_h", bias
    )


def _translate(config: Any) -> DecoderConfig:
    return parts.decoder(
        config,
        mlp_width=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        norm="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_eps,
        activation=parts.activation(config),
        gated=False,
        parallel="own" if config.use_parallel_residual else "no",
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
        mlp_bias=True,
        **parts.turning(config),
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    return (
        {("embed", "token"): Source("embed_in.weight")}
        | parts.norm(("layers", "attention_norm"), layer + "input_layernorm", True)
        | parts.norm(("layers", "mlp_norm"), layer + "post_attention_layernorm", True)
        | fused_by_head(config, layer + "attention.", config.qkv_bias)
        | four_times(layer, True)
        | parts.norm(("final_norm",), "final_layer_norm", True)
        | parts.unembedding(config, "embed_out")
    )


GPT_NEOX = Family(
    parts.reads(
        "intermediate_size hidden_act layer_norm_eps use_parallel_residual "
        "attention_bias hidden_dropout",
        *parts.SIZES,
        *parts.ROPE,
    ),
    _translate,
    _sources,
    prefix="gpt_neox.",
    buffers=(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    head="embed_out.weight",
)

"""opt: learned positions behind two unused rows, norms before or after, a narrower embedding."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family, Source, Table

OFFSET = 2  # rows of the position table before that of the first token


def _translate(config: Any) -> DecoderConfig:
    parts.refuse(config, layer_norm_elementwise_affine=True)
    before, embedding = config.do_layer_norm_before, config.word_embed_proj_dim
    return parts.decoder(
        config,
        mlp_width=config.ffn_dim,
        max_positions=config.max_position_embeddings,
        norm="layer",
        norm_bias=True,
        norm_eps=1e-5,  # torch's own; the config has none
        norm_place="before" if before else "residual",
        activation=parts.activation(config, "activation_function"),
        gated=False,
        learned_positions=True,
        embedding_width=embedding if embedding != config.hidden_size else 0,
        final_norm=before and not config._remove_final_layer_norm,
        qkv_bias=config.enable_bias,
        out_bias=config.enable_bias,
        mlp_bias=config.enable_bias,
    )


def _sources(config: DecoderConfig) -> Table:
    layer, bias = "decoder.layers.{i}.", config.qkv_bias
    table: Table = {
        ("embed", "token"): Source("decoder.embed_tokens.weight"),
        ("embed", "position"): Source("decoder.embed_positions.weight", skip=OFFSET),
    }
    if config.embedding_width:
        table["embed", "into", "weight"] = Source("decoder.project_in.weight")
        table["out_of", "weight"] = Source("decoder.project_out.weight")
    for ours, theirs in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}.items():
        table |= parts.linear(("layers", "attention", ours), f"{layer}self_attn.{theirs}", bias)
    for ours, theirs in {"up": "fc1", "down": "fc2"}.items():
        table |= parts.linear(("layers", "mlp", ours), layer + theirs, bias)
    table |= parts.norm(("layers", "attention_norm"), layer + "self_attn_layer_norm", True)
    table |= parts.norm(("layers", "mlp_norm"), layer + "final_layer_norm", True)
    if config.final_norm:
        table |= parts.norm(("final_norm",), "decoder.final_layer_norm", True)
    return table | parts.unembedding(config)


OPT = Family(
    parts.reads(
        "max_position_embeddings ffn_dim do_layer_norm_before _remove_final_layer_norm "
        "word_embed_proj_dim activation_function enable_bias layer_norm_elementwise_affine "
        "activation_dropout dropout init_std layerdrop",
        *parts.SIZES,
    ),
    _translate,
    _sources,
)

"""biogpt, opt and xglm from fairseq: positions added to the embeddings, layer norms."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import fields
from jaxscore.models.families.family import Family, Source, Table, linear, norm, unembedding

OFFSET = 2  # position of the first token
NORM_EPS = 1e-5  # PyTorch's default; the configs have none


def _biogpt(config: Any) -> DecoderConfig:
    """Learned positions, scaled embeddings; PyTorch's class does not read `layer_norm_eps`."""
    width = config.hidden_size
    return fields.gpt_decoder_config(
        config,
        mlp_width=config.intermediate_size,
        max_positions=config.max_position_embeddings,
        norm_eps=NORM_EPS,
        mlp_activation=fields.activation(config),
        learned_positions=True,
        embedding_scale=math.sqrt(width) if config.scale_embedding else 1.0,
        **fields.biases_everywhere(True),
    )


def _biogpt_sources(config: DecoderConfig) -> Table:
    table = _sources(config, "", "layer_norm", "output_projection")
    table["embed", "position"] = Source("embed_positions.weight", skip=OFFSET)
    return table


def _opt(config: Any) -> DecoderConfig:
    """Learned positions, norms before or after, optionally a narrower embedding."""
    fields.require(config, layer_norm_elementwise_affine=True)
    before, embedding = config.do_layer_norm_before, config.word_embed_proj_dim
    return fields.gpt_decoder_config(
        config,
        mlp_width=config.ffn_dim,
        max_positions=config.max_position_embeddings,
        norm_eps=NORM_EPS,
        norm_place="before" if before else "residual",
        mlp_activation=fields.activation(config, "activation_function"),
        learned_positions=True,
        embedding_width=embedding if embedding != config.hidden_size else 0,
        head_norm=before and not config._remove_final_layer_norm,
        **fields.biases_everywhere(config.enable_bias),
    )


def _xglm(config: Any) -> DecoderConfig:
    """Sinusoidal positions, scaled embeddings."""
    width = config.d_model
    if width < 4 or width % 2:
        raise InputError(f"d_model is {width}, expected an even number of at least 4")
    # PyTorch's class zeroes the sines of this position; no token has position 0 or 1.
    if (padding := getattr(config, "pad_token_id", None)) not in (None, 0, 1):
        raise InputError(
            f"pad_token_id is {padding!r}, and PyTorch's class zeroes the sines of that position; "
            "expected null, 0 or 1"
        )
    return fields.gpt_decoder_config(
        config,
        mlp_width=config.ffn_dim,
        max_positions=config.max_position_embeddings,
        norm_eps=NORM_EPS,
        mlp_activation=fields.activation(config, "activation_function"),
        sinusoidal_from=OFFSET,
        embedding_scale=math.sqrt(width) if config.scale_embedding else 1.0,
        **fields.biases_everywhere(True),
    )


def _sources(config: DecoderConfig, prefix: str, final_norm: str, head: str = "lm_head") -> Table:
    layer, bias = prefix + "layers.{i}.", config.attention.qkv_bias
    table: Table = {("embed", "token"): Source(prefix + "embed_tokens.weight")}
    for param, hf_name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}.items():
        table |= linear(("layers", "attention", param), f"{layer}self_attn.{hf_name}", bias)
    for param, hf_name in {"up": "fc1", "down": "fc2"}.items():
        table |= linear(("layers", "mlp", param), layer + hf_name, bias)
    table |= norm(("layers", "attention_norm"), layer + "self_attn_layer_norm", True)
    table |= norm(("layers", "mlp_norm"), layer + "final_layer_norm", True)
    if config.head.norm:
        table |= norm(("final_norm",), prefix + final_norm, True)
    return table | unembedding(config, head)


def _opt_sources(config: DecoderConfig) -> Table:
    table = _sources(config, "decoder.", "final_layer_norm")
    table["embed", "position"] = Source("decoder.embed_positions.weight", skip=OFFSET)
    if config.embedding.width:
        table["embed", "into", "weight"] = Source("decoder.project_in.weight")
        table["out_of", "weight"] = Source("decoder.project_out.weight")
    return table


# For training only
TRAINING = "activation_dropout dropout init_std layerdrop"

FAMILIES = {
    "biogpt": Family(
        fields.reads(
            "max_position_embeddings intermediate_size hidden_act scale_embedding layer_norm_eps",
            "activation_dropout attention_probs_dropout_prob hidden_dropout_prob layerdrop",
            *fields.SIZES,
        ),
        _biogpt,
        _biogpt_sources,
        prefix="biogpt.",
        head="output_projection.weight",
    ),
    "opt": Family(
        fields.reads(
            "max_position_embeddings ffn_dim do_layer_norm_before _remove_final_layer_norm",
            "word_embed_proj_dim activation_function enable_bias layer_norm_elementwise_affine",
            TRAINING,
            *fields.SIZES,
        ),
        _opt,
        _opt_sources,
    ),
    "xglm": Family(
        fields.reads(
            "vocab_size d_model num_layers attention_heads ffn_dim max_position_embeddings",
            "tie_word_embeddings activation_function scale_embedding",
            TRAINING,
        ),
        _xglm,
        lambda config: _sources(config, "", "layer_norm"),
        buffers=(r"embed_positions\.weights",),  # sines, which older versions stored
    ),
}

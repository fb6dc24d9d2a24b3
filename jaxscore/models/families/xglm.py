"""xglm: sines and cosines of positions added to scaled embeddings, layer norms, no gate."""

import math
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family, Source, Table

OFFSET = 2  # position of the first token


def _translate(config: Any) -> DecoderConfig:
    width = config.d_model
    if width < 4 or width % 2:
        raise InputError(f"d_model is {width}, expected an even number of at least 4")
    # PyTorch's class has zeros instead of the sines of this position; no token is at 0 and 1.
    if (padding := getattr(config, "pad_token_id", None)) not in (None, 0, 1):
        raise InputError(
            f"pad_token_id is {padding!r}, and so is a position whose sines would be zeros; "
            "expected null, 0 or 1"
        )
    return parts.decoder(
        config,
        mlp_width=config.ffn_dim,
        max_positions=config.max_position_embeddings,
        norm="layer",
        norm_bias=True,
        norm_eps=1e-5,  # torch's own; the config has none
        activation=parts.activation(config, "activation_function"),
        gated=False,
        sinusoidal_from=OFFSET,
        embedding_scale=math.sqrt(width) if config.scale_embedding else 1.0,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}."
    table: Table = {("embed", "token"): Source("embed_tokens.weight")}
    for ours, theirs in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}.items():
        table |= parts.linear(("layers", "attention", ours), f"{layer}self_attn.{theirs}", True)
    for ours, theirs in {"up": "fc1", "down": "fc2"}.items():
        table |= parts.linear(("layers", "mlp", ours), layer + theirs, True)
    table |= parts.norm(("layers", "attention_norm"), layer + "self_attn_layer_norm", True)
    table |= parts.norm(("layers", "mlp_norm"), layer + "final_layer_norm", True)
    return table | parts.norm(("final_norm",), "layer_norm", True) | parts.unembedding(config)


XGLM = Family(
    # The last line is for training.
    parts.reads(
        "vocab_size d_model num_layers attention_heads ffn_dim max_position_embeddings "
        "tie_word_embeddings activation_function scale_embedding",
        "activation_dropout dropout init_std layerdrop",
    ),
    _translate,
    _sources,
    buffers=(r"embed_positions\.weights",),  # the sines, as older versions store them
)

"""bloom: ALiBi, a norm after the embedding, a bias everywhere."""

from typing import Any

from jaxscore.device.attention.score_rule import Alibi
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import parts
from jaxscore.models.families.alibi import slopes
from jaxscore.models.families.family import Family, Source, Table
from jaxscore.models.families.gpt_neox import four_times, fused_by_head

MOST_POSITIONS = 131_072  # ALiBi itself has no end


def _translate(config: Any) -> DecoderConfig:
    parts.refuse(
        config,
        apply_residual_connection_post_layernorm=False,
        attention_softmax_in_fp32=True,
        offset_alibi=100,
        skip_bias_add=True,
        skip_bias_add_qkv=False,
    )
    if config.pretraining_tp > 1:
        parts.refuse(config, slow_but_exact=False)  # PyTorch leaves two biases out with it
    return parts.decoder(
        config,
        mlp_width=4 * config.hidden_size,
        max_positions=MOST_POSITIONS,
        norm="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_epsilon,
        activation="gelu_tanh",
        gated=False,
        alibi=Alibi(slopes(config.num_attention_heads)),
        embedding_norm=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "h.{i}."
    return (
        {("embed", "token"): Source("word_embeddings.weight")}
        | parts.norm(("embed", "norm"), "word_embeddings_layernorm", True)
        | parts.norm(("layers", "attention_norm"), layer + "input_layernorm", True)
        | parts.norm(("layers", "mlp_norm"), layer + "post_attention_layernorm", True)
        | fused_by_head(config, layer + "self_attention.", True)
        | four_times(layer, True)
        | parts.norm(("final_norm",), "ln_f", True)
        | parts.unembedding(config)
    )


BLOOM = Family(
    # The last two lines are of the code that trained it; PyTorch's class reads none of them.
    parts.reads(
        "vocab_size hidden_size n_layer n_head layer_norm_epsilon tie_word_embeddings "
        "apply_residual_connection_post_layernorm slow_but_exact hidden_dropout",
        "attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi "
        "seq_length skip_bias_add skip_bias_add_qkv unk_token_id",
    ),
    _translate,
    _sources,
    prefix="transformer.",
)

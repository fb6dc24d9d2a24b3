"""gpt2, gpt_neo and gptj: layer norms, a plain MLP, tensors under `h`."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import parts
from jaxscore.models.families.family import Family, Part, Source, Table
from jaxscore.models.rope import rotary

BUFFERS = (r"h\.\d+\.attn\.(attention\.)?(bias|masked_bias)",)


def _gpt(config: Any, **own: Any) -> DecoderConfig:
    return parts.decoder(
        config,
        **{
            "max_positions": config.max_position_embeddings,
            "norm": "layer",
            "norm_bias": True,
            "norm_eps": config.layer_norm_epsilon,
            "activation": parts.activation(config, "activation_function"),
            "gated": False,
            "mlp_bias": True,
            **own,
        },
    )


def _gpt2(config: Any) -> DecoderConfig:
    parts.refuse(config, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    width = parts.head_width(config)
    return _gpt(
        config,
        mlp_width=config.n_inner or 4 * config.n_embd,
        learned_positions=True,
        attention_scale=width**-0.5 if config.scale_attn_weights else 1.0,
        qkv_bias=True,
        out_bias=True,
    )


def _gpt_neo(config: Any) -> DecoderConfig:
    """Scores are not scaled; a window in the layers that are called local."""
    kinds = {"global": 0, "local": parts.window(config, "window_size")}
    layers = parts.for_each_layer(config, "attention_layers")
    if unknown := sorted(set(layers) - set(kinds)):
        raise InputError(f"attention_layers has {unknown}, which is not handled")
    return _gpt(
        config,
        mlp_width=config.intermediate_size or 4 * config.hidden_size,
        learned_positions=True,
        attention_scale=1.0,
        out_bias=True,
        windows=tuple(kinds[kind] for kind in layers),
    )


def _gptj(config: Any) -> DecoderConfig:
    parts.refuse(config, rotary=True, scale_attn_weights=True)
    if not config.rotary_dim:
        raise InputError(f"rotary_dim is {config.rotary_dim!r}, expected a number of channels")
    return _gpt(
        config,
        mlp_width=config.n_inner or 4 * config.n_embd,
        parallel="shared",
        head_bias=True,
        interleaved=True,
        rotary=(rotary(config.rotary_dim, 10000.0, None, config.n_positions),),
        rotary_of=(0,) * config.n_layer,
    )


def _sources(config: DecoderConfig, mlp: tuple[str, str] = ("c_fc", "c_proj")) -> Table:
    """All but attention."""
    layer, conv = "h.{i}.", config.qkv_bias  # of the three gpt2 alone stores [in, out]
    table: Table = {("embed", "token"): Source("wte.weight")}
    table |= parts.norm(("layers", "attention_norm"), layer + "ln_1", True)
    table |= parts.norm(("final_norm",), "ln_f", True)
    if config.learned_positions:
        table["embed", "position"] = Source("wpe.weight")
    if config.parallel == "no":
        table |= parts.norm(("layers", "mlp_norm"), layer + "ln_2", True)
    for ours, theirs in zip(("up", "down"), mlp, strict=True):
        name = f"{layer}mlp.{theirs}"
        table |= parts.linear(("layers", "mlp", ours), name, True, transposed=conv)
    return table | parts.unembedding(config)


def _gpt2_sources(config: DecoderConfig) -> Table:
    table, at, layer = _sources(config), ("layers", "attention"), "h.{i}.attn."
    for k, name in enumerate("qkv"):
        part = Part(1, 3, k, k + 1)
        table |= parts.linear((*at, name), layer + "c_attn", True, part=part, transposed=True)
    return table | parts.linear((*at, "out"), layer + "c_proj", True, transposed=True)


def _projected(layer: str, out_bias: bool) -> Table:
    at = ("layers", "attention")
    table: Table = parts.linear((*at, "out"), layer + "out_proj", out_bias)
    for name in "qkv":
        table |= parts.linear((*at, name), f"{layer}{name}_proj", False)
    return table


GPT2 = Family(
    # reorder_and_upcast_attn changes rounding in half precision only; ours is float32 anyway.
    parts.reads(
        "vocab_size n_positions n_embd n_layer n_head n_inner activation_function "
        "layer_norm_epsilon scale_attn_weights scale_attn_by_inverse_layer_idx "
        "reorder_and_upcast_attn add_cross_attention tie_word_embeddings"
    ),
    _gpt2,
    _gpt2_sources,
    prefix="transformer.",
    buffers=BUFFERS,
)
GPT_NEO = Family(
    parts.reads(
        "vocab_size max_position_embeddings hidden_size num_layers num_heads intermediate_size "
        "attention_types attention_layers window_size activation_function layer_norm_epsilon "
        "tie_word_embeddings embed_dropout resid_dropout"
    ),
    _gpt_neo,
    lambda config: _sources(config) | _projected("h.{i}.attn.attention.", True),
    prefix="transformer.",
    buffers=BUFFERS,
)
GPTJ = Family(
    parts.reads(
        "vocab_size n_positions n_embd n_layer n_head n_inner rotary rotary_dim "
        "activation_function layer_norm_epsilon scale_attn_weights tie_word_embeddings"
    ),
    _gptj,
    lambda config: _sources(config, ("fc_in", "fc_out")) | _projected("h.{i}.attn.", False),
    prefix="transformer.",
    buffers=BUFFERS,
)

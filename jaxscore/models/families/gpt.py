"""codegen, gpt2, gpt_bigcode, gpt_neo and gptj: layer norms, an ungated MLP, tensors under `h`."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.families import fields, fused_qkv
from jaxscore.models.families.family import Family, Part, Source, Table, linear, norm, unembedding
from jaxscore.models.rope import rotary

CODEGEN_PARTS = 4  # one for each accelerator that a model was trained on
BUFFERS = (r"h\.\d+\.attn\.(attention\.)?(bias|masked_bias|causal_mask)",)


def _gptlike(config: Any, **overrides: Any) -> DecoderConfig:
    return fields.gpt_decoder_config(
        config,
        max_positions=config.max_position_embeddings,
        norm_eps=config.layer_norm_epsilon,
        mlp_activation=fields.activation(config, "activation_function"),
        mlp_bias=True,
        **overrides,
    )


def _sources(
    config: DecoderConfig, mlp: tuple[str, str] = ("c_fc", "c_proj"), *, transposed: bool = False
) -> Table:
    """Return the sources of all tensors except attention's.

    Args:
        mlp: names of the two projections of the MLP.
        transposed: if True, the projections are stored [in, out].
    """
    layer = "h.{i}."
    table: Table = {("embed", "token"): Source("wte.weight")}
    table |= norm(("layers", "attention_norm"), layer + "ln_1", True)
    table |= norm(("final_norm",), "ln_f", True)
    if config.positions.learned_positions:
        table["embed", "position"] = Source("wpe.weight")
    if config.residual.parallel == "no":
        table |= norm(("layers", "mlp_norm"), layer + "ln_2", True)
    for param, hf_name in zip(("up", "down"), mlp, strict=True):
        name = f"{layer}mlp.{hf_name}"
        table |= linear(("layers", "mlp", param), name, True, transposed=transposed)
    return table | unembedding(config)


def _attention_sources(layer: str, out_bias: bool) -> Table:
    """Return the sources of attention with a tensor per projection; the output may have a bias."""
    at = ("layers", "attention")
    table = linear((*at, "out"), layer + "out_proj", out_bias)
    for name in "qkv":
        table |= linear((*at, name), f"{layer}{name}_proj", False)
    return table


def _with_positions(config: Any) -> DecoderConfig:
    """Learned positions, biases everywhere, optionally scaled scores."""
    width = fields.head_width(config)
    return _gptlike(
        config,
        mlp_width=config.n_inner or 4 * config.n_embd,
        learned_positions=True,
        score_scale=width**-0.5 if config.scale_attn_weights else 1.0,
        qkv_bias=True,
        out_bias=True,
    )


def _gpt2(config: Any) -> DecoderConfig:
    """Learned positions; queries, keys and values in one tensor."""
    fields.require(config, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return _with_positions(config)


def _gpt2_sources(config: DecoderConfig) -> Table:
    table, at, layer = _sources(config, transposed=True), ("layers", "attention"), "h.{i}.attn."
    for k, name in enumerate("qkv"):
        rows = Part(1, 3, k, k + 1)
        table |= linear((*at, name), layer + "c_attn", True, part=rows, transposed=True)
    return table | linear((*at, "out"), layer + "c_proj", True, transposed=True)


def _gpt_bigcode(config: Any) -> DecoderConfig:
    """One KV head for all query heads, or one for each."""
    fields.require(config, add_cross_attention=False)
    return _with_positions(config)


def _gpt_bigcode_sources(config: DecoderConfig) -> Table:
    layer = "h.{i}.attn."
    attention = fused_qkv.attention_sources(config, layer + "c_attn", layer + "c_proj", True)
    return _sources(config) | attention


def _gpt_neo(config: Any) -> DecoderConfig:
    """Unscaled attention scores; layers of type "local" have a window."""
    windows = {"global": 0, "local": fields.window_size(config, "window_size")}
    layers = fields.per_layer_values(config, "attention_layers")
    if unknown := sorted(set(layers) - set(windows)):
        raise InputError(f"attention_layers has {unknown}, which is not handled")
    return _gptlike(
        config,
        mlp_width=config.intermediate_size or 4 * config.hidden_size,
        learned_positions=True,
        score_scale=1.0,
        out_bias=True,
        windows=tuple(windows[layer_type] for layer_type in layers),
    )


def _gptj(config: Any) -> DecoderConfig:
    """Rotary pairs of adjacent channels, attention and MLP in parallel, a bias in the head."""
    fields.require(config, rotary=True, scale_attn_weights=True)
    if not config.rotary_dim:
        raise InputError(f"rotary_dim is {config.rotary_dim!r}, expected a number of channels")
    return _gptlike(
        config,
        mlp_width=config.n_inner or 4 * config.n_embd,
        parallel="shared",
        head_bias=True,
        interleaved=True,
        rotary=(rotary(config.rotary_dim, {"rope_theta": 10000.0}),),
        rotary_of=(0,) * config.n_layer,
    )


def _codegen(config: Any) -> DecoderConfig:
    """gptj with fused queries, values and keys in four parts, each of neighbouring heads."""
    if config.n_head % CODEGEN_PARTS:
        raise InputError(f"n_head is {config.n_head}, expected a multiple of {CODEGEN_PARTS}")
    return _gptj(config)


def _codegen_sources(config: DecoderConfig) -> Table:
    at, layer = ("layers", "attention"), "h.{i}.attn."
    table = _sources(config, ("fc_in", "fc_out")) | linear((*at, "out"), layer + "out_proj", False)
    for k, name in enumerate("qvk"):
        rows = Part(CODEGEN_PARTS, 3, k, k + 1)
        table |= linear((*at, name), layer + "qkv_proj", False, part=rows)
    return table


READS = "vocab_size activation_function layer_norm_epsilon tie_word_embeddings"
GPT2_SIZES = "n_positions n_embd n_layer n_head n_inner scale_attn_weights"
NAMES: dict[str, Any] = {"prefix": "transformer.", "buffers": BUFFERS}

FAMILIES = {
    "codegen": Family(
        fields.reads(
            READS, "n_positions n_embd n_layer n_head n_inner rotary_dim scale_attn_weights"
        ),
        _codegen,
        _codegen_sources,
        **NAMES,
    ),
    "gpt2": Family(
        # reorder_and_upcast_attn changes rounding in half precision only; ours is float32 anyway.
        fields.reads(
            READS,
            GPT2_SIZES,
            "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn add_cross_attention",
        ),
        _gpt2,
        _gpt2_sources,
        **NAMES,
    ),
    "gpt_bigcode": Family(
        # The `*softmax_in_fp32` change rounding in half precision only; ours is float32 anyway.
        fields.reads(
            READS,
            GPT2_SIZES,
            "multi_query add_cross_attention attention_softmax_in_fp32",
            "scale_attention_softmax_in_fp32 num_key_value_heads",
            # For an inference program that StarCoder was released with
            "inference_runner pad_key_length validate_runner_input",
        ),
        _gpt_bigcode,
        _gpt_bigcode_sources,
        **NAMES,
    ),
    "gpt_neo": Family(
        fields.reads(
            READS,
            "max_position_embeddings hidden_size num_layers num_heads intermediate_size",
            "attention_types attention_layers window_size embed_dropout resid_dropout",
        ),
        _gpt_neo,
        lambda config: _sources(config) | _attention_sources("h.{i}.attn.attention.", True),
        **NAMES,
    ),
    "gptj": Family(
        fields.reads(READS, GPT2_SIZES, "rotary rotary_dim"),
        _gptj,
        lambda config: (
            _sources(config, ("fc_in", "fc_out")) | _attention_sources("h.{i}.attn.", False)
        ),
        **NAMES,
    ),
}

"""Llama-like families with layer norms: cohere, cohere2, nemotron, phi, stablelm, starcoder2."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.models.families import fields, llama
from jaxscore.models.families.family import Source, Table, layer_norms, linear, norm, unembedding

NEMOTRON_PLUS = 1.0  # checkpoints store the scale of norms minus one


def _coherelike(config: Any, **overrides: Any) -> DecoderConfig:
    """One layer norm without bias per layer; attention and MLP in parallel."""
    return llama.llama_config(
        config,
        norm_kind="layer",
        norm_eps=config.layer_norm_eps,
        parallel="shared",
        interleaved=True,
        head_scale=config.logit_scale,
        **fields.biases(config),
        **overrides,
    )


def _cohere(config: Any) -> DecoderConfig:
    return _coherelike(config, qk_norm_kind="heads" if config.use_qk_norm else "")


def _cohere2(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings; the others are NoPE."""
    # Command R7B has these values; PyTorch's class reads none of them.
    fields.require(
        config,
        layer_switch=config.sliding_window_pattern,
        order_of_interleaved_layers="local_attn_first",
        position_embedding_type="rope_gptj",
        rotary_pct=1.0,
        use_embedding_sharing=config.tie_word_embeddings,
        use_gated_activation=True,
        use_parallel_block=True,
        use_parallel_embedding=False,
    )
    windows = fields.windows_by_layer_type(config)
    rotary = fields.rotary_in_layers(config, map(bool, windows))
    return _coherelike(config, windows=windows, **rotary)


def _cohere_sources(config: DecoderConfig) -> Table:
    return llama.sources(config) | (
        llama.qk_norm_sources(config) if config.attention.qk_norm.kind else {}
    )


def _nemotron(config: Any) -> DecoderConfig:
    """Ungated MLP with a squared ReLU."""
    fields.require_rope_type(config, "default")
    # Published configs have these values; PyTorch's class reads neither.
    fields.require(config, kv_channels=fields.head_width(config), layer_norm_eps=config.norm_eps)
    return llama.llama_config(
        config,
        norm_kind="layer",
        norm_bias=True,
        norm_eps=config.norm_eps,
        mlp_gated=False,
        **fields.biases(config),
    )


def _nemotron_sources(config: DecoderConfig) -> Table:
    return (
        llama.embedding_sources(config, NEMOTRON_PLUS)
        | llama.pre_norm_sources(config, NEMOTRON_PLUS)
        | llama.attention_sources(config)
        | llama.mlp_sources(config)
    )


def _phi(config: Any) -> DecoderConfig:
    """One norm per layer, attention and ungated MLP in parallel, biases everywhere."""
    return llama.llama_config(
        config,
        norm_kind="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_eps,
        parallel="shared",
        mlp_gated=False,
        head_bias=True,
        qk_norm_kind="head" if config.qk_layernorm else "",
        qk_norm_bias=True,
        **fields.biases_everywhere(True),
    )


def _phi_sources(config: DecoderConfig) -> Table:
    layer, at = "layers.{i}.", ("layers", "attention")
    table: Table = {("embed", "token"): Source("embed_tokens.weight")}
    table |= norm(("final_norm",), "final_layernorm", True)
    table |= layer_norms({"attention_norm": "input_layernorm"}, bias=True)
    for param, hf_name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "dense"}.items():
        table |= linear((*at, param), f"{layer}self_attn.{hf_name}", True)
    for param, hf_name in {"up": "fc1", "down": "fc2"}.items():
        table |= linear(("layers", "mlp", param), f"{layer}mlp.{hf_name}", True)
    if config.attention.qk_norm.kind:
        for name in "qk":
            table |= norm((*at, f"{name}_norm"), f"{layer}self_attn.{name}_layernorm", True)
    return table | unembedding(config)


def _stablelm(config: Any) -> DecoderConfig:
    """Partial rotary embeddings; attention and MLP optionally in parallel."""
    return llama.llama_config(
        config,
        norm_kind="layer",
        norm_bias=True,
        norm_eps=config.layer_norm_eps,
        parallel="shared" if config.use_parallel_residual else "no",
        qk_norm_kind="heads" if config.qk_layernorm else "",
        qkv_bias=config.use_qkv_bias,
    )


def _stablelm_sources(config: DecoderConfig) -> Table:
    table = llama.sources(config)
    if config.attention.qk_norm.kind:
        for name in "qk":
            path = ("layers", "attention", f"{name}_norm", "scale")
            table[path] = Source(f"layers.{{i}}.self_attn.{name}_layernorm.norms.{{j}}.weight")
    return table


def _starcoder2(config: Any) -> DecoderConfig:
    """Ungated MLP, biases everywhere or nowhere."""
    # Published configs have these values; PyTorch's class reads none of them.
    fields.require(
        config,
        activation_function="gelu",
        attention_softmax_in_fp32=True,
        layer_norm_epsilon=config.norm_epsilon,
        mlp_type="default",
        norm_type="layer_norm",
        scale_attention_softmax_in_fp32=True,
        scale_attn_weights=True,
    )
    return llama.llama_config(
        config,
        norm_kind="layer",
        norm_bias=True,
        norm_eps=config.norm_epsilon,
        mlp_gated=False,
        windows=fields.uniform_window(config),
        **fields.biases_everywhere(config.use_bias),
    )


def _starcoder2_sources(config: DecoderConfig) -> Table:
    layer, at = "layers.{i}.mlp.", ("layers", "mlp")
    return (
        llama.sources_without_mlp(config)
        | linear((*at, "up"), layer + "c_fc", config.mlp.bias)
        | linear((*at, "down"), layer + "c_proj", config.mlp.bias)
    )


COHERE_READS = "attention_bias logit_scale"

FAMILIES = {
    "cohere": llama.family(
        _cohere,
        COHERE_READS,
        "use_qk_norm model_max_length",
        sources=_cohere_sources,
        norm_eps="layer_norm_eps",
    ),
    "cohere2": llama.family(
        _cohere2,
        COHERE_READS,
        "head_dim layer_types sliding_window sliding_window_pattern cache_implementation",
        "layer_switch order_of_interleaved_layers position_embedding_type rotary_pct",
        "use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding",
        sources=_cohere_sources,
        norm_eps="layer_norm_eps",
    ),
    "nemotron": llama.family(
        _nemotron,
        "head_dim attention_bias mlp_bias kv_channels layer_norm_eps",
        sources=_nemotron_sources,
        norm_eps="norm_eps",
    ),
    "phi": llama.family(_phi, "qk_layernorm", sources=_phi_sources, norm_eps="layer_norm_eps"),
    "stablelm": llama.family(
        _stablelm,
        "use_qkv_bias qk_layernorm use_parallel_residual hidden_dropout",
        sources=_stablelm_sources,
        norm_eps="layer_norm_eps",
    ),
    "starcoder2": llama.family(
        _starcoder2,
        "use_bias sliding_window embedding_dropout residual_dropout activation_function",
        "attention_softmax_in_fp32 layer_norm_epsilon mlp_type norm_type",
        "scale_attention_softmax_in_fp32 scale_attn_weights",
        sources=_starcoder2_sources,
        norm_eps="norm_epsilon",
    ),
}

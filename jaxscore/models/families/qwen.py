"""qwen2 and qwen3, and their mixtures of experts."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import llamalike, mixture_sources, mixtures, parts
from jaxscore.models.families.family import Family, Table

WINDOWS = "layer_types sliding_window use_sliding_window max_window_layers"
MOE_WINDOWS = "sliding_window use_sliding_window max_window_layers"
MIXTURE = (
    "moe_intermediate_size num_experts num_experts_per_tok norm_topk_prob decoder_sparse_step "
    f"mlp_only_layers {mixtures.TRAINING}"
)


def _qwen2(config: Any) -> DecoderConfig:
    """Biases on queries, keys and values alone."""
    return llamalike.llamalike(config, qkv_bias=True, windows=parts.windows_of_types(config))


def _qwen3(config: Any) -> DecoderConfig:
    return llamalike.llamalike(
        config,
        qk_norm="head",
        windows=parts.windows_of_types(config),
        **llamalike.biases(config),
    )


def _mixture(config: Any, shared_width: int, **own: Any) -> DecoderConfig:
    """All layers are mixtures; those that mix kinds of layers are refused."""
    parts.refuse(config, decoder_sparse_step=1, mlp_only_layers=[])
    experts = Experts(
        config.num_experts, config.num_experts_per_tok, config.norm_topk_prob, shared_width
    )
    return llamalike.llamalike(
        config,
        mlp_width=config.moe_intermediate_size,
        experts=mixtures.check_counts(experts),
        **own,
    )


def _qwen2_moe(config: Any) -> DecoderConfig:
    # Its class windows the first layers up to `max_window_layers`, the opposite of qwen2's.
    parts.refuse(config, use_sliding_window=False)
    if config.layer_types != ["full_attention"] * config.num_hidden_layers:
        raise InputError(
            f"layer_types is {config.layer_types!r}, handled is 'full_attention' for each layer"
        )
    return _mixture(config, config.shared_expert_intermediate_size, qkv_bias=config.qkv_bias)


def _qwen3_moe(config: Any) -> DecoderConfig:
    own = llamalike.biases(config)
    return _mixture(config, 0, qk_norm="head", windows=parts.window_everywhere(config), **own)


def qk_norms(config: DecoderConfig, plus: float = 0.0) -> Table:
    """Norms of queries and keys, as several families have them."""
    at, layer = ("layers", "attention"), "layers.{i}.self_attn."
    return parts.norm((*at, "q_norm"), layer + "q_norm", config.qk_norm_bias, plus) | parts.norm(
        (*at, "k_norm"), layer + "k_norm", config.qk_norm_bias, plus
    )


def _sources(config: DecoderConfig) -> Table:
    table: Table = llamalike.ends(config) | llamalike.norms_before(config)
    table |= llamalike.attention_sources(config)
    if config.qk_norm:
        table |= qk_norms(config)
    if config.experts is None:
        return table | llamalike.mlp_sources(config)
    layer = "layers.{i}.mlp."
    table |= mixture_sources.router(config, layer + "gate")
    table |= mixture_sources.experts_apart(config, layer)
    table |= mixture_sources.shared(config, layer + "shared_expert.")
    if config.experts.shared_width:
        at = ("layers", "mlp", "shared_gate")
        table |= parts.linear(at, layer + "shared_expert_gate", False)
    return table


def _family(translate: Any, *reads: str) -> Family:
    return Family(
        llamalike.READS | parts.reads(*reads), translate, _sources, buffers=(parts.INV_FREQ,)
    )


QWEN2 = _family(_qwen2, WINDOWS)
QWEN3 = _family(_qwen3, WINDOWS, "head_dim attention_bias")
QWEN2_MOE = _family(_qwen2_moe, WINDOWS, MIXTURE, "qkv_bias shared_expert_intermediate_size")
QWEN3_MOE = _family(_qwen3_moe, MOE_WINDOWS, MIXTURE, "head_dim attention_bias")

"""qwen2 and qwen3, their mixtures of experts, mellum, and hunyuan_v1, dense and with experts."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table, linear, norm


def _qwen2(config: Any) -> DecoderConfig:
    """Biases on queries, keys and values only."""
    windows = fields.windows_by_layer_type(config)
    return llama.llama_config(config, qkv_bias=True, windows=windows)


def _qwen3(config: Any) -> DecoderConfig:
    """Norms of each head's queries and keys."""
    windows = fields.windows_by_layer_type(config)
    return llama.llama_config(config, qk_norm_kind="head", windows=windows, **fields.biases(config))


def _mixture(config: Any, shared_width: int, **overrides: Any) -> DecoderConfig:
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=config.norm_topk_prob,
        shared_width=shared_width,
    )
    width, plain = config.moe_intermediate_size, mixtures.layers_between_steps(config)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        **overrides,
    )


def _qwen2_moe(config: Any) -> DecoderConfig:
    # Its class windows the first layers up to `max_window_layers`, the opposite of qwen2's.
    fields.require(config, use_sliding_window=False)
    if config.layer_types != ["full_attention"] * config.num_hidden_layers:
        raise InputError(
            f"layer_types is {config.layer_types!r}, handled is 'full_attention' for each layer"
        )
    return _mixture(config, config.shared_expert_intermediate_size, qkv_bias=config.qkv_bias)


def _qwen3_moe(config: Any) -> DecoderConfig:
    # Qwen3-Coder-480B has these; PyTorch's class reads neither.
    fields.require(config, shared_expert_intermediate_size=0, use_qk_norm=True)
    windows = fields.uniform_window(config)
    return _mixture(config, 0, qk_norm_kind="head", windows=windows, **fields.biases(config))


def _mellum(config: Any) -> DecoderConfig:
    """qwen3_moe with plain layers, and rotary frequencies per layer type."""
    # Released configs have it; the windows are in `layer_types`.
    fields.require(config, use_sliding_window=True)
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=config.norm_topk_prob,
    )
    width, plain = config.moe_intermediate_size, mixtures.dense_layers(config)
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.intermediate_size),
        **fields.rotary_by_layer_type(config),
        qk_norm_kind="head",
        windows=fields.windows_by_layer_type(config),
        **fields.biases(config),
    )


def _mellum_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    return mixtures.sources(config, attention)


def _sources(config: DecoderConfig) -> Table:
    table = llama.embedding_sources(config) | llama.pre_norm_sources(config)
    table |= llama.attention_sources(config)
    if config.attention.qk_norm.kind:
        table |= llama.qk_norm_sources(config)
    table |= mixtures.plain_mlp_sources(config)
    layer = "layers.{i}.mlp."
    table |= mixtures.router_sources(config, layer + "gate")
    # Files of Qwen3-VL have all experts of a layer in two tensors, transposed until transformers 5.
    table |= mixtures.expert_sources(config, layer, transposed=None)
    table |= mixtures.shared_expert_sources(config, layer + "shared_expert.")
    if config.experts is not None and config.experts.shared.width:
        at, layers = mixtures.mlp_path(config), mixtures.split_layers(config)[0]
        table |= linear((*at, "shared_gate"), layer + "shared_expert_gate", False, layers=layers)
    return table


def _hunyuan(config: Any, **overrides: Any) -> DecoderConfig:
    """Norms of queries and keys after the rotation."""
    # Published configs have these values; PyTorch's class reads none of them.
    fields.require(
        config,
        attention_head_dim=fields.head_width(config),
        norm_type="rms",
        use_qk_norm=True,
        use_rotary_pos_emb=True,
    )
    return llama.llama_config(
        config, qk_norm_kind="head", qk_norm_after_rotary=True, **fields.biases(config), **overrides
    )


def _uniform(config: Any, name: str) -> int:
    """Return an attribute that is a number, or a list with the same number for each layer.

    Raises:
        InputError: the numbers differ.
    """
    value = getattr(config, name)
    layers = fields.per_layer_values(config, name) if isinstance(value, list) else [value]
    if len(set(layers)) != 1 or type(layers[0]) is not int:
        raise InputError(f"{name} is {str(value)[:60]}, expected one number for all layers")
    number: int = layers[0]
    return number


def _hunyuan_moe(config: Any) -> DecoderConfig:
    """Experts and a shared MLP of the same width in every layer."""
    # Hunyuan-A13B has these values; PyTorch's class reads none of them.
    n = config.num_hidden_layers
    fields.require(
        config,
        moe_intermediate_size=[config.intermediate_size] * n,
        moe_layer_num_skipped=0,
        norm_topk_prob=True,
        num_shared_expert=[1] * n,
        routed_scaling_factor=1.0,
        use_mixed_mlp_moe=True,
    )
    experts = Experts.of(
        count=config.num_experts,
        per_token=_uniform(config, "moe_topk"),
        router_renormalised=True,
        shared_width=config.intermediate_size,
        shared_gated=False,
    )
    return _hunyuan(config, experts=mixtures.check_counts(experts, "moe_topk"))


def _hunyuan_sources(config: DecoderConfig) -> Table:
    at, layer = ("layers", "attention"), "layers.{i}.self_attn."
    return (
        llama.sources(config)
        | norm((*at, "q_norm"), layer + "query_layernorm", False)
        | norm((*at, "k_norm"), layer + "key_layernorm", False)
    )


def _hunyuan_moe_sources(config: DecoderConfig) -> Table:
    mlp = "layers.{i}.mlp."
    table = {path: source for path, source in _hunyuan_sources(config).items() if "mlp" not in path}
    return (
        table
        | mixtures.router_sources(config, mlp + "gate.wg")
        | mixtures.expert_sources(config, mlp)
        | mixtures.shared_expert_sources(config, mlp + "shared_mlp.")
    )


WINDOWS = "sliding_window use_sliding_window max_window_layers"
MIXTURE = (
    "moe_intermediate_size num_experts num_experts_per_tok norm_topk_prob decoder_sparse_step "
    f"mlp_only_layers {mixtures.TRAINING}"
)
# Attributes of Hunyuan's published configs that PyTorch's class does not read
HUNYUAN_UNREAD = (
    "cla_share_factor class_num dense_list eod_token_id im_end_id im_newline_id im_start_id "
    "mask_init_id num_media_embeds org_vocab_size pad_id pool_type text_end_id text_start_id "
    # of an image tower, which the released files lack
    "anyres_pooling_size anyres_vit_max_image_size image_token_id video_end_id video_start_id "
    "vit_add_patchemb_bias vit_input_resolution vit_mapping_type vit_norm_type vit_patch vit_path "
    "vit_remove_prenorm vit_token vit_type vit_used_rms_norm"
)
HUNYUAN_READS = (
    "head_dim attention_bias attention_head_dim norm_type use_qk_norm use_rotary_pos_emb"
)

FAMILIES = {
    "hunyuan_v1_dense": llama.family(
        _hunyuan,
        HUNYUAN_READS,
        HUNYUAN_UNREAD,
        sources=_hunyuan_sources,
    ),
    "hunyuan_v1_moe": llama.family(
        _hunyuan_moe,
        HUNYUAN_READS,
        HUNYUAN_UNREAD,
        "num_experts moe_topk moe_intermediate_size moe_layer_num_skipped norm_topk_prob",
        "num_shared_expert routed_scaling_factor use_mixed_mlp_moe output_router_logits",
        sources=_hunyuan_moe_sources,
    ),
    "mellum": llama.family(
        _mellum,
        "attention_bias head_dim layer_types mlp_layer_types mtp_layer_types",
        WINDOWS,
        "moe_intermediate_size mtp_mlp_layer_types norm_topk_prob num_experts num_experts_per_tok",
        mixtures.NEXT_TOKENS,
        mixtures.TRAINING,
        sources=_mellum_sources,
        unread=lambda config: (r"mtp\..+",),
        next_tokens=True,
    ),
    "qwen2": llama.family(_qwen2, WINDOWS, "layer_types", sources=_sources),
    "qwen3": llama.family(_qwen3, WINDOWS, "layer_types head_dim attention_bias", sources=_sources),
    "qwen2_moe": llama.family(
        _qwen2_moe,
        WINDOWS,
        MIXTURE,
        "layer_types qkv_bias shared_expert_intermediate_size",
        sources=_sources,
    ),
    "qwen3_moe": llama.family(
        _qwen3_moe,
        WINDOWS,
        MIXTURE,
        "head_dim attention_bias shared_expert_intermediate_size use_qk_norm",
        sources=_sources,
    ),
}

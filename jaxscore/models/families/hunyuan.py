"""hunyuan_v1_dense and hunyuan_v1_moe: norms of queries and keys after the rotation."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table, norm

# Attributes of published configs that PyTorch's class does not read
UNREAD = (
    "cla_share_factor class_num dense_list eod_token_id im_end_id im_newline_id im_start_id "
    "mask_init_id num_media_embeds org_vocab_size pad_id pool_type text_end_id text_start_id"
)
READS = "head_dim attention_bias attention_head_dim norm_type use_qk_norm use_rotary_pos_emb"


def _hunyuan(config: Any, **own: Any) -> DecoderConfig:
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
        config, qk_norm="head", qk_norm_turned=True, **fields.biases(config), **own
    )


def _uniform(config: Any, name: str) -> int:
    """Attribute that is a number, or a list with the same number for each layer.

    Raises:
        InputError: numbers that differ.
    """
    found = getattr(config, name)
    layers = fields.per_layer_values(config, name) if isinstance(found, list) else [found]
    if len(set(layers)) != 1 or type(layers[0]) is not int:
        raise InputError(f"{name} is {str(found)[:60]}, expected one number for all layers")
    number: int = layers[0]
    return number


def _hunyuan_moe(config: Any) -> DecoderConfig:
    """Experts beside an MLP of their width in every layer."""
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
    experts = Experts(
        config.num_experts,
        _uniform(config, "moe_topk"),
        renormalised=True,
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


FAMILIES = {
    "hunyuan_v1_dense": llama.family(
        _hunyuan,
        READS,
        UNREAD,
        sources=_hunyuan_sources,
    ),
    "hunyuan_v1_moe": llama.family(
        _hunyuan_moe,
        READS,
        UNREAD,
        "num_experts moe_topk moe_intermediate_size moe_layer_num_skipped norm_topk_prob",
        "num_shared_expert routed_scaling_factor use_mixed_mlp_moe output_router_logits",
        sources=_hunyuan_moe_sources,
    ),
}

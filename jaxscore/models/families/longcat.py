"""longcat_flash: two layers of latent attention and MLP in one, with experts beside both.

Each of its layers is two of ours. The experts read what the first MLP reads, and what they give is
added after the second MLP (arXiv 2509.01322). Some experts give what they read.
"""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.errors import InputError
from jaxscore.models.families import deepseek, fields, llama, mixtures
from jaxscore.models.families.family import Table, norm

# Attributes of released configs, at the values that PyTorch's class computes
RELEASED: dict[str, Any] = {
    "attention_method": "MLA",
    "mla_scale_kv_lora": True,
    "mla_scale_q_lora": True,
    "router_bias": False,
    "zero_expert_type": "identity",
}


def _longcat_flash(config: Any) -> DecoderConfig:
    fields.require(config, **RELEASED)
    for name in ("q_lora_rank", "kv_lora_rank"):
        if type(rank := getattr(config, name)) is not int or rank < 1:
            raise InputError(f"{name} is {rank!r}, expected a number of at least 1")
    own = deepseek.latent_fields(config)
    own["latent"] = own["latent"]._replace(
        query_factor=(config.hidden_size / config.q_lora_rank) ** 0.5,
        factor=(config.hidden_size / config.kv_lora_rank) ** 0.5,
    )
    experts = Experts(
        config.n_routed_experts,
        config.moe_topk,
        renormalised=False,
        shared_width=config.ffn_hidden_size,
        shared_gated=False,
        corrected=True,
        scale=config.routed_scaling_factor,
        identities=config.zero_expert_num or 0,
        late=True,
    )
    width, plain = config.expert_ffn_hidden_size, tuple(range(1, config.num_hidden_layers, 2))
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, width, plain, config.ffn_hidden_size, "moe_topk"),
        **own,
        interleaved=True,
    )


def _sources(config: DecoderConfig) -> Table:
    layer = "layers.{pair}."
    first, second = mixtures.split_layers(config)
    table = llama.embedding_sources(config)
    table |= deepseek.attention_sources(config, layer + "self_attn.{side}.")
    for ours, theirs in {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
    }.items():
        table |= norm(("layers", ours), f"{layer}{theirs}.{{side}}", False)
    mlp = layer + "mlps.{side}."
    table |= mixtures.mlp_sources(config, ("mlps", "main", "shared"), mlp, first)
    table |= mixtures.mlp_sources(config, ("mlps", "other"), mlp, second)
    router = layer + "mlp.router."
    table |= mixtures.router_sources(
        config, router + "classifier", router + "e_score_correction_bias"
    )
    return table | mixtures.separate_expert_sources(config, layer + "mlp.")


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    """Layers that predict further tokens, and products of experts that have none, which
    transformers 5 writes."""
    assert config.experts is not None
    count = config.experts.count
    without = "|".join(map(str, range(count, count + config.experts.identities)))
    products = rf"layers\.\d+\.mlp\.experts\.({without})\.(gate|up)_proj\.weight"
    return (r"mtp\..*", products) if without else (r"mtp\..*",)


FAMILIES = {
    "longcat_flash": llama.family(
        _longcat_flash,
        "attention_bias num_layers ffn_hidden_size expert_ffn_hidden_size q_lora_rank",
        "kv_lora_rank qk_nope_head_dim qk_rope_head_dim qk_head_dim head_dim v_head_dim moe_topk",
        "n_routed_experts zero_expert_num routed_scaling_factor output_router_logits",
        *RELEASED,
        sources=_sources,
        unread=_unread,
        lacks="intermediate_size",
    )
}

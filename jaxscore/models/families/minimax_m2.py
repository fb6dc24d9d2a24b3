"""minimax_m2: norms over all heads of q and of k, and a corrected sigmoid router."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import llamalike, mixtral, mixtures, parts
from jaxscore.models.families.family import Family, Table
from jaxscore.models.families.qwen import qk_norms

# What the released config has besides, at the values that transformers' class computes.
RELEASED: dict[str, Any] = {
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "sliding_window": None,
    "use_qk_norm": True,
    "use_routing_bias": True,
}
UNREAD = "mlp_intermediate_size mtp_transformer_layers num_mtp_modules shared_moe_mode use_mtp"


def _translate(config: Any) -> DecoderConfig:
    parts.refuse(config, **RELEASED, attn_type_list=[1] * config.num_hidden_layers)
    experts = Experts(
        config.num_local_experts,
        config.num_experts_per_tok,
        renormalised=True,
        scores="sigmoid",
        corrected=True,
    )
    return llamalike.llamalike(config, experts=mixtures.check_counts(experts), qk_norm="flat")


def _sources(config: DecoderConfig) -> Table:
    return mixtral.sources(config) | qk_norms(config)


MINIMAX_M2 = Family(
    llamalike.READS
    | parts.reads(
        "head_dim num_local_experts num_experts_per_tok router_jitter_noise attn_type_list",
        *RELEASED,
        UNREAD,
        mixtures.TRAINING,
    ),
    _translate,
    _sources,
    buffers=(parts.INV_FREQ,),
)

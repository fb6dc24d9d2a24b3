"""cohere2_moe: cohere2 with experts, whose first layers may have a plain MLP."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts
from jaxscore.models.families import fields, llama, mixtures
from jaxscore.models.families.family import Table


def _cohere2_moe(config: Any) -> DecoderConfig:
    """Layers with a window have rotary embeddings, and so may those without experts."""
    scores = fields.require_one_of(config, "expert_selection_fn", "softmax", "sigmoid")
    strategy = fields.require_one_of(config, "shared_expert_combination_strategy", "average", "sum")
    share = 0.5 if strategy == "average" and config.num_shared_experts else 1.0
    experts = Experts(
        config.num_experts,
        config.num_experts_per_tok,
        # A softmax over the chosen ones is one over all, scaled to a sum of one.
        renormalised=scores == "softmax" or config.norm_topk_prob,
        shared_width=config.intermediate_size * config.num_shared_experts,
        shared_gated=False,
        shared_scale=share,
        scores=scores,
        scale=share,
    )
    plain = mixtures.dense_layers(config)
    plain_width = config.prefix_dense_intermediate_size or config.intermediate_size
    windows = fields.windows_by_layer_type(config)
    turned = plain if config.prefix_dense_sliding_window_pattern == 1 else ()
    is_rms = config.rms_norm_eps is not None
    return llama.llama_config(
        config,
        **mixtures.mlp_fields(config, experts, config.intermediate_size, plain, plain_width),
        **fields.rotary_in_layers(
            config, (bool(window) or i in turned for i, window in enumerate(windows))
        ),
        norm="rms" if is_rms else "layer",
        norm_eps=config.rms_norm_eps if is_rms else config.layer_norm_eps,
        parallel="shared",
        interleaved=True,
        logit_scale=config.logit_scale,
        windows=windows,
        **fields.biases(config),
    )


def _sources(config: DecoderConfig) -> Table:
    return mixtures.sources(config, llama.attention_sources(config))


FAMILIES = {
    "cohere2_moe": llama.family(
        _cohere2_moe,
        "attention_bias head_dim layer_types logit_scale sliding_window sliding_window_pattern",
        "layer_norm_eps rms_norm_eps mlp_layer_types first_k_dense_replace expert_selection_fn",
        "norm_topk_prob num_experts num_experts_per_tok num_shared_experts output_router_logits",
        "prefix_dense_intermediate_size prefix_dense_sliding_window_pattern",
        "shared_expert_combination_strategy",
        sources=_sources,
    )
}

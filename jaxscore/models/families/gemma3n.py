"""gemma3n: gemma4's shared keys and per-layer embeddings, with four residual streams."""

import math
import statistics
from typing import Any

from jaxscore.device.decoder_config import AltUp, DecoderConfig
from jaxscore.errors import InputError
from jaxscore.models.config.check import is_real
from jaxscore.models.families import fields, gemma4, llama
from jaxscore.models.families.family import Source, Table, linear, norm

HALF = 2**-0.5  # of the sum of the stream, attention and LAuReL
UNREAD = "altup_coef_clip altup_lr_multiplier query_pre_attn_scalar"


def _gemma3n(config: Any) -> DecoderConfig:
    sizes = fields.per_layer_values(config, "intermediate_size")
    if len(set(sizes)) > 1:
        raise InputError(f"intermediate_size is {sizes!r}, expected one size for all layers")
    for name in ("hidden_size_per_layer_input", "laurel_rank"):
        if (size := getattr(config, name)) < 1:
            raise InputError(f"{name} is {size!r}, expected a number of at least 1")
    n, rows = config.num_hidden_layers, config.vocab_size_per_layer_input
    if not 1 <= rows <= config.vocab_size:
        raise InputError(
            f"vocab_size_per_layer_input is {rows}, expected 1 to vocab_size {config.vocab_size}"
        )
    types = fields.per_layer_values(config, "layer_types")
    return llama.llama_config(
        config,
        **fields.rotary_by_layer_type(config),
        activation=fields.activation(config, "hidden_activation"),
        altup=_altup(config),
        attention_scale=1.0,
        embedding_scale=math.sqrt(config.hidden_size),
        keys_of=gemma4.keys_of(config, types),
        laurel_rank=config.laurel_rank,
        logit_softcap=config.final_logit_softcapping,
        mlp_cutoffs=_cutoffs(config),
        mlp_width=sizes[0],
        norm_place="both",
        per_layer_rows=rows,
        per_layer_width=config.hidden_size_per_layer_input,
        qk_norm="head",
        sum_factors=((HALF, HALF, 1.0, 1.0),) * n,
        value_norm=True,
        windows=fields.windows_by_layer_type(config),
        qkv_bias=config.attention_bias,
        out_bias=config.attention_bias,
    )


def _altup(config: Any) -> AltUp:
    n, active = config.altup_num_inputs, config.altup_active_idx
    if n < 2 or not 0 <= active < n:
        raise InputError(
            f"altup_num_inputs is {n} and altup_active_idx {active}, expected at least 2 inputs "
            "and the index of one"
        )
    return AltUp(n, active, config.altup_correct_scale)


def _cutoffs(config: Any) -> tuple[float | None, ...]:
    """Standard deviations above the mean that the share of a pattern is below; None for share 0."""
    shares = fields.per_layer_values(config, "activation_sparsity_pattern")
    if not all(is_real(share) and 0 <= share < 1 for share in shares):
        raise InputError(
            f"activation_sparsity_pattern is {str(shares)[:60]}, expected shares from 0 to below 1"
        )
    quantile = statistics.NormalDist().inv_cdf
    cutoffs = tuple(quantile(share) if share else None for share in shares)
    return cutoffs if any(shares) else ()


def _sources(config: DecoderConfig) -> Table:
    table = gemma4.attention_and_norm_sources(config) | llama.mlp_sources(config)
    table |= gemma4.per_layer_sources()
    for ours, theirs in {"into": "projections", "out_of": "unembed_projections"}.items():
        table["streams", ours, "weight"] = Source(f"altup_{theirs}.{{j}}.weight")
    layer, at = "layers.{i}.", ("layers", "streams")
    for ours, theirs in {
        "router": "modality_router",
        "predicting": "prediction_coefs",
        "correcting": "correction_coefs",
    }.items():
        table |= linear((*at, ours), f"{layer}altup.{theirs}", False)
    table |= norm((*at, "norm"), layer + "altup.router_norm", False)
    assert config.altup is not None
    if config.altup.scaled:
        table[*at, "output_scale"] = Source(layer + "altup.correct_output_scale")
    at = ("layers", "laurel")
    for ours in ("left", "right"):
        table |= linear((*at, ours), f"{layer}laurel.linear_{ours}", False)
    return table | norm((*at, "norm"), layer + "laurel.post_laurel_norm", False)


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    """Also scales that are not applied."""
    assert config.altup is not None
    scales = () if config.altup.scaled else (r"layers\.\d+\.altup\.correct_output_scale",)
    return gemma4.unread(config) + scales


FAMILIES = {
    "gemma3n_text": llama.family(
        _gemma3n,
        "activation_sparsity_pattern altup_active_idx altup_correct_scale altup_num_inputs",
        "attention_bias final_logit_softcapping head_dim hidden_activation laurel_rank",
        "hidden_size_per_layer_input layer_types num_kv_shared_layers sliding_window",
        "vocab_size_per_layer_input",
        UNREAD,
        sources=_sources,
        unread=_unread,
        lacks="hidden_act",
    )
}

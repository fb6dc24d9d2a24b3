"""olmo_hybrid: the gated delta rule in most layers, attention as in olmo2 in the others."""

from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, GatedDelta, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama
from jaxscore.models.families.family import Source, Table, linear, norm
from jaxscore.models.families.hybrid import FULL, LINEAR

NORM_EPS = 1e-5  # of the delta rule's outputs, independent of `rms_norm_eps`
LAYER = "layers.{i}."
PROJECTIONS = {  # in our order of a layer's parameters
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "z": "g_proj",
    "rate": "b_proj",
    "step": "a_proj",
    "out": "o_proj",
}


def _config(config: Any) -> DecoderConfig:
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    if not 0 < len(layers) < config.num_hidden_layers:
        raise InputError(f"layer_types has no two kinds, expected {LINEAR!r} and {FULL!r}")
    rate = 2.0 if config.linear_allow_neg_eigval else 1.0
    mixer = hybrid.gated_delta(config, largest_rate=rate, norm_eps=NORM_EPS)
    rotary: dict[str, Any] = {"rotary": (), "rotary_of": ()}
    if config.rope_parameters["rope_theta"] is not None:
        rotary = fields.rotary_fields(config)
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer),
        norm_place="mixed",
        qk_norm="flat",
        **fields.biases(config),
        **rotary,
    )


def _delta_sources(config: DecoderConfig) -> Table:
    assert config.recurrent is not None
    mixer = config.recurrent.mixer
    assert isinstance(mixer, GatedDelta)
    at, name = hybrid.RECURRENT, LAYER + "linear_attn."
    table: Table = {}
    for ours, theirs in PROJECTIONS.items():
        table |= linear((*at, ours), name + theirs, False)
    keys, values = mixer.n_key_heads * mixer.key_width, mixer.n_value_heads * mixer.value_width
    for ours, part in zip("qkv", hybrid.parts(1, keys, keys, values), strict=True):
        table[*at, f"{ours}_conv", "taps"] = Source(name + "conv1d.weight", part=part)
    table[*at, "log_rate"] = Source(name + "A_log")
    table[*at, "step_bias"] = Source(name + "dt_bias")
    return table | norm((*at, "norm"), name + "o_norm", False)


def _norm_sources(config: DecoderConfig) -> Table:
    """Norms before the halves of linear layers, and after those of the others."""
    assert config.recurrent is not None
    full = tuple(i for i in range(config.n_layers) if i not in config.recurrent.layers)
    names = {
        "attention_norm": ("input_layernorm", "post_attention_layernorm"),
        "mlp_norm": ("post_attention_layernorm", "post_feedforward_layernorm"),
    }
    return {
        ("layers", ours, "scale"): Source(
            f"{LAYER}{before}.weight", elsewhere=(full, f"{LAYER}{after}.weight")
        )
        for ours, (before, after) in names.items()
    }


def _sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    return (
        llama.embedding_sources(config)
        | _norm_sources(config)
        | hybrid.by_kind(config, attention | _delta_sources(config))
        | llama.mlp_sources(config)
    )


FAMILIES = {
    "olmo_hybrid": llama.family(
        _config,
        "attention_bias layer_types linear_allow_neg_eigval linear_conv_kernel_dim",
        "linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim",
        "linear_a_log_max linear_a_log_min linear_dt_init_floor linear_dt_max linear_dt_min",
        sources=_sources,
        renamed={
            "attention_layer_norm": "input_layernorm",
            "feedforward_layer_norm": "post_attention_layernorm",
        },
        joined={"conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")},
    ),
}

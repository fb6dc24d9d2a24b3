"""The gated delta rule in most layers: lara_mini, olmo_hybrid, qwen3_next, qwen3_5, qwen3_5_moe.

The other layers of qwen have attention with partial rotary embeddings and gated outputs, and its
norms are stored minus one, except those of the delta rule's outputs. Those of olmo_hybrid are as
in olmo2. lara_mini has norms as usual, windows with rotary embeddings in some layers, and attention
without either in others.
"""

import dataclasses
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Experts, GatedDelta, Recurrent
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Part, Source, Table, linear, norm
from jaxscore.models.families.hybrid import FULL, LINEAR, SLIDING

PLUS = 1.0  # added to the scale of every norm but the delta rule's
QUERY, GATE = Part(1, 2, 0, 1), Part(1, 2, 1, 2)  # of each head


def _config(config: Any, **own: Any) -> DecoderConfig:
    layers = hybrid.layers_of_type(config, LINEAR, FULL)
    mixer = hybrid.gated_delta(config, largest_rate=1.0, norm_eps=config.rms_norm_eps)
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        qk_norm="head",
        query_gate=True,
        **fields.biases(config),
        **own,
    )


def _mixture(config: Any, renormalised: bool, plain: tuple[int, ...], width: int) -> DecoderConfig:
    """Experts beside a gated shared MLP, and plain MLPs of this width in some layers."""
    experts = Experts(
        config.num_experts,
        config.num_experts_per_tok,
        renormalised,
        config.shared_expert_intermediate_size,
    )
    inner = config.moe_intermediate_size
    return _config(config, **mixtures.mlp_fields(config, experts, inner, plain, width))


def _qwen3_next(config: Any) -> DecoderConfig:
    plain = mixtures.layers_between_steps(config)
    return _mixture(config, config.norm_topk_prob, plain, config.intermediate_size)


def _qwen3_5_moe(config: Any) -> DecoderConfig:
    return _mixture(config, True, (), 0)


def _attention_sources(config: DecoderConfig) -> Table:
    """The rows of a head's query and gate lie beside each other."""
    table = llama.attention_sources(config) | llama.qk_norm_sources(config, PLUS)
    for ours, part in {"q": QUERY, "gate": GATE}.items():
        path = (*hybrid.ATTENTION, ours)
        own = part._replace(groups=config.n_heads)
        table |= linear(path, "layers.{i}.self_attn.q_proj", config.qkv_bias, part=own)
    return table


def _delta_sources(config: DecoderConfig, *, grouped: bool = False, fused: str = "") -> Table:
    """The delta rule.

    Args:
        grouped: tensors have all rows of a key head beside each other.
        fused: name of one tensor of all products inward; empty if there are several.
    """
    if config.recurrent is None:
        return {}
    mixer = config.recurrent.mixer
    assert isinstance(mixer, GatedDelta)
    at, name = hybrid.RECURRENT, "layers.{i}.linear_attn."
    n_keys, group = mixer.n_key_heads, mixer.n_value_heads // mixer.n_key_heads
    keys, values = mixer.key_width, group * mixer.value_width  # rows of a key head
    flat = dict(
        zip("qkv", hybrid.parts(1, n_keys * keys, n_keys * keys, n_keys * values), strict=True)
    )
    table: Table = {}
    rows: list[tuple[str, str, Part | None]]
    if grouped:
        qkvz = zip("qkvz", hybrid.parts(n_keys, keys, keys, values, values), strict=True)
        rows = [(ours, "in_proj_qkvz", part) for ours, part in qkvz]
        rate, step = hybrid.parts(n_keys, group, group)
        rows += [("rate", "in_proj_ba", rate), ("step", "in_proj_ba", step)]
    elif fused:
        sizes = keys, keys, values, values, group, group
        pieces = hybrid.parts(1, *(n_keys * size for size in sizes))
        names = ("q", "k", "v", "z", "rate", "step")
        rows = [(ours, fused, part) for ours, part in zip(names, pieces, strict=True)]
    else:
        rows = [(ours, "in_proj_qkv", part) for ours, part in flat.items()]
        rows += [("z", "in_proj_z", None), ("rate", "in_proj_b", None), ("step", "in_proj_a", None)]
    for ours, theirs, part in rows:
        table |= linear((*at, ours), name + theirs, False, part=part)
    for ours, part in flat.items():
        table[*at, f"{ours}_conv", "taps"] = Source(name + "conv1d.weight", part=part)
    table[*at, "log_rate"] = Source(name + "A_log")
    table[*at, "step_bias"] = Source(name + "dt_bias")
    table |= norm((*at, "norm"), name + "norm", False)
    return table | linear((*at, "out"), name + "out_proj", False)


def _mlp_sources(config: DecoderConfig) -> Table:
    layer = "layers.{i}.mlp."
    table = mixtures.plain_mlp_sources(config) | mixtures.router_sources(config, layer + "gate")
    if config.experts is None:
        return table
    table |= mixtures.shared_expert_sources(config, layer + "shared_expert.")
    if config.experts.shared_width and config.experts.shared_gated:
        at = mixtures.mlp_path(config)
        layers, _ = mixtures.split_layers(config)
        gate = layer + "shared_expert_gate"
        table |= linear((*at, "shared_gate"), gate, False, layers=layers)
    # Released files of Qwen3.5 have all experts of a layer in two tensors.
    return table | mixtures.expert_sources(config, layer)


def _sources(config: DecoderConfig, *, grouped: bool = False) -> Table:
    mixers = _attention_sources(config) | _delta_sources(config, grouped=grouped)
    return (
        llama.embedding_sources(config, PLUS)
        | llama.pre_norm_sources(config, PLUS)
        | hybrid.by_kind(config, mixers)
        | _mlp_sources(config)
    )


def _grouped_sources(config: DecoderConfig) -> Table:
    return _sources(config, grouped=True)


DELTA = (
    "attention_bias head_dim layer_types full_attention_interval linear_conv_kernel_dim "
    "linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim"
)
EXPERTS = (
    "moe_intermediate_size num_experts num_experts_per_tok shared_expert_intermediate_size "
    f"{mixtures.TRAINING}"
)
MTP = (r"mtp\..*",)  # multi-token-prediction layers of released files


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    return MTP


_MOE = llama.family(_qwen3_5_moe, DELTA, EXPERTS, sources=_sources, unread=_unread)


def _lara_mini(config: Any) -> DecoderConfig:
    layers = hybrid.layers_of_type(config, LINEAR, FULL, SLIDING)
    mixer = hybrid.gated_delta(config, largest_rate=1.0, norm_eps=config.rms_norm_eps)
    window = fields.window_size(config) if SLIDING in config.layer_types else 0
    windows = tuple(window if kind == SLIDING else 0 for kind in config.layer_types)
    experts = Experts(
        config.num_experts,
        config.num_experts_per_tok,
        config.norm_topk_prob,
        config.shared_expert_intermediate_size,
        shared_gated=False,
    )
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        qk_norm="head",
        windows=windows,
        **mixtures.mlp_fields(config, experts, config.moe_intermediate_size, (), 0),
        **fields.rotary_in_layers(config, map(bool, windows)),
        **fields.biases(config),
    )


def _lara_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    return (
        llama.embedding_sources(config)
        | llama.pre_norm_sources(config)
        | hybrid.by_kind(config, attention | _delta_sources(config, fused="in_proj"))
        | _mlp_sources(config)
    )


NORM_EPS = 1e-5  # of the delta rule's outputs, independent of `rms_norm_eps`
LAYER = "layers.{i}."
OLMO_PROJECTIONS = {  # in our order of a layer's parameters
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "z": "g_proj",
    "rate": "b_proj",
    "step": "a_proj",
    "out": "o_proj",
}


def _olmo_hybrid(config: Any) -> DecoderConfig:
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


def _olmo_delta_sources(config: DecoderConfig) -> Table:
    assert config.recurrent is not None
    mixer = config.recurrent.mixer
    assert isinstance(mixer, GatedDelta)
    at, name = hybrid.RECURRENT, LAYER + "linear_attn."
    table: Table = {}
    for ours, theirs in OLMO_PROJECTIONS.items():
        table |= linear((*at, ours), name + theirs, False)
    keys, values = mixer.n_key_heads * mixer.key_width, mixer.n_value_heads * mixer.value_width
    for ours, part in zip("qkv", hybrid.parts(1, keys, keys, values), strict=True):
        table[*at, f"{ours}_conv", "taps"] = Source(name + "conv1d.weight", part=part)
    table[*at, "log_rate"] = Source(name + "A_log")
    table[*at, "step_bias"] = Source(name + "dt_bias")
    return table | norm((*at, "norm"), name + "o_norm", False)


def _norm_sources(config: DecoderConfig) -> Table:
    """Norms before the halves of linear layers, and after the halves of other layers."""
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


def _olmo_sources(config: DecoderConfig) -> Table:
    attention = llama.attention_sources(config) | llama.qk_norm_sources(config)
    return (
        llama.embedding_sources(config)
        | _norm_sources(config)
        | hybrid.by_kind(config, attention | _olmo_delta_sources(config))
        | llama.mlp_sources(config)
    )


FAMILIES = {
    "lara_mini": llama.family(
        _lara_mini,
        DELTA,
        EXPERTS,
        "norm_topk_prob sliding_window",
        sources=_lara_sources,
        lacks="intermediate_size full_attention_interval",
        renamed={".linear_attn.out_norm.": ".linear_attn.norm."},
        joined={  # transformers' class has them apart
            "linear_attn.in_proj.weight": tuple(
                f"linear_attn.in_proj_{name}.weight" for name in ("qkv", "z", "b", "a")
            )
        },
    ),
    "qwen3_5_moe_text": dataclasses.replace(_MOE, reads=_MOE.reads - {"intermediate_size"}),
    "qwen3_5_text": llama.family(_config, DELTA, sources=_sources, unread=_unread),
    "qwen3_next": llama.family(
        _qwen3_next,
        DELTA,
        EXPERTS,
        "decoder_sparse_step mlp_only_layers norm_topk_prob",
        sources=_grouped_sources,
        unread=_unread,
    ),
    "olmo_hybrid": llama.family(
        _olmo_hybrid,
        "attention_bias layer_types linear_allow_neg_eigval linear_conv_kernel_dim",
        "linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim",
        "linear_a_log_max linear_a_log_min linear_dt_init_floor linear_dt_max linear_dt_min",
        sources=_olmo_sources,
        renamed={
            "attention_layer_norm": "input_layernorm",
            "feedforward_layer_norm": "post_attention_layernorm",
        },
        joined={"conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")},
    ),
}

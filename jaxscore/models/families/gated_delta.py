"""The gated delta rule in most layers: lara_mini, olmo_hybrid, qwen3_next, qwen3_5, qwen3_5_moe,
qwen4_exp.

    family                  other layers
    qwen3_next, qwen3_5*    attention with partial rotary embeddings and gated outputs
    olmo_hybrid             attention as in olmo2
    lara_mini               attention: some with a window and rotary embeddings, some with neither

Checkpoints of qwen store norms minus one, except those of the delta rule's outputs. qwen4_exp is
qwen3_5_moe with several residual streams, to which some layers add embeddings of hashed n-grams.
The indexer of its attention chooses all keys up to `indexer_budget` of them plus an incomplete
block; longer texts are refused.
"""

import dataclasses
import itertools
import math
from typing import Any

from jaxscore.device.decoder_config import (
    DecoderConfig,
    Experts,
    GatedDelta,
    HyperConnections,
    Ngrams,
    NgramTable,
    Recurrent,
)
from jaxscore.errors import InputError
from jaxscore.models.families import fields, hybrid, llama, mixtures
from jaxscore.models.families.family import Part, Source, Table, linear, norm, unembedding
from jaxscore.models.families.hybrid import FULL, LINEAR, SLIDING

PLUS = 1.0  # added to the scale of every norm except the delta rule's
QUERY, GATE = Part(1, 2, 0, 1), Part(1, 2, 1, 2)  # rows of each head
INDEXED = "indexed_attention"
SILU = ("silu", "swish")  # two names of one function
INDEXER = "indexer_budget indexer_compress_ratio indexer_head_dim indexer_kv_heads indexer_n_heads"


def _config(
    config: Any, *, full: str = FULL, sigmoid_gate: bool = False, **overrides: Any
) -> DecoderConfig:
    # Released files have these values; PyTorch's classes read neither.
    fields.require(config, attn_output_gate=True, mamba_ssm_dtype="float32")
    layers = hybrid.layers_of_type(config, LINEAR, full)
    mixer = hybrid.gated_delta(
        config, largest_rate=1.0, norm_eps=config.rms_norm_eps, sigmoid_gate=sigmoid_gate
    )
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        qk_norm_kind="head",
        query_gate=True,
        **fields.biases(config),
        **overrides,
    )


def _mixture(
    config: Any, renormalised: bool, plain: tuple[int, ...], width: int, **overrides: Any
) -> DecoderConfig:
    """Experts with a gated shared MLP, and plain MLPs of inner width `width` in layers `plain`."""
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=renormalised,
        shared_width=config.shared_expert_intermediate_size,
    )
    inner = config.moe_intermediate_size
    return _config(config, **mixtures.mlp_fields(config, experts, inner, plain, width), **overrides)


def _qwen3_next(config: Any) -> DecoderConfig:
    plain = mixtures.layers_between_steps(config)
    return _mixture(config, config.norm_topk_prob, plain, config.intermediate_size)


def _output_gate(config: Any, default: str, *handled: str) -> str:
    """Return the activation of the gate on the delta rule's outputs.

    Raises:
        InputError: it is not one of `handled`.
    """
    gate: str = getattr(config, "output_gate_type", None) or default
    if gate not in handled:
        listed = " or ".join(map(repr, handled))
        raise InputError(f"output_gate_type is {gate!r}, expected {listed}")
    return gate


def _qwen3_5(config: Any) -> DecoderConfig:
    _output_gate(config, "silu", *SILU)  # in Qwen3.6's files; PyTorch's class does not read it
    return _config(config)


def _qwen3_5_moe(config: Any) -> DecoderConfig:
    _output_gate(config, "silu", *SILU)
    return _mixture(config, True, (), 0)


def _qwen4_exp(config: Any) -> DecoderConfig:
    gate = _output_gate(config, config.hidden_act, "sigmoid", *SILU)
    if config.hc_count < 2 or config.hc_lowrank < 1:
        raise InputError(
            f"hc_count is {config.hc_count} and hc_lowrank {config.hc_lowrank}, expected at least "
            "2 and 1"
        )
    longest = config.max_position_embeddings
    if INDEXED in fields.per_layer_values(config, "layer_types"):
        longest = min(longest, _indexed_keys(config))
    return _mixture(
        config,
        config.norm_topk_prob,
        (),
        0,
        full=INDEXED,
        sigmoid_gate=gate == "sigmoid",
        max_positions=longest,
        norm_place="streams",
        streams=HyperConnections(config.hc_count, config.hc_lowrank),
        head_norm=False,
        ngrams=_ngrams(config) if config.ple_layer_ids else None,
    )


def _ngrams(config: Any) -> Ngrams:
    """Return the layers with n-grams; the hashes follow from sizes and a seed."""
    fields.require_counts(config, *NGRAM_SIZES.split())
    types, ids = config.layer_types, config.ple_layer_ids
    if not all(type(layer_id) is int and 1 <= layer_id <= len(types) for layer_id in ids):
        raise InputError(
            f"ple_layer_ids is {str(ids)[:60]}, expected numbers of layers, the first being 1"
        )
    layers = tuple(sorted({layer_id - 1 for layer_id in ids}))
    if others := [layer_id + 1 for layer_id in layers if types[layer_id] != LINEAR]:
        raise InputError(f"ple_layer_ids has {others}, which are not layers of type {LINEAR!r}")
    separator = config.eos_token_id
    if isinstance(separator, list):
        separator = separator[0] if separator else None
    if type(separator) is not int or not 0 <= separator < config.vocab_size:
        raise InputError(
            f"eos_token_id is {config.eos_token_id!r}, expected the id at which n-grams end"
        )
    n_heads = (config.ngram_size - 1) * config.heads_per_ngram
    if n_heads < 1 or config.ple_embed_dim % n_heads:
        raise InputError(
            f"ple_embed_dim is {config.ple_embed_dim}, expected a multiple of (ngram_size - 1) * "
            f"heads_per_ngram, {n_heads}"
        )
    tables, step = [], config.make_ngram_vocab_size_divisible_by
    primes = _primes(config.ngram_vocab_size_base, len(layers) * n_heads)
    for nth in range(len(layers)):
        head_primes = primes[nth * n_heads : (nth + 1) * n_heads]
        rows = -(-sum(head_primes) // step) * step
        if rows >= MAX_ROWS:
            raise InputError(
                f"ngram_vocab_size_base is {config.ngram_vocab_size_base}, expected tables of "
                f"fewer than {MAX_ROWS} rows"
            )
        tables.append(NgramTable(_multipliers(config, nth), head_primes, rows))
    taps = config.ple_conv_kernel_size
    return Ngrams(layers, tuple(tables), config.ple_embed_dim, taps, separator)


def _primes(least: int, count: int) -> tuple[int, ...]:
    """Return the first `count` primes that are at least `least`.

    Raises:
        InputError: a prime exceeds the rows that a table may have.
    """
    primes: list[int] = []
    candidate = max(least, 2)
    while len(primes) < count:
        if candidate >= MAX_ROWS:
            raise InputError(f"ngram_vocab_size_base is {least}, expected less than {MAX_ROWS}")
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return tuple(primes)


def _multipliers(config: Any, nth: int) -> tuple[int, ...]:
    """Return odd multipliers of the `nth` layer with n-grams, which keep products below 2^63.

    They are outputs of SplitMix64 (Steele et al. 2014, "Fast splittable pseudorandom number
    generators").
    """
    limit = max(1, (2**63 - 1) // config.vocab_size // 2)
    state, out = config.seed + 10_007 * nth, []
    for _ in range(config.ngram_size):
        state += GOLDEN
        bits = (state + GOLDEN) % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        out.append(2 * ((bits ^ bits >> 31) % limit) + 1)
    return tuple(out)


def _indexed_keys(config: Any) -> int:
    """Return the number of keys up to which an indexer chooses all of them.

    That is its budget, plus the keys of an incomplete block.
    """
    fields.require_counts(config, *INDEXER.split())
    fields.require(config, indexer_kv_heads=1)
    budget, block = config.indexer_budget, config.indexer_compress_ratio
    if budget % block:
        raise InputError(
            f"indexer_budget is {budget}, expected a multiple of indexer_compress_ratio {block}"
        )
    return int(budget + block - 1)


def _attention_sources(config: DecoderConfig) -> Table:
    """Return the sources of attention; each head's query rows precede its gate rows."""
    table = llama.attention_sources(config) | llama.qk_norm_sources(config, PLUS)
    for param, rows in {"q": QUERY, "gate": GATE}.items():
        path = (*hybrid.ATTENTION, param)
        of_heads = rows._replace(groups=config.attention.n_heads)
        table |= linear(
            path, "layers.{i}.self_attn.q_proj", config.attention.qkv_bias, part=of_heads
        )
    return table


def _delta_sources(config: DecoderConfig, *, grouped: bool = False, fused: str = "") -> Table:
    """Return the sources of the delta rule.

    Args:
        grouped: if True, tensors group their rows by key head.
        fused: the name of the one tensor of all input projections; empty if there are several.
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
    projections: list[tuple[str, str, Part | None]]
    if grouped:
        qkvz = zip("qkvz", hybrid.parts(n_keys, keys, keys, values, values), strict=True)
        projections = [(param, "in_proj_qkvz", rows) for param, rows in qkvz]
        rate, step = hybrid.parts(n_keys, group, group)
        projections += [("rate", "in_proj_ba", rate), ("step", "in_proj_ba", step)]
    elif fused:
        sizes = keys, keys, values, values, group, group
        pieces = hybrid.parts(1, *(n_keys * size for size in sizes))
        names = ("q", "k", "v", "z", "rate", "step")
        projections = [(param, fused, rows) for param, rows in zip(names, pieces, strict=True)]
    else:
        projections = [(param, "in_proj_qkv", rows) for param, rows in flat.items()]
        projections += [
            ("z", "in_proj_z", None),
            ("rate", "in_proj_b", None),
            ("step", "in_proj_a", None),
        ]
    for param, hf_name, rows in projections:
        table |= linear((*at, param), name + hf_name, False, part=rows)
    for param, rows in flat.items():
        table[*at, f"{param}_conv", "taps"] = Source(name + "conv1d.weight", part=rows)
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
    if config.experts.shared.width and config.experts.shared.gated:
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


def _connection_sources(at: tuple[str, ...], name: str, *, is_last: bool = False) -> Table:
    """Return the sources of a hyper-connection; the last one adds nothing to the streams."""
    names: dict[tuple[str, ...], str]
    names = {("gate", "left"): "input_mix_weight_down", ("gate", "right"): "input_mix_weight_up"}
    if not is_last:
        names["shares",] = "block_inject_weight"
    table = norm((*at, "norm"), name + "hc_norm", False, PLUS)
    for param, hf_name in names.items():
        table |= linear((*at, *param), name + hf_name, False)
    return table


def _qwen4_sources(config: DecoderConfig) -> Table:
    table: Table = {("embed", "token"): Source("embed_tokens.weight")}
    mixers = _attention_sources(config) | _delta_sources(config)
    table |= unembedding(config) | hybrid.by_kind(config, mixers) | _mlp_sources(config)
    for param, hf_name in {"attention": "attn", "mlp": "mlp"}.items():
        at, name = ("layers", "streams", param), f"layers.{{i}}.{hf_name}_hyper_connection."
        table |= _connection_sources(at, name)
    last = _connection_sources(("streams", "out_of"), "hyper_connection_mixer.", is_last=True)
    return table | last | _ngram_sources(config)


def _ngram_sources(config: DecoderConfig) -> Table:
    if config.ngrams is None:
        return {}
    layers, name = config.ngrams.layers, "layers.{i}.ple."
    table: Table = {
        ("embed", "ngrams", str(k), "token"): Source(f"layers.{layer}.ple.{NGRAM_TABLE}")
        for k, layer in enumerate(layers)
    }
    ngram_table: Table = {("conv", "taps"): Source(name + "conv1d.weight")}
    for param in ("key", "value"):
        ngram_table |= linear((param,), f"{name}{param}_proj", False)
    for param in ("key", "query", "conv"):
        ngram_table |= norm((f"{param}_norm",), f"{name}norm_{param}", False, PLUS)
    for path, source in ngram_table.items():
        table["ngrams", *path] = dataclasses.replace(source, layers=layers)
    return table


def _ngram_constants(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the constants of the hashes, which transformers takes from the checkpoint."""
    if config.ngrams is None:
        return {}
    out = {}
    for layer, table in zip(config.ngrams.layers, config.ngrams.tables, strict=True):
        name = f"layers.{layer}.ple.ple_embedding."
        out[name + "layer_multipliers"] = table.multipliers
        out[name + "ngram_heads_vocab_sizes"] = table.primes
        out[name + "ngram_heads_offsets"] = (0, *itertools.accumulate(table.primes[:-1]))
    return out


DELTA = (
    "attention_bias head_dim layer_types full_attention_interval linear_conv_kernel_dim "
    "linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim"
)
QWEN3_5 = "attn_output_gate mamba_ssm_dtype output_gate_type"
EXPERTS = (
    "moe_intermediate_size num_experts num_experts_per_tok shared_expert_intermediate_size "
    f"{mixtures.TRAINING}"
)
NGRAM_SIZES = (
    "heads_per_ngram make_ngram_vocab_size_divisible_by ngram_size ngram_vocab_size_base "
    "ple_conv_kernel_size ple_embed_dim"
)
NGRAM_TABLE = "ple_embedding.ngram_embedding.weight"
MAX_ROWS = 1 << 31
GOLDEN = 0x9E3779B97F4A7C15  # increment of SplitMix64
MTP = (r"mtp\..*",)  # multi-token-prediction layers in released files


def _unread(config: DecoderConfig) -> tuple[str, ...]:
    return MTP


def _qwen4_unread(config: DecoderConfig) -> tuple[str, ...]:
    return (*MTP, r"layers\.\d+\.self_attn\.indexer\..+")


_MOE = llama.family(_qwen3_5_moe, DELTA, EXPERTS, QWEN3_5, sources=_sources, unread=_unread)


def _lara_mini(config: Any) -> DecoderConfig:
    layers = hybrid.layers_of_type(config, LINEAR, FULL, SLIDING)
    mixer = hybrid.gated_delta(config, largest_rate=1.0, norm_eps=config.rms_norm_eps)
    window = fields.window_size(config) if SLIDING in config.layer_types else 0
    windows = tuple(window if layer_type == SLIDING else 0 for layer_type in config.layer_types)
    experts = Experts.of(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        router_renormalised=config.norm_topk_prob,
        shared_width=config.shared_expert_intermediate_size,
        shared_gated=False,
    )
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer) if layers else None,
        qk_norm_kind="head",
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


NORM_EPS = 1e-5  # for the norm of the delta rule's outputs, independent of `rms_norm_eps`
LAYER = "layers.{i}."
OLMO_PROJECTIONS = {  # in the order of our parameters
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
        raise InputError(f"layer_types has a single type, expected both {LINEAR!r} and {FULL!r}")
    rate = 2.0 if config.linear_allow_neg_eigval else 1.0
    mixer = hybrid.gated_delta(config, largest_rate=rate, norm_eps=NORM_EPS)
    rotary: dict[str, Any] = {"rotary": (), "rotary_of": ()}
    if config.rope_parameters["rope_theta"] is not None:
        rotary = fields.rotary_fields(config)
    return llama.llama_config(
        config,
        recurrent=Recurrent(layers, mixer),
        norm_place="mixed",
        qk_norm_kind="flat",
        **fields.biases(config),
        **rotary,
    )


def _olmo_delta_sources(config: DecoderConfig) -> Table:
    assert config.recurrent is not None
    mixer = config.recurrent.mixer
    assert isinstance(mixer, GatedDelta)
    at, name = hybrid.RECURRENT, LAYER + "linear_attn."
    table: Table = {}
    for param, hf_name in OLMO_PROJECTIONS.items():
        table |= linear((*at, param), name + hf_name, False)
    keys, values = mixer.n_key_heads * mixer.key_width, mixer.n_value_heads * mixer.value_width
    for param, rows in zip("qkv", hybrid.parts(1, keys, keys, values), strict=True):
        table[*at, f"{param}_conv", "taps"] = Source(name + "conv1d.weight", part=rows)
    table[*at, "log_rate"] = Source(name + "A_log")
    table[*at, "step_bias"] = Source(name + "dt_bias")
    return table | norm((*at, "norm"), name + "o_norm", False)


def _norm_sources(config: DecoderConfig) -> Table:
    """Return the sources of norms: before both halves of linear layers, after those of others."""
    assert config.recurrent is not None
    full = tuple(i for i in range(config.n_layers) if i not in config.recurrent.layers)
    names = {
        "attention_norm": ("input_layernorm", "post_attention_layernorm"),
        "mlp_norm": ("post_attention_layernorm", "post_feedforward_layernorm"),
    }
    return {
        ("layers", param, "scale"): Source(
            f"{LAYER}{before}.weight", elsewhere=(full, f"{LAYER}{after}.weight")
        )
        for param, (before, after) in names.items()
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
        joined={  # transformers' class has separate tensors
            "linear_attn.in_proj.weight": tuple(
                f"linear_attn.in_proj_{name}.weight" for name in ("qkv", "z", "b", "a")
            )
        },
    ),
    "qwen3_5_moe_text": dataclasses.replace(_MOE, reads=_MOE.reads - {"intermediate_size"}),
    "qwen3_5_text": llama.family(_qwen3_5, DELTA, QWEN3_5, sources=_sources, unread=_unread),
    "qwen3_next": llama.family(
        _qwen3_next,
        DELTA,
        EXPERTS,
        "decoder_sparse_step mlp_only_layers norm_topk_prob",
        sources=_grouped_sources,
        unread=_unread,
    ),
    "qwen4_exp_text": llama.family(
        _qwen4_exp,
        DELTA,
        EXPERTS,
        QWEN3_5,
        "hc_count hc_lowrank norm_topk_prob ple_layer_ids",
        INDEXER,
        NGRAM_SIZES,
        "eos_token_id number_of_conv_states seed split_ngram_parts",
        sources=_qwen4_sources,
        unread=_qwen4_unread,
        unread_part="indexers and multi-token prediction",
        limit_reason="beyond indexer_budget keys an indexer chooses among them, which is not "
        "covered",
        lacks="intermediate_size",
        constants=_ngram_constants,
        joined={NGRAM_TABLE: ("ple_embedding.ngram_embedding.shard_{k}.weight",)},
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

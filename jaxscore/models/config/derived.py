"""Fill attributes that a `config.json` lacks or has as null, and that follow from others.

The rules are those of the families' documentation; the docstring of each rule states what it fills
in. If a file has `layer_types`, patterns and intervals are ignored.
"""

import math
from collections.abc import Callable
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.config.check import BASE, INERT

SLIDING, FULL, CHUNKED = "sliding_attention", "full_attention", "chunked_attention"
INDEXED = "indexed_attention"
# Older names of layer types
RENAMED = {
    "attention": FULL,
    "deepseek_sparse_attention": INDEXED,
    "mamba": "linear_attention",
}


def derive(model_type: str, config: Any) -> None:
    """Fill attributes of a config object that are None and derived from others.

    Raises:
        InputError: sizes from which they cannot be derived.
    """
    for name in ("num_key_value_heads", "num_kv_heads"):
        if getattr(config, name, 0) is None:
            setattr(config, name, config.num_attention_heads)
    if model_type in RULES:
        RULES[model_type](config)
    if isinstance(types := getattr(config, "layer_types", None), list):
        config.layer_types = [RENAMED.get(t, t) if isinstance(t, str) else t for t in types]


def _layer_types(
    config: Any, interval: Any, n: int | None = None, name: str = "sliding_window_pattern"
) -> list[str]:
    """Return types with full attention in every `interval`-th layer, a window in the others.

    Args:
        n: the number of layers; None for all.
        name: the attribute with the interval, for error messages.
    """
    if type(interval) is not int or interval < 1:
        raise InputError(f"{name} is {interval!r}, expected a number of at least 1")
    layers = range(config.num_hidden_layers if n is None else n)
    return [FULL if not (i + 1) % interval else SLIDING for i in layers]


def _alternating(config: Any) -> None:
    """A window in every other layer, starting with the first."""
    if config.layer_types is None:
        config.layer_types = _layer_types(config, 2)


def _pattern(config: Any) -> None:
    """A window in all but every n-th layer, n being `sliding_window_pattern`."""
    if config.layer_types is None:
        interval = config.sliding_window_pattern
        if (other := getattr(config, "_sliding_window_pattern", interval)) != interval:
            raise InputError(
                f"_sliding_window_pattern is {other!r}, which transformers does not read; set "
                "layer_types"
            )
        config.layer_types = _layer_types(config, interval)


def _olmo3(config: Any) -> None:
    """A window in all but every fourth layer."""
    if config.layer_types is None:
        config.layer_types = _layer_types(config, 4)


def _afmoe(config: Any) -> None:
    """A window in all but every `global_attn_every_n_layers`-th layer."""
    if config.layer_types is None:
        name = "global_attn_every_n_layers"
        config.layer_types = _layer_types(config, getattr(config, name), name=name)


def _cohere2_moe(config: Any) -> None:
    """Plain MLPs in the first layers, whose windows follow a separate pattern."""
    n, first = config.num_hidden_layers, min(config.first_k_dense_replace, config.num_hidden_layers)
    if config.layer_types is None:
        name = "prefix_dense_sliding_window_pattern"
        prefix = _layer_types(config, getattr(config, name), first, name)
        rest = _layer_types(config, config.sliding_window_pattern, n - first)
        config.layer_types = prefix + rest
    if config.mlp_layer_types is None:
        config.mlp_layer_types = ["dense"] * first + ["sparse"] * (n - first)


def _kolibri1(config: Any) -> None:
    """A window in all but every fifth layer."""
    if config.layer_types is None:
        config.layer_types = _layer_types(config, 5)


def _gemma3n(config: Any) -> None:
    """A window in all but every fifth layer; sparse activations in the first ten of more layers."""
    n = config.num_hidden_layers
    _kolibri1(config)
    if config.activation_sparsity_pattern is None:
        n_sparse = 10 if n > 10 else 0
        config.activation_sparsity_pattern = [0.95] * n_sparse + [0.0] * (n - n_sparse)
    if not isinstance(config.intermediate_size, list):
        config.intermediate_size = [config.intermediate_size] * n


def _cwm(config: Any) -> None:
    """Full attention in the first layer and every fourth after it, a window in the others."""
    if config.layer_types is None:
        config.layer_types = [SLIDING if i % 4 else FULL for i in range(config.num_hidden_layers)]


def _granite_swa(config: Any) -> None:
    """One rotary base for all layers."""
    _cwm(config)
    if config.layer_rope_theta is None:
        theta = config.rope_parameters["rope_theta"]
        config.layer_rope_theta = [theta] * config.num_hidden_layers


def _hyperclovax(config: Any) -> None:
    if config.head_dim is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    if config.attention_multiplier is None:
        config.attention_multiplier = config.head_dim**-0.5


def _mellum(config: Any) -> None:
    """Full attention and experts in all layers."""
    for name, value in (("layer_types", FULL), ("mlp_layer_types", "sparse")):
        if getattr(config, name) is None:
            setattr(config, name, [value] * config.num_hidden_layers)


def _optional_window(config: Any) -> None:
    """No window unless `use_sliding_window` is true."""
    if not config.use_sliding_window:
        config.sliding_window = None


def _ministral(config: Any) -> None:
    """A window in all layers."""
    if config.layer_types is None:
        config.layer_types = [SLIDING] * config.num_hidden_layers


def _last_layers(config: Any) -> None:
    """A window from layer `max_window_layers` on."""
    _optional_window(config)
    _windows_from(config)


def _mixture(config: Any) -> None:
    _optional_window(config)
    if config.mlp_only_layers is None:
        config.mlp_only_layers = []


def _no_windows(config: Any) -> None:
    """No windows: its class does not implement them."""
    config.sliding_window = None
    if config.layer_types is None:
        config.layer_types = [FULL] * config.num_hidden_layers


def _qwen3_vl_moe(config: Any) -> None:
    """No windows, and expert weights with a sum of one: its class implements nothing else."""
    config.sliding_window = None
    if config.mlp_only_layers is None:
        config.mlp_only_layers = []
    if config.norm_topk_prob is not True:
        raise InputError(
            f"norm_topk_prob is {config.norm_topk_prob!r}, which is not handled; handled is True"
        )


def _qwen2_moe(config: Any) -> None:
    """Full attention; with windows, its class mixes layer types, which the family refuses."""
    _mixture(config)
    if config.layer_types is None and not config.use_sliding_window:
        config.layer_types = [FULL] * config.num_hidden_layers


def _no_rope(config: Any) -> None:
    """1 for rotary layers, 0 for every `no_rope_layer_interval`-th layer, which is NoPE."""
    if config.no_rope_layers is None:
        interval = config.no_rope_layer_interval
        if interval < 1:
            raise InputError(
                f"no_rope_layer_interval is {interval!r}, expected a number of at least 1"
            )
        n = config.num_hidden_layers
        config.no_rope_layers = [int((i + 1) % interval != 0) for i in range(n)]


def _smollm3(config: Any) -> None:
    """A window in the NoPE layers if `use_sliding_window` is true."""
    _no_rope(config)
    if config.layer_types is None:
        window = config.use_sliding_window and config.sliding_window is not None
        config.layer_types = [
            SLIDING if window and not has_rotary else FULL for has_rotary in config.no_rope_layers
        ]


def _llama4(config: Any) -> None:
    if config.no_rope_layers == []:
        config.no_rope_layers = None
    _no_rope(config)
    if config.layer_types is None:
        config.layer_types = [
            CHUNKED if has_rotary else FULL for has_rotary in config.no_rope_layers
        ]
    if config.moe_layers is None:
        step = config.interleave_moe_layer_step
        if step < 1:
            raise InputError(f"interleave_moe_layer_step is {step!r}, expected at least 1")
        config.moe_layers = list(range(step - 1, config.num_hidden_layers, step))


def _windows_from(config: Any) -> None:
    """A window, if there is one, from layer `max_window_layers` on."""
    if config.layer_types is None:
        first, n = config.max_window_layers, config.num_hidden_layers
        first = n if config.sliding_window is None else first
        config.layer_types = [SLIDING if i >= first else FULL for i in range(n)]


def _first_dense(config: Any) -> None:
    """Experts in all layers but the first."""
    if config.mlp_layer_types is None:
        config.mlp_layer_types = ["dense"] + ["sparse"] * (config.num_hidden_layers - 1)


def _first_dense_layers(config: Any) -> None:
    """Experts in all layers but the first `first_k_dense_replace`."""
    if config.mlp_layer_types is None:
        first, n = config.first_k_dense_replace, config.num_hidden_layers
        config.mlp_layer_types = ["dense" if i < first else "sparse" for i in range(n)]


def _exaone_moe(config: Any) -> None:
    _first_dense_layers(config)
    _exaone4(config)


def _exaone4(config: Any) -> None:
    """No windows if `sliding_window` is null."""
    if config.layer_types is None and config.sliding_window is None:
        config.layer_types = [FULL] * config.num_hidden_layers
    _pattern(config)


def _cohere2(config: Any) -> None:
    _pattern(config)
    _check_quotient(config)


def _check_quotient(config: Any) -> None:
    """Check that `head_dim` is `hidden_size / num_attention_heads`, as its class assumes."""
    if config.head_dim is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    if config.head_dim * config.num_attention_heads != config.hidden_size:
        raise InputError(
            f"head_dim is {config.head_dim}, expected hidden_size / num_attention_heads, "
            f"{config.hidden_size} / {config.num_attention_heads}"
        )


def _dbrx(config: Any) -> None:
    """KV heads from `attn_config`, whatever the file has outside it."""
    if isinstance(config.attn_config, dict):
        config.num_key_value_heads = config.attn_config.get("kv_n_heads", 1)


def _latent(config: Any) -> None:
    """Query and key widths of deepseek: `qk_rope_head_dim` plus `qk_nope_head_dim`."""
    rope_width, key_width = (
        config.qk_rope_head_dim,
        config.qk_nope_head_dim + config.qk_rope_head_dim,
    )
    for name, value in (("head_dim", rope_width), ("qk_head_dim", key_width)):
        if (actual := getattr(config, name)) not in (None, value):
            raise InputError(f"{name} is {actual!r}, expected {value} of qk_rope_head_dim")
        setattr(config, name, value)


def _longcat(config: Any) -> None:
    """Two layers in each of `num_layers`."""
    n = 2 * config.num_layers
    if config.num_hidden_layers not in (None, n):
        raise InputError(
            f"num_hidden_layers is {config.num_hidden_layers!r}, expected {n}, which is twice "
            "num_layers"
        )
    config.num_hidden_layers = n
    _latent(config)


def _sparse(config: Any) -> None:
    """An indexer in every layer, and experts in all layers but the first ones."""
    _first_dense_layers(config)
    if config.layer_types is None:
        config.layer_types = ["indexed_attention"] * config.num_hidden_layers
    _latent(config)


def _axk1(config: Any) -> None:
    """Experts in all layers but the first, or but the first `first_k_dense_replace`."""
    config.first_k_dense_replace = getattr(config, "first_k_dense_replace", 1)
    _first_dense_layers(config)
    _latent(config)


def _sarvam_mla(config: Any) -> None:
    """Released files have the width of a latent key as `head_dim`, which is replaced."""
    if config.head_dim == config.kv_lora_rank + config.qk_rope_head_dim:
        config.head_dim = None
    _latent(config)


def _axk2(config: Any) -> None:
    """Experts in all layers but the first, or but the first `first_k_dense_replace`."""
    config.first_k_dense_replace = getattr(config, "first_k_dense_replace", 1)
    _sparse(config)


def _glm_moe_dsa(config: Any) -> None:
    """Types of indexers, from a pattern or a frequency: "shared" ones reuse the last choice.

    GLM-5.2 has `qk_nope_head_dim` as `head_dim`, which transformers' class replaces.
    """
    if config.head_dim == config.qk_nope_head_dim:
        config.head_dim = None
    if config.indexer_types is None:
        pattern = getattr(config, "index_topk_pattern", None)
        frequency = max(getattr(config, "index_topk_freq", 1), 1)
        ahead = getattr(config, "index_skip_topk_offset", 2) - 1
        layers = range(config.num_hidden_layers)
        runs_indexer = (not max(i - ahead, 0) % frequency for i in layers)
        config.indexer_types = ["full" if runs else "shared" for runs in runs_indexer]
        if pattern is not None:
            names = {"F": "full", "S": "shared"}
            config.indexer_types = [names.get(letter, letter) for letter in pattern]
    _sparse(config)


def _flint(config: Any) -> None:
    """Full attention in the first two layers, every fourth and the last; two plain MLPs."""
    last = config.num_hidden_layers - 1
    if config.layer_types is None:
        config.layer_types = [
            FULL if i < 2 or i % 4 == 1 or i == last else SLIDING for i in range(last + 1)
        ]
    if config.mlp_only_layers is None:
        config.mlp_only_layers = [0, 1]


def _glm4_moe_lite(config: Any) -> None:
    _first_dense(config)
    _latent(config)


def _mimo(config: Any) -> None:
    """A window in all layers but the first and every sixth; experts in all but the first."""
    layers = range(config.num_hidden_layers)
    if config.layer_types is None:
        config.layer_types = [SLIDING if i and (i + 1) % 6 else FULL for i in layers]
    _first_dense(config)
    if config.routed_scaling_factor is None:
        config.routed_scaling_factor = 1.0
    if type(size := getattr(config, "sliding_window_size", None)) is int:
        config.sliding_window = size + 1  # includes the token itself


def _minicpm3(config: Any) -> None:
    _latent(config)
    if config.v_head_dim is None:
        config.v_head_dim = config.hidden_size // config.num_attention_heads


def _gemma4(config: Any) -> None:
    """Full attention in every sixth and the last layer, with separate head sizes.

    The keys of `per_layer_config` become layer indices.
    """
    if config.layer_types is None:
        config.layer_types = _layer_types(config, 6)
        config.layer_types[-1] = FULL
    elif config.layer_types and config.layer_types[-1] == SLIDING:
        raise InputError(
            f"layer_types ends with {SLIDING!r}, expected {FULL!r}: transformers' class treats "
            "the last layer as such"
        )
    if config.per_layer_config is None:
        full_sizes = {"head_dim": config.global_head_dim}
        if config.attention_k_eq_v and config.num_global_key_value_heads is not None:
            full_sizes["num_key_value_heads"] = config.num_global_key_value_heads
        full = (i for i, layer_type in enumerate(config.layer_types) if layer_type == FULL)
        config.per_layer_config = {i: dict(full_sizes) for i in full}
    elif not isinstance(layers := config.per_layer_config, dict):
        raise InputError(f"per_layer_config is {str(layers)[:60]}, expected an object")
    else:  # JSON keys are strings, which transformers pads with zeros
        config.per_layer_config = {int(layer): sizes for layer, sizes in layers.items()}


def _ernie_moe(config: Any) -> None:
    if config.moe_layer_end_index == -1:
        config.moe_layer_end_index = config.num_hidden_layers - 1


def _falcon(config: Any) -> None:
    if config.ffn_hidden_size is None:
        config.ffn_hidden_size = 4 * config.hidden_size


def _gpt_bigcode(config: Any) -> None:
    """The number of KV heads, which its class sets regardless of the file."""
    config.num_key_value_heads = 1 if config.multi_query else config.n_head


def _gpt_neo(config: Any) -> None:
    """Layer types from the run lengths of `attention_types`: [[["global", "local"], 12]]."""
    if config.attention_layers is not None:
        return
    runs = config.attention_types
    layers: list[Any] = []
    for types, times in runs:
        if len(types) * times > config.num_layers:
            raise InputError(
                f"attention_types is {str(runs)[:60]}, expected an entry for each of num_layers "
                f"{config.num_layers}"
            )
        layers += list(types) * times
    config.attention_layers = layers


def _lfm2(config: Any) -> None:
    """Attention in the layers of `full_attn_idxs`, all if it is null, convolutions elsewhere."""
    if config.layer_types is None:
        layers = range(config.num_hidden_layers)
        if config.full_attn_idxs is None:
            config.full_attn_idxs = [*layers]
        config.layer_types = [FULL if i in config.full_attn_idxs else "conv" for i in layers]


def _kimi_linear(config: Any) -> None:
    """Sizes and layer types from `linear_attn_config`, which counts layers from 1.

    Its sizes take precedence over the file's.
    """
    n = config.num_hidden_layers
    linear = getattr(config, "linear_attn_config", None) or {}
    if not isinstance(linear, dict):
        raise InputError(f"linear_attn_config is {str(linear)[:60]}, expected an object")
    for name, nested_name in {
        "linear_head_dim": "head_dim",
        "linear_num_heads": "num_heads",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
    }.items():
        size = linear.get(nested_name, getattr(config, name))
        if type(size) is not int:
            raise InputError(f"linear_attn_config.{nested_name} is {size!r}, expected a number")
        setattr(config, name, size)
    names = ("full_attn_layers", "kda_layers")
    if unknown := set(linear) - {"head_dim", "num_heads", "short_conv_kernel_size", *names}:
        raise InputError(f"linear_attn_config has {sorted(unknown)}, which is not handled")
    if config.layer_types is None:
        full = [i for i in range(1, n) if i % 4 == 0]
        if not set(names).isdisjoint(linear):
            layer_lists = [linear.get(name) for name in names]
            listed = [i for layers in layer_lists if isinstance(layers, list) for i in layers]
            if [*map(type, listed)] != [int] * n or sorted(listed) != [*range(1, n + 1)]:
                raise InputError(
                    f"linear_attn_config has {names[0]} {layer_lists[0]} and {names[1]} "
                    f"{layer_lists[1]}, expected lists with each layer from 1 to {n} once"
                )
            full = [i - 1 for i in linear[names[0]]]
        config.layer_types = [FULL if i in full else "linear_attention" for i in range(n)]
    if config.mlp_layer_types is None:
        first = getattr(config, "first_k_dense_replace", 1)
        config.mlp_layer_types = ["dense" if i < first else "sparse" for i in range(n)]
    key_width = config.qk_nope_head_dim + config.qk_rope_head_dim
    if config.qk_head_dim not in (None, key_width):
        raise InputError(f"qk_head_dim is {config.qk_head_dim!r}, expected {key_width}")
    config.qk_head_dim = key_width
    if config.head_dim is None:
        config.head_dim = config.qk_rope_head_dim


def _bailing_hybrid(config: Any) -> None:
    """Attention in the last layer of each group of layers.

    `head_dim` is the head width of linear layers, except in files that transformers writes, which
    have `linear_head_dim`.
    """
    for name, source in {
        "linear_head_dim": "head_dim",
        "linear_num_heads": "num_attention_heads",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
    }.items():
        if getattr(config, name) is None:
            setattr(config, name, getattr(config, source))
    config.head_dim = None
    if config.layer_types is None:
        config.layer_types = [
            FULL if layer_type == FULL else "linear_attention"
            for layer_type in _layer_types(config, config.layer_group_size, name="layer_group_size")
        ]
    _first_dense_layers(config)
    _latent(config)


def _lara_mini(config: Any) -> None:
    """In each five layers two gated delta rules, two windows, and one full attention."""
    if config.layer_types is None:
        pattern = ["linear_attention", SLIDING, "linear_attention", FULL, SLIDING]
        config.layer_types = [pattern[i % 5] for i in range(config.num_hidden_layers)]


def _lfm3(config: Any) -> None:
    """Convolutions in every other layer; every other one of the rest has a window."""
    if config.layer_types is None:
        pattern = [SLIDING, "conv", FULL, "conv"]
        config.layer_types = [pattern[i % 4] for i in range(config.num_hidden_layers)]
        config.layer_types[0] = "conv"


def _minimax(config: Any) -> None:
    """Lightning attention in every second layer."""
    if config.layer_types is None:
        layers = range(config.num_hidden_layers)
        config.layer_types = ["linear_attention" if i % 2 else FULL for i in layers]


MINIMAX_M3 = {  # attribute -> key of `sparse_attention_config`
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}


def _minimax_m3(config: Any) -> None:
    """Types of layers and MLPs, which released files have as lists of 0 and 1."""
    sparse = getattr(config, "sparse_attention_config", None) or {}
    if not isinstance(sparse, dict):
        raise InputError(f"sparse_attention_config is {str(sparse)[:60]}, expected an object")
    for name, nested_name in MINIMAX_M3.items():
        size = sparse.get(nested_name, getattr(config, name))
        if type(size) is not int:
            raise InputError(
                f"sparse_attention_config.{nested_name} is {size!r}, expected a number"
            )
        setattr(config, name, size)
    handled = {  # transformers' class reads none of these
        "use_sparse_attention": True,
        "sparse_score_type": "max",
        "sparse_init_block": 0,
        "sparse_disable_index_value": sparse.get("sparse_attention_freq"),
    }
    if unknown := set(sparse) - {*MINIMAX_M3.values(), *handled, "sparse_attention_freq"}:
        raise InputError(f"sparse_attention_config has {sorted(unknown)}, which is not handled")
    for name, value in handled.items():
        if (actual := sparse.get(name, value)) != value:
            raise InputError(
                f"sparse_attention_config.{name} is {actual!r}, which is not handled; handled is "
                f"{value!r}"
            )
    n = config.num_hidden_layers
    for attribute, listed, (yes, no), default in (
        (
            "layer_types",
            sparse.get("sparse_attention_freq"),
            ("minimax_m3_sparse", FULL),
            FULL,
        ),
        ("mlp_layer_types", getattr(config, "moe_layer_freq", None), ("sparse", "dense"), "sparse"),
    ):
        if getattr(config, attribute) is None:
            types = [yes if flag else no for flag in listed] if listed else [default] * n
            setattr(config, attribute, types)


def _qwen_hybrid(config: Any) -> None:
    """Attention in every n-th layer, the gated delta rule in the others."""
    if getattr(config, "mlp_only_layers", []) is None:
        config.mlp_only_layers = []
    if config.layer_types is None:
        interval = getattr(config, "full_attention_interval", 4)
        if type(interval) is not int or interval < 1:
            raise InputError(
                f"full_attention_interval is {interval!r}, expected a number of at least 1"
            )
        layers = range(1, config.num_hidden_layers + 1)
        config.layer_types = ["linear_attention" if i % interval else FULL for i in layers]


def _qwen4_exp(config: Any) -> None:
    """An indexer in all layers that released files call full attention."""
    _qwen_hybrid(config)
    if isinstance(types := config.layer_types, list):
        config.layer_types = [INDEXED if layer_type == FULL else layer_type for layer_type in types]
    if config.ple_layer_ids is None:
        config.ple_layer_ids = []
    if config.ple_embed_dim is None:
        config.ple_embed_dim = config.hidden_size


def _olmo_hybrid(config: Any) -> None:
    """Full attention in every fourth layer, or in the last one if there are fewer than four.

    The width of a key head is 3/4 of `hidden_size` over the number of key heads; a value head is
    twice as wide.
    """
    if config.layer_types is None:
        n = config.num_hidden_layers
        config.layer_types = ["linear_attention" if (i + 1) % 4 else FULL for i in range(n)]
        if FULL not in config.layer_types:
            config.layer_types[-1] = FULL
    for name in ("linear_num_key_heads", "linear_num_value_heads"):
        if getattr(config, name) is None:
            setattr(config, name, config.num_attention_heads)
    if config.linear_key_head_dim is None:
        config.linear_key_head_dim = int(0.75 * config.hidden_size / config.linear_num_key_heads)
    if config.linear_value_head_dim is None:
        config.linear_value_head_dim = 2 * config.linear_key_head_dim


def _mamba2(config: Any) -> None:
    """Unbounded step sizes, and Mamba in all layers.

    transformers 5 writes an infinite bound as an object.
    """
    if config.time_step_limit is None:
        config.time_step_limit = [0.0, math.inf]
    if isinstance(limits := config.time_step_limit, list):
        infinite = {"__float__": "Infinity"}
        config.time_step_limit = [math.inf if limit == infinite else limit for limit in limits]
    if getattr(config, "layer_types", []) is None:
        config.layer_types = ["linear_attention"] * config.num_hidden_layers
    _step_ranks(config, "time_step_rank")


def _step_ranks(config: Any, *names: str) -> None:
    """A rank of step sizes of `hidden_size / 16`, rounded up."""
    for name in names:
        if getattr(config, name, 0) in (None, "auto"):
            setattr(config, name, math.ceil(config.hidden_size / 16))


NEMOTRON_H = {"M": "linear_attention", "E": "moe", "*": FULL, "-": "mlp"}  # letters of patterns
# Attributes in published files that repeat another
NEMOTRON_H_TWICE = {
    "attention_head_dim": "head_dim",
    "norm_eps": "layer_norm_epsilon",
    "rms_norm_eps": "layer_norm_epsilon",
}


def _nemotron_h(config: Any) -> None:
    """Layer types and the number of layers, from a pattern of letters."""
    for prefix, default in {"": [*NEMOTRON_H.values()], "mtp_": [FULL, "moe"]}.items():
        name = f"{prefix}layers_block_type"
        pattern = getattr(config, f"{prefix}hybrid_override_pattern", None)
        if pattern is not None and not set(pattern) <= set(NEMOTRON_H):
            raise InputError(f"hybrid_override_pattern is {pattern!r}, expected {NEMOTRON_H}")
        if getattr(config, name) is None:
            types = default if pattern is None else [NEMOTRON_H[letter] for letter in pattern]
            setattr(config, name, types)
    config.layer_types = config.layers_block_type
    n = len(config.layer_types)
    if config.num_hidden_layers not in (None, n):
        raise InputError(
            f"num_hidden_layers is {config.num_hidden_layers}, and layers_block_type or "
            f"hybrid_override_pattern has {n} layers"
        )
    config.num_hidden_layers = n
    for other, canonical in NEMOTRON_H_TWICE.items():
        if (actual := getattr(config, other, None)) not in (None, getattr(config, canonical)):
            raise InputError(
                f"{other} is {actual!r}, and {canonical} is {getattr(config, canonical)!r}"
            )
    _mamba2(config)


def _mamba(config: Any) -> None:
    """Inner channels of Mamba-1, from `expand`."""
    if getattr(config, "intermediate_size", 0) is None:
        config.intermediate_size = int(config.expand * config.hidden_size)
    _step_ranks(config, "mamba_dt_rank", "time_step_rank")


def _recurrent_gemma(config: Any) -> None:
    """RG-LRUs as wide as the model."""
    _check_quotient(config)
    if config.lru_width is None:
        config.lru_width = config.hidden_size


def _zamba(config: Any) -> None:
    """A block in the third layer, and then in every n-th."""
    width, types = config.hidden_size, config.layers_block_type
    if types is None:
        period, offset = config.attn_layer_period, config.attn_layer_offset
        if period < 1:
            raise InputError(f"attn_layer_period is {period}, expected at least 1")
        further = range(config.num_hidden_layers - 3)
        types = [*["linear_attention"] * 2, "hybrid"]
        types += ["hybrid" if i % period == offset else "linear_attention" for i in further]
    config.layers_block_type = [RENAMED.get(t, t) if isinstance(t, str) else t for t in types]
    config.layer_types = config.layers_block_type
    if config.attention_hidden_size not in (None, 2 * width):
        actual = config.attention_hidden_size
        raise InputError(f"attention_hidden_size is {actual!r}, expected {2 * width}")
    config.attention_hidden_size = 2 * width
    if config.attention_head_dim is None:
        config.attention_head_dim = 2 * width // max(config.num_attention_heads, 1)
    config.head_dim = config.attention_head_dim
    _step_ranks(config, "mamba_dt_rank")


def _zamba2(config: Any) -> None:
    """Sizes and layer types that follow from others, and are checked if the file has them."""
    n_heads, width = max(config.num_attention_heads, 1), config.hidden_size
    if config.layers_block_type is None:
        config.layers_block_type = ["linear_attention"] * 54
        for i in (6, 12, 18, 24, 30, 36, 42, 47, 51):
            config.layers_block_type[i] = "hybrid"
    config.layers_block_type = [
        RENAMED.get(t, t) if isinstance(t, str) else t for t in config.layers_block_type
    ]
    config.layer_types = config.layers_block_type
    if config.intermediate_size is None:
        config.intermediate_size = 4 * width
    if config.use_long_context:
        config.max_position_embeddings = 16_384
    for name, value in {
        "attention_hidden_size": 2 * width,
        "attention_head_dim": 2 * width // n_heads,
        "hybrid_layer_ids": [i for i, t in enumerate(config.layer_types) if t == "hybrid"],
        "kv_channels": width // n_heads,
        "mamba_headdim": int(config.mamba_expand * width) // max(config.n_mamba_heads, 1),
        "num_query_groups": config.num_attention_heads,
    }.items():
        if (actual := getattr(config, name, None)) not in (None, value):
            raise InputError(f"{name} is {actual!r}, expected {value!r}")
        setattr(config, name, value)
    config.head_dim = config.attention_head_dim


def _falcon_h1(config: Any) -> None:
    """Head width from the inner width of Mamba, and multipliers of 1."""
    _mamba2(config)
    if config.mamba_d_ssm is None:
        config.mamba_d_ssm = int(config.mamba_expand * config.hidden_size)
    if config.mamba_d_head is None:
        config.mamba_d_head = config.mamba_d_ssm // max(config.mamba_n_heads, 1)
    if config.mlp_multipliers is None:
        config.mlp_multipliers = [1.0] * 2
    if config.ssm_multipliers is None:
        config.ssm_multipliers = [1.0] * 5


def _mpt(config: Any) -> None:
    """`attn_config` without the attributes of a whole model that both transformers lines add."""
    if isinstance(attention := config.attn_config, dict):
        inert = INERT | {"tie_word_embeddings", *BASE}
        kept = {name: value for name, value in attention.items() if name not in inert}
        config.attn_config = {name: kept[name] for name in kept if not name.startswith("_")}


def _opt(config: Any) -> None:
    if config.word_embed_proj_dim is None:
        config.word_embed_proj_dim = config.hidden_size


def _phi4_multimodal(config: Any) -> None:
    """No configs of towers for images and sound."""
    config.vision_config = config.audio_config = None


RULES: dict[str, Callable[[Any], None]] = {
    "afmoe": _afmoe,
    "axk1": _axk1,
    "axk2": _axk2,
    "bailing_hybrid": _bailing_hybrid,
    "bamba": _mamba2,
    "cohere2": _cohere2,
    "cohere2_moe": _cohere2_moe,
    "cwm": _cwm,
    "dbrx": _dbrx,
    "deepseek_v2": _latent,
    "deepseek_v3": _latent,
    "deepseek_v32": _sparse,
    "dots1": _windows_from,
    "ernie4_5_moe": _ernie_moe,
    "exaone4": _exaone4,
    "exaone_moe": _exaone_moe,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "falcon_mamba": _mamba,
    "flint": _flint,
    "gemma2": _alternating,
    "gemma3_text": _pattern,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "glm4_moe_lite": _glm4_moe_lite,
    "glm_moe_dsa": _glm_moe_dsa,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_oss": _alternating,
    "granite_swa": _granite_swa,
    "granitemoe_swa": _granite_swa,
    "granitemoehybrid": _mamba2,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "nemotron_h": _nemotron_h,
    "kimi_linear": _kimi_linear,
    "kolibri1": _kolibri1,
    "lara_mini": _lara_mini,
    "lfm2": _lfm2,
    "lfm3": _lfm3,
    "helium": _check_quotient,
    "hy_v3": _first_dense,
    "hyperclovax": _hyperclovax,
    "jamba": _mamba,
    "llama4_text": _llama4,
    "longcat_flash": _longcat,
    "mellum": _mellum,
    "mimo_v2_flash": _mimo,
    "minicpm3": _minicpm3,
    "minimax": _minimax,
    "minimax_m3_vl_text": _minimax_m3,
    "ministral": _ministral,
    "mpt": _mpt,
    "olmo3": _olmo3,
    "olmo_hybrid": _olmo_hybrid,
    "opt": _opt,
    "phi4_multimodal": _phi4_multimodal,
    "qwen2": _last_layers,
    "qwen2_5_vl_text": _last_layers,
    "qwen2_moe": _qwen2_moe,
    "qwen2_vl_text": _last_layers,
    "qwen3": _last_layers,
    "qwen3_5_moe_text": _qwen_hybrid,
    "qwen3_5_text": _qwen_hybrid,
    "qwen3_moe": _mixture,
    "qwen3_next": _qwen_hybrid,
    "qwen4_exp_text": _qwen4_exp,
    "qwen3_vl_moe_text": _qwen3_vl_moe,
    "qwen3_vl_text": _no_windows,
    "recurrent_gemma": _recurrent_gemma,
    "sarvam_mla": _sarvam_mla,
    "smollm3": _smollm3,
    "vaultgemma": _alternating,
    "youtu": _latent,
    "zamba": _zamba,
    "zamba2": _zamba2,
}

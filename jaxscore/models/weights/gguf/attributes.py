"""Attributes of `config.json` from a GGUF file's metadata, as values of a table.

An attribute is a constant, or a function of `Keys` that these functions make.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.weights.gguf.layouts import values_of
from jaxscore.models.weights.gguf.metadata import ROPE_FACTORS, Keys

Value = Callable[[Keys], Any]
SLIDING, FULL = "sliding_attention", "full_attention"
FACTORS_LONG, FACTORS_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
KEY_HEADS = "attention.head_count_kv"
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


def size(key: str, default: int | None = None) -> Value:
    """A whole number above 0."""
    return lambda keys: keys.size(key, default)


def real(key: str, default: float | None = None) -> Value:
    """A float32, as the shortest decimal."""
    return lambda keys: keys.single_precision(key, default)


def factor(key: str) -> Value:
    """A float32 by which something is multiplied; 0 is llama.cpp's name of none."""
    return lambda keys: keys.single_precision(key, 0.0) or 1.0


def flag(key: str, default: bool | None = None) -> Value:
    """A truth value."""
    return lambda keys: keys.get(key, bool, default)


def has(part: str) -> Value:
    """Whether a layer has a tensor."""
    return lambda keys: keys.layers_have(part)


def optional_real(key: str) -> Value:
    """A float32, or None if the key is missing or 0."""
    return lambda keys: keys.single_precision(key, 0.0) or None


def rope(theta: float = 10_000.0, *, is_partial: bool = False, mscale: int | None = None) -> Value:
    """`rope_parameters`.

    Args:
        theta: base of the frequencies if the file does not say it.
        is_partial: the family can rotate a part of a head.
        mscale: see `Keys.rope`.
    """

    def read(keys: Keys) -> dict[str, Any]:
        if not is_partial:
            keys.whole_rotary()
            return keys.rope(theta, mscale)
        width = keys.head_width()
        share = keys.size("rope.dimension_count", width) / width
        return keys.rope(theta, mscale) | {"partial_rotary_factor": share}

    return read


def rope_by_type(theta: float, local: float | None) -> Value:
    """`rope_parameters` by layer type; scaling is for the full layers.

    Args:
        theta: as for `rope`.
        local: base in layers with a window if the file does not say it; None for the other base.
    """

    def read(keys: Keys) -> dict[str, Any]:
        keys.whole_rotary()
        full = keys.rope(theta)
        base = keys.single_precision("rope.freq_base_swa", local or full["rope_theta"])
        return {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": base}}

    return read


def layer_types(every: int) -> Value:
    """Windows in all layers but each `every`-th one, unless the file says which."""

    def read(keys: Keys) -> list[str]:
        n = keys.n_layers()
        pattern = keys.numbers(PATTERN, n)
        if not isinstance(pattern, list):
            every_full = every if pattern is None else pattern or n + 1  # 0: no full layer
            return [FULL if (layer + 1) % every_full == 0 else SLIDING for layer in range(n)]
        return [SLIDING if has_window else FULL for has_window in pattern]

    return read


def full_attention(keys: Keys) -> list[str]:
    """No windows."""
    return [FULL] * keys.n_layers()


def every(interval: int) -> Value:
    """A list with 0 for each `interval`-th layer and 1 for the others."""
    return lambda keys: [int((layer + 1) % interval != 0) for layer in range(keys.n_layers())]


def in_every_layer(value: Value) -> Value:
    """A list with the same value for each layer."""
    return lambda keys: [value(keys)] * keys.n_layers()


def recurrent_types(part: str, recurrent: str) -> Value:
    """`layer_types` of a model whose recurrent layers, and no others, have a tensor."""

    def read(keys: Keys) -> list[str]:
        has_part = (keys.has(f"blk.{layer}.{part}") for layer in range(keys.n_layers()))
        return [recurrent if is_recurrent else FULL for is_recurrent in has_part]

    return read


def periodic(name: str, part: str) -> dict[str, Value]:
    """Attributes of layers that have a tensor: a period, and the offset of the first one."""

    def read(keys: Keys) -> tuple[int, int]:
        n = keys.n_layers()
        found = [layer for layer in range(n) if keys.has(f"blk.{layer}.{part}")]
        offset = found[0] if found else n
        period = found[1] - offset if len(found) > 1 else n + 1
        if offset >= period or found != list(range(offset, n, period)):
            raise InputError(
                f"{keys.file.path}: layers {found} have {part}, expected layers of one period and "
                "an offset below it"
            )
        return period, offset

    return {
        f"{name}_layer_period": lambda keys: read(keys)[0],
        f"{name}_layer_offset": lambda keys: read(keys)[1],
    }


def attention_key_heads(keys: Keys) -> int:
    """Number of KV heads, one for all attention layers; other layers store 0.

    Raises:
        InputError: attention layers have different numbers.
    """
    listed = sorted({n for n in keys.per_layer(KEY_HEADS) if n})
    if len(listed) > 1:
        raise InputError(
            f"{keys.file.path}: {KEY_HEADS} has {listed}, expected one number for all attention "
            "layers"
        )
    return keys.heads().keys


def expand(keys: Keys) -> int:
    """Inner width of recurrent layers over the model's."""
    return keys.size("ssm.inner_size") // keys.size("embedding_length")


SIZES: Mapping[str, Value] = {
    "hidden_size": size("embedding_length"),
    "num_hidden_layers": Keys.n_layers,
    "intermediate_size": size("feed_forward_length"),
    "num_attention_heads": size("attention.head_count"),
    "num_key_value_heads": lambda keys: keys.size(KEY_HEADS, keys.heads().queries),
    "max_position_embeddings": size("context_length"),
}
HEAD_DIM: Mapping[str, Value] = {"head_dim": Keys.head_width}
BIASES: Mapping[str, Value] = {"attention_bias": has("attn_q.bias"), "mlp_bias": has("ffn_up.bias")}
ATTENTION_BIAS: Mapping[str, Value] = {"attention_bias": has("attn_q.bias")}
RMS: Mapping[str, Value] = {"rms_norm_eps": real("attention.layer_norm_rms_epsilon")}
LAYER_NORM = real("attention.layer_norm_epsilon")
# Of a llama: sizes, an RMS norm, a SiLU, rotary embeddings of whole heads
LLAMA: Mapping[str, Any] = {**SIZES, **RMS, "hidden_act": "silu", "rope_parameters": rope()}
# Of the gated delta rule, in all layers without attention
DELTA: Mapping[str, Value] = {
    "layer_types": recurrent_types("ssm_conv1d.weight", "linear_attention"),
    "linear_conv_kernel_dim": size("ssm.conv_kernel"),
    "linear_key_head_dim": size("ssm.state_size"),
    "linear_num_key_heads": size("ssm.group_count"),
    "linear_num_value_heads": size("ssm.time_step_rank"),
    "linear_value_head_dim": lambda keys: (
        keys.size("ssm.inner_size") // keys.size("ssm.time_step_rank")
    ),
}
# Of Mamba-2: our names of its sizes
STATE_SPACE: Mapping[str, Value] = {
    "n_heads": size("ssm.time_step_rank"),
    "d_head": lambda keys: keys.size("ssm.inner_size") // keys.size("ssm.time_step_rank"),
    "n_groups": size("ssm.group_count"),
    "d_state": size("ssm.state_size"),
    "d_conv": size("ssm.conv_kernel"),
    "conv_bias": has("ssm_conv1d.bias"),
    "proj_bias": has("ssm_in.bias"),
}
MAMBA: Mapping[str, Value] = {f"mamba_{name}": value for name, value in STATE_SPACE.items()} | {
    "mamba_expand": expand,
}
MULTIPLIERS: Mapping[str, Value] = {
    "attention_multiplier": real("attention.scale"),
    "embedding_multiplier": factor("embedding_scale"),
    "residual_multiplier": factor("residual_scale"),
    "logits_scaling": factor("logit_scale"),
}


def either_epsilon(keys: Keys) -> float:
    """Epsilon of RMS norms, which converters write under two names."""
    names = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
    found = {keys.single_precision(name, 0.0) for name in names} - {0.0}
    if len(found) != 1:
        raise InputError(f"{keys.file.path}: {' and '.join(names)} are {sorted(found)}")
    return found.pop()


def nemotron_h_types(keys: Keys) -> list[str]:
    """`layers_block_type` of nemotron_h."""
    parts = {"ssm_in": "linear_attention", "attn_q": FULL, "ffn_gate_inp": "moe", "ffn_up": "mlp"}
    found = []
    for layer in range(keys.n_layers()):
        kinds = [kind for part, kind in parts.items() if keys.has(f"blk.{layer}.{part}.weight")]
        if len(kinds) != 1:
            raise InputError(
                f"{keys.file.path}: layer {layer} has {kinds}, expected one of "
                f"{', '.join(parts.values())}"
            )
        found += kinds
    return found


def nemotron_h_width(keys: Keys) -> int:
    """Width of plain MLPs (0 in other layers), or the width of the first one's tensor."""
    keys.numbers("feed_forward_length", keys.size("block_count"))
    names = (f"blk.{layer}.ffn_up.weight" for layer in range(keys.n_layers()))
    return next((keys.file.tensors[name].shape[0] for name in names if keys.has(name)), 1)


def check_untied(keys: Keys) -> None:
    """Require an unembedding: of a tied one conversion loses a multiplier."""
    if not keys.has("output.weight"):
        raise InputError(
            f"{keys.file.path}: has no tensor output.weight, without which it is not read"
        )


def without(values: Mapping[str, Any], *names: str, **renamed: str) -> dict[str, Any]:
    """The attributes without some, and with others under another name."""
    return {renamed.get(name, name): value for name, value in values.items() if name not in names}


def experts(count: str = "num_experts", chosen: str = "num_experts_per_tok") -> dict[str, Value]:
    """Numbers of experts, and of those that a token runs, under a family's names."""
    return {count: size("expert_count"), chosen: size("expert_used_count")}


def shared_experts(count: str = "n_shared_experts") -> dict[str, Value]:
    """Number of shared experts, which may be 0."""
    return {count: lambda keys: keys.get("expert_shared_count", int, 0)}


def plain_first_layers(attribute: str = "first_k_dense_replace") -> dict[str, Value]:
    """Number of layers before the first one with experts."""
    return {attribute: lambda keys: keys.get("leading_dense_block_count", int, 0)}


def expert_width(keys: Keys) -> int:
    """Inner width of an expert, which files of old converters say by its tensors alone."""
    names = (f"blk.{layer}.ffn_up_exps.weight" for layer in range(keys.n_layers()))
    found = next((keys.file.tensors[name] for name in names if keys.has(name)), None)
    return keys.size("expert_feed_forward_length", found and found.shape[-2])


EXPERT_WIDTH: Mapping[str, Value] = {"moe_intermediate_size": expert_width}


def gemma_scale(n_layers_27b: int) -> Value:
    """Width whose root divides scores: the head's, but width over heads in the 27B."""

    def read(keys: Keys) -> int:
        if keys.n_layers() != n_layers_27b:
            return keys.head_width()
        return keys.size("embedding_length") // keys.heads().queries

    return read


def gate(value: int) -> Value:
    """Check that the router's function is the family's only one; return its name."""

    def read(keys: Keys) -> str:
        name = "expert_gating_func"
        if (found := keys.get(name, int, value)) != value:
            raise InputError(
                f"{keys.file.path}: {name} is {found}, expected {value} ({GATES[value]})"
            )
        return GATES[value]

    return read


GATES = {1: "softmax", 2: "sigmoid"}


def stablelm_rope(keys: Keys) -> dict[str, Any]:
    """`rope_parameters` of stablelm.

    The converter does not write the base, which is 10,000 in all published models but Stable Code,
    the only ones for more than 4,096 tokens.
    """
    if keys.size("context_length") > 4096:
        keys.single_precision("rope.freq_base")
    found: dict[str, Any] = rope(is_partial=True)(keys)
    return found


def check_quotient(keys: Keys) -> None:
    """Require heads of width over heads, by which nemotron's converter computes the rotary part."""
    heads, width = keys.heads().queries, keys.size("embedding_length")
    if heads * keys.head_width() != width:
        raise InputError(
            f"{keys.file.path}: heads of {keys.head_width()} channels and a width of {width} over "
            f"{heads} heads; rope.dimension_count is not the model's then, so it is not read"
        )


def phi_rope(keys: Keys) -> dict[str, Any]:
    """`rope_parameters` of phi3; LongRoPE's factors are tensors."""
    width = keys.head_width()
    share = keys.size("rope.dimension_count", width) / width
    found: dict[str, Any]
    if keys.has(FACTORS_LONG) or keys.has(FACTORS_SHORT):
        for name in (FACTORS_LONG, FACTORS_SHORT):
            if not keys.has(name):
                raise InputError(f"{keys.file.path}: has no tensor {name}")
        keys.optional("rope.scaling.type", str)
        factor = keys.optional("rope.scaling.attn_factor", float)
        found = {
            "rope_type": "longrope",
            "rope_theta": keys.single_precision("rope.freq_base", 10_000.0),
            "long_factor": values_of(keys.file, FACTORS_LONG).tolist(),
            "short_factor": values_of(keys.file, FACTORS_SHORT).tolist(),
            "original_max_position_embeddings": phi_length(keys),
        } | ({} if factor is None else {"attention_factor": factor})
    else:
        found = keys.rope()
    return found | ({} if share == 1 else {"partial_rotary_factor": share})


def phi_length(keys: Keys) -> int:
    """Length that a phi3 was trained for."""
    longest = keys.size("context_length")
    return keys.get("rope.scaling.original_context_length", int, longest)


def phimoe_rope(keys: Keys) -> dict[str, Any]:
    """`rope_parameters` of phimoe without LongRoPE, since no file has two of its factors."""
    if keys.has(FACTORS_LONG) or keys.has(FACTORS_SHORT):
        raise InputError(
            f"{keys.file.path}: a phimoe with LongRoPE, whose short_mscale and long_mscale a GGUF "
            "file does not have; give the original checkpoint"
        )
    keys.optional("rope.scaling.attn_factor", float)
    keys.whole_rotary()
    return keys.rope()


def gpt_oss_rope(keys: Keys) -> dict[str, Any]:
    """`rope_parameters` of gpt-oss, whose YaRN does not round its bounds."""
    found: dict[str, Any] = rope(150_000.0)(keys)
    return found | ({"truncate": False} if found["rope_type"] == "yarn" else {})


def ministral_rope(keys: Keys) -> dict[str, Any]:
    """`rope_parameters` of mistral3, with the growth of queries of ministral3."""
    found: dict[str, Any] = rope(mscale=1)(keys)
    growth = keys.single_precision("attention.temperature_scale", 0.0)
    if growth and "original_max_position_embeddings" not in found:
        raise InputError(
            f"{keys.file.path}: attention.temperature_scale is {growth}, expected "
            "rope.scaling.type yarn with it"
        )
    return found | ({"llama_4_scaling_beta": growth} if growth else {})


def has_chunks(keys: Keys) -> list[int]:
    """`no_rope_layers` of llama4, whose chunks and interval are llama.cpp's and the published."""
    if keys.optional(WINDOW, int) == 0:
        raise InputError(
            f"{keys.file.path}: {WINDOW} is 0, a llama4 without chunks, which is not read"
        )
    found: list[int] = every(4)(keys)
    return found


def is_new_falcon(keys: Keys) -> bool:
    """Whether a falcon has groups of heads. The base of those with one norm is in no file."""
    has_groups = keys.heads().keys > 1
    if has_groups and not keys.layers_have("attn_norm_2.weight"):
        keys.single_precision("rope.freq_base")
    return has_groups


def groups(keys: Keys, key: str) -> int:
    """A number of groups of deepseek2's experts.

    DeepSeek-V2-Lite has one group of 64 experts. Files of old converters say no number for any
    model, and larger ones have several groups.
    """
    is_lite = keys.size("expert_count") == 64 and not keys.is_sigmoid()
    return keys.size(key, 1 if is_lite else None)


def latent_widths(keys: Keys) -> tuple[int, int]:
    """Widths of a head's keys and of its values; files of old converters have them plain."""
    found = []
    for name in ("key", "value"):
        plain = keys.size(f"attention.{name}_length")
        found.append(keys.size(f"attention.{name}_length_mla", plain))
    return found[0], found[1]


def unturned_width(keys: Keys) -> int:
    """Channels of deepseek's keys that do not rotate."""
    return latent_widths(keys)[0] - keys.size("rope.dimension_count")


def gemma4_types(keys: Keys) -> list[str]:
    """`layer_types` of gemma4."""
    pattern = keys.numbers(PATTERN, keys.n_layers())
    if not isinstance(pattern, list):
        raise InputError(f"{keys.file.path}: {PATTERN} is {pattern}, expected a value per layer")
    return [SLIDING if has_window else FULL for has_window in pattern]


def gemma4_width(keys: Keys) -> int:
    """Width of an MLP, which is doubled in the last layers if `gemma4_is_doubled`."""
    return keys.per_layer("feed_forward_length")[0]


def gemma4_is_doubled(keys: Keys) -> bool:
    """Whether the layers that share keys have MLPs of twice the width."""
    return keys.per_layer("feed_forward_length")[-1] == 2 * gemma4_width(keys)


def gemma4_keys(kind: str) -> Value:
    """Number of KV heads in the layers of a type, or in the first one if no layer is of it."""

    def read(keys: Keys) -> int:
        found = keys.per_layer(KEY_HEADS)
        of_kind = (n for n, own in zip(found, gemma4_types(keys), strict=True) if own == kind)
        return next(of_kind, found[0])

    return read


def gemma4_values_are_keys(keys: Keys) -> bool:
    """Whether full layers have no values of their own."""
    n_own = keys.n_layers() - keys.get("attention.shared_kv_layers", int, 0)
    full = [layer for layer, kind in enumerate(gemma4_types(keys)[:n_own]) if kind == FULL]
    return any(not keys.has(f"blk.{layer}.attn_v.weight") for layer in full)


def gemma4_rope(keys: Keys) -> dict[str, Any]:
    """`rope_parameters` of gemma4: factors of 1 for the channels that rotate, 1e30 for others."""
    full = keys.single_precision("rope.freq_base", 1_000_000.0)
    local = keys.single_precision("rope.freq_base_swa", 10_000.0)
    if not keys.has(ROPE_FACTORS):
        raise InputError(f"{keys.file.path}: has no tensor {ROPE_FACTORS}")
    factors = values_of(keys.file, ROPE_FACTORS)
    n_turned = int((factors == 1).sum())
    wide, narrow = (keys.size(f"attention.key_length{kind}") for kind in ("", "_swa"))
    for kind, width in (("", wide), ("_swa", narrow)):
        for name in (f"attention.value_length{kind}", f"rope.dimension_count{kind}"):
            if (found := keys.size(name, width)) != width:
                raise InputError(f"{keys.file.path}: {name} is {found}, expected {width}")
    if not (factors[:n_turned] == 1).all() or not (factors[n_turned:] > 1e29).all():
        raise InputError(f"{keys.file.path}: {ROPE_FACTORS} has factors other than 1 and 1e30")
    return {
        FULL: {
            "rope_type": "proportional",
            "rope_theta": full,
            "partial_rotary_factor": n_turned / len(factors),
        },
        SLIDING: {"rope_type": "default", "rope_theta": local},
    }


def exaone_window(keys: Keys) -> int | None:
    """Window of exaone4: for 32B llama.cpp's default; other models have none."""
    return keys.size(WINDOW, 4096) if _has_windows(keys) else None


def exaone_types(keys: Keys) -> list[str]:
    """`layer_types` of exaone4."""
    types: list[str] = layer_types(4)(keys)
    return types if _has_windows(keys) else full_attention(keys)


def _has_windows(keys: Keys) -> bool:
    return bool(keys.optional(WINDOW, int)) or keys.n_layers() == 64


def shared_width(keys: Keys) -> int:
    """Width of qwen2moe's shared expert, which old files say by its tensor alone."""
    tensor = keys.file.tensors.get("blk.0.ffn_up_shexp.weight")
    return keys.size("expert_shared_feed_forward_length", tensor and tensor.shape[0])


def check_streams(keys: Keys) -> None:
    """Require the streams of positions to share all that rotate, which a text's equal ones do."""
    name, width = "rope.dimension_sections", keys.head_width()
    width = keys.size("rope.dimension_count", width)
    found = keys.numbers(name, 4)
    if not isinstance(found, list) or 2 * sum(found) != width:
        raise InputError(
            f"{keys.file.path}: {name} is {found}, expected numbers that come to {width // 2}, "
            "half of the channels that rotate"
        )

"""Attributes of `config.json` from a GGUF file's metadata.

The value of an attribute is a constant or a reader: a function of `Keys`. Functions here that
return a `Value` create such readers; those that take `Keys` are readers.
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
    """Create a reader of a whole number above 0."""
    return lambda keys: keys.size(key, default)


def real(key: str, default: float | None = None) -> Value:
    """Create a reader of a float32 as the shortest decimal."""
    return lambda keys: keys.single_precision(key, default)


def factor(key: str) -> Value:
    """Create a reader of a float32 multiplier; llama.cpp writes 0 for none."""
    return lambda keys: keys.single_precision(key, 0.0) or 1.0


def flag(key: str, default: bool | None = None) -> Value:
    """Create a reader of a boolean."""
    return lambda keys: keys.get(key, bool, default)


def has(tensor_name: str) -> Value:
    """Create a reader that returns True if any layer has a tensor, such as `attn_q.bias`."""
    return lambda keys: keys.layers_have(tensor_name)


def optional_real(key: str) -> Value:
    """Create a reader of a float32, or None if the key is missing or 0."""
    return lambda keys: keys.single_precision(key, 0.0) or None


def rope(theta: float = 10_000.0, *, is_partial: bool = False, mscale: int | None = None) -> Value:
    """Create a reader of `rope_parameters`.

    Args:
        theta: the base of the frequencies if the file has none.
        is_partial: if True, some channels of a head may be non-rotary.
        mscale: see `Keys.rope`.
    """

    def read(keys: Keys) -> dict[str, Any]:
        if not is_partial:
            keys.check_full_rotary()
            return keys.rope(theta, mscale)
        width = keys.head_width()
        share = keys.size("rope.dimension_count", width) / width
        return keys.rope(theta, mscale) | {"partial_rotary_factor": share}

    return read


def rope_by_type(theta: float, local: float | None) -> Value:
    """Create a reader of `rope_parameters` by layer type; only full layers have scaling.

    Args:
        theta: see `rope`.
        local: the base in layers with a window if the file has none; None for that of full layers.
    """

    def read(keys: Keys) -> dict[str, Any]:
        keys.check_full_rotary()
        full = keys.rope(theta)
        base = keys.single_precision("rope.freq_base_swa", local or full["rope_theta"])
        return {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": base}}

    return read


def layer_types(every: int) -> Value:
    """Create a reader of `layer_types`: by the file's list, or every `every`-th layer is full."""

    def read(keys: Keys) -> list[str]:
        n = keys.n_layers()
        pattern = keys.numbers(PATTERN, n)
        if not isinstance(pattern, list):
            every_full = every if pattern is None else pattern or n + 1  # 0: no full layer
            return [FULL if (layer + 1) % every_full == 0 else SLIDING for layer in range(n)]
        return [SLIDING if has_window else FULL for has_window in pattern]

    return read


def full_attention(keys: Keys) -> list[str]:
    """Return `layer_types` without windows."""
    return [FULL] * keys.n_layers()


def every(interval: int) -> Value:
    """Create a reader of a list with 0 for every `interval`-th layer and 1 for the others."""
    return lambda keys: [int((layer + 1) % interval != 0) for layer in range(keys.n_layers())]


def in_every_layer(value: Value) -> Value:
    """Create a reader of a list with the same value for each layer."""
    return lambda keys: [value(keys)] * keys.n_layers()


def recurrent_types(tensor_name: str, recurrent: str) -> Value:
    """Create a reader of `layer_types`: layers with this tensor are `recurrent`, others full."""

    def read(keys: Keys) -> list[str]:
        has_tensor = (keys.has(f"blk.{layer}.{tensor_name}") for layer in range(keys.n_layers()))
        return [recurrent if is_recurrent else FULL for is_recurrent in has_tensor]

    return read


def periodic(name: str, tensor_name: str) -> dict[str, Value]:
    """Return readers of the period and the offset of the layers with a tensor."""

    def read(keys: Keys) -> tuple[int, int]:
        n = keys.n_layers()
        layers = [layer for layer in range(n) if keys.has(f"blk.{layer}.{tensor_name}")]
        offset = layers[0] if layers else n
        period = layers[1] - offset if len(layers) > 1 else n + 1
        if offset >= period or layers != list(range(offset, n, period)):
            raise InputError(
                f"{keys.file.path}: layers {layers} have {tensor_name}, expected a constant "
                "period and an offset below it"
            )
        return period, offset

    return {
        f"{name}_layer_period": lambda keys: read(keys)[0],
        f"{name}_layer_offset": lambda keys: read(keys)[1],
    }


def attention_key_heads(keys: Keys) -> int:
    """Return the number of KV heads of all attention layers; other layers store 0.

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
    """Return the inner width of recurrent layers divided by the model's width."""
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
# Llama: sizes, RMS norm, SiLU, rotary embeddings of all channels
LLAMA: Mapping[str, Any] = {**SIZES, **RMS, "hidden_act": "silu", "rope_parameters": rope()}
# The gated delta rule, used in all layers without attention
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
# Sizes of Mamba-2, under the decoder's names
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
    """Return the epsilon of RMS norms, which converters write under two names."""
    names = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
    values = {keys.single_precision(name, 0.0) for name in names} - {0.0}
    if len(values) != 1:
        raise InputError(f"{keys.file.path}: {' and '.join(names)} are {sorted(values)}")
    return values.pop()


def nemotron_h_types(keys: Keys) -> list[str]:
    """Return `layers_block_type` of nemotron_h."""
    block_types = {
        "ssm_in": "linear_attention",
        "attn_q": FULL,
        "ffn_gate_inp": "moe",
        "ffn_up": "mlp",
    }
    types: list[str] = []
    for layer in range(keys.n_layers()):
        matches = [
            block_type
            for name, block_type in block_types.items()
            if keys.has(f"blk.{layer}.{name}.weight")
        ]
        if len(matches) != 1:
            raise InputError(
                f"{keys.file.path}: layer {layer} has {matches}, expected one of "
                f"{', '.join(block_types.values())}"
            )
        types += matches
    return types


def nemotron_h_width(keys: Keys) -> int:
    """Return the width of the first dense MLP, by its tensor; 1 if no layer has one."""
    keys.numbers("feed_forward_length", keys.size("block_count"))
    names = (f"blk.{layer}.ffn_up.weight" for layer in range(keys.n_layers()))
    return next((keys.file.tensors[name].shape[0] for name in names if keys.has(name)), 1)


def check_untied(keys: Keys) -> None:
    """Require an unembedding, because conversion of a tied one loses a multiplier."""
    if not keys.has("output.weight"):
        raise InputError(
            f"{keys.file.path}: tensor output.weight is missing; models with a tied "
            "unembedding are not supported for this architecture"
        )


def without(values: Mapping[str, Any], *names: str, **renamed: str) -> dict[str, Any]:
    """Return the attributes without `names`, and with others renamed."""
    return {renamed.get(name, name): value for name, value in values.items() if name not in names}


def experts(count: str = "num_experts", chosen: str = "num_experts_per_tok") -> dict[str, Value]:
    """Return readers of the numbers of experts and of experts per token, by a family's names."""
    return {count: size("expert_count"), chosen: size("expert_used_count")}


def shared_experts(count: str = "n_shared_experts") -> dict[str, Value]:
    """Return a reader of the number of shared experts, which may be 0."""
    return {count: lambda keys: keys.get("expert_shared_count", int, 0)}


def plain_first_layers(attribute: str = "first_k_dense_replace") -> dict[str, Value]:
    """Return a reader of the number of layers before the first one with experts."""
    return {attribute: lambda keys: keys.get("leading_dense_block_count", int, 0)}


def expert_width(keys: Keys) -> int:
    """Return the inner width of an expert; files of old converters have it only in tensors."""
    names = (f"blk.{layer}.ffn_up_exps.weight" for layer in range(keys.n_layers()))
    tensor = next((keys.file.tensors[name] for name in names if keys.has(name)), None)
    return keys.size("expert_feed_forward_length", tensor and tensor.shape[-2])


EXPERT_WIDTH: Mapping[str, Value] = {"moe_intermediate_size": expert_width}


def gemma_scale(n_layers_27b: int) -> Value:
    """Create a reader of `query_pre_attn_scalar`: the head's width, or in the 27B width / heads."""

    def read(keys: Keys) -> int:
        if keys.n_layers() != n_layers_27b:
            return keys.head_width()
        return keys.size("embedding_length") // keys.heads().queries

    return read


def gate(value: int) -> Value:
    """Create a reader of the router's function that refuses all but `value`."""

    def read(keys: Keys) -> str:
        name = "expert_gating_func"
        if (gating := keys.get(name, int, value)) != value:
            raise InputError(
                f"{keys.file.path}: {name} is {gating}, expected {value} ({GATES[value]})"
            )
        return GATES[value]

    return read


GATES = {1: "softmax", 2: "sigmoid"}


def stablelm_rope(keys: Keys) -> dict[str, Any]:
    """Return `rope_parameters` of stablelm.

    The converter does not write the base. It is 10,000 in all published models except Stable Code,
    the only ones for more than 4,096 tokens.
    """
    if keys.size("context_length") > 4096:
        keys.single_precision("rope.freq_base")
    parameters: dict[str, Any] = rope(is_partial=True)(keys)
    return parameters


def check_quotient(keys: Keys) -> None:
    """Require heads of width / heads channels, which nemotron's converter assumes."""
    heads, width = keys.heads().queries, keys.size("embedding_length")
    if heads * keys.head_width() != width:
        raise InputError(
            f"{keys.file.path}: heads have {keys.head_width()} channels, expected {width} / "
            f"{heads}; otherwise rope.dimension_count is not the model's"
        )


def phi_rope(keys: Keys) -> dict[str, Any]:
    """Return `rope_parameters` of phi3; LongRoPE's factors are tensors."""
    width = keys.head_width()
    share = keys.size("rope.dimension_count", width) / width
    parameters: dict[str, Any]
    if keys.has(FACTORS_LONG) or keys.has(FACTORS_SHORT):
        for name in (FACTORS_LONG, FACTORS_SHORT):
            if not keys.has(name):
                raise InputError(f"{keys.file.path}: tensor {name} is missing")
        keys.optional("rope.scaling.type", str)
        factor = keys.optional("rope.scaling.attn_factor", float)
        parameters = {
            "rope_type": "longrope",
            "rope_theta": keys.single_precision("rope.freq_base", 10_000.0),
            "long_factor": values_of(keys.file, FACTORS_LONG).tolist(),
            "short_factor": values_of(keys.file, FACTORS_SHORT).tolist(),
            "original_max_position_embeddings": phi_length(keys),
        } | ({} if factor is None else {"attention_factor": factor})
    else:
        parameters = keys.rope()
    return parameters | ({} if share == 1 else {"partial_rotary_factor": share})


def phi_length(keys: Keys) -> int:
    """Return the length in tokens that a phi3 was trained for."""
    longest = keys.size("context_length")
    return keys.get("rope.scaling.original_context_length", int, longest)


def phimoe_rope(keys: Keys) -> dict[str, Any]:
    """Return `rope_parameters` of phimoe; LongRoPE is refused, as files lack two of its factors."""
    if keys.has(FACTORS_LONG) or keys.has(FACTORS_SHORT):
        raise InputError(
            f"{keys.file.path}: phimoe with LongRoPE is not supported, because GGUF files lack "
            "short_mscale and long_mscale; give the original checkpoint"
        )
    keys.optional("rope.scaling.attn_factor", float)
    keys.check_full_rotary()
    return keys.rope()


def gpt_oss_rope(keys: Keys) -> dict[str, Any]:
    """Return `rope_parameters` of gpt-oss, whose YaRN does not round its bounds."""
    parameters: dict[str, Any] = rope(150_000.0)(keys)
    return parameters | ({"truncate": False} if parameters["rope_type"] == "yarn" else {})


def ministral_rope(keys: Keys) -> dict[str, Any]:
    """Return `rope_parameters` of mistral3, with ministral3's scaling of queries by position."""
    parameters: dict[str, Any] = rope(mscale=1)(keys)
    growth = keys.single_precision("attention.temperature_scale", 0.0)
    if growth and "original_max_position_embeddings" not in parameters:
        raise InputError(
            f"{keys.file.path}: attention.temperature_scale is {growth}, expected "
            "rope.scaling.type yarn with it"
        )
    return parameters | ({"llama_4_scaling_beta": growth} if growth else {})


def has_chunks(keys: Keys) -> list[int]:
    """Return `no_rope_layers` of llama4, with the interval that llama.cpp and all models use."""
    if keys.optional(WINDOW, int) == 0:
        raise InputError(
            f"{keys.file.path}: {WINDOW} is 0, but llama4 without chunked attention is not "
            "supported"
        )
    flags: list[int] = every(4)(keys)
    return flags


def is_new_falcon(keys: Keys) -> bool:
    """Return True if a falcon has grouped heads.

    With grouped heads and one norm the rotary base is required, which converters do not write.
    """
    has_groups = keys.heads().keys > 1
    if has_groups and not keys.layers_have("attn_norm_2.weight"):
        keys.single_precision("rope.freq_base")
    return has_groups


def groups(keys: Keys, key: str) -> int:
    """Return a number of groups of deepseek2's experts.

    Files of old converters lack it. DeepSeek-V2-Lite, with 64 experts, has one group; larger models
    have several, so it is required.
    """
    is_lite = keys.size("expert_count") == 64 and not keys.is_sigmoid()
    return keys.size(key, 1 if is_lite else None)


def latent_widths(keys: Keys) -> tuple[int, int]:
    """Return the widths of a head's keys and values; old converters omit the suffix `_mla`."""
    widths = []
    for name in ("key", "value"):
        plain = keys.size(f"attention.{name}_length")
        widths.append(keys.size(f"attention.{name}_length_mla", plain))
    return widths[0], widths[1]


def non_rotary_width(keys: Keys) -> int:
    """Return the number of non-rotary channels of deepseek's keys."""
    return latent_widths(keys)[0] - keys.size("rope.dimension_count")


def gemma4_types(keys: Keys) -> list[str]:
    """Return `layer_types` of gemma4."""
    pattern = keys.numbers(PATTERN, keys.n_layers())
    if not isinstance(pattern, list):
        raise InputError(f"{keys.file.path}: {PATTERN} is {pattern}, expected a value per layer")
    return [SLIDING if has_window else FULL for has_window in pattern]


def gemma4_width(keys: Keys) -> int:
    """Return the width of an MLP; it is doubled in the last layers if `gemma4_is_doubled`."""
    return keys.per_layer("feed_forward_length")[0]


def gemma4_is_doubled(keys: Keys) -> bool:
    """Return True if the layers that share keys have MLPs of twice the width."""
    return keys.per_layer("feed_forward_length")[-1] == 2 * gemma4_width(keys)


def gemma4_keys(layer_type: str) -> Value:
    """Create a reader of the KV heads of a layer type, or of the first layer if it has none."""

    def read(keys: Keys) -> int:
        counts = keys.per_layer(KEY_HEADS)
        types = gemma4_types(keys)
        matches = (n for n, other in zip(counts, types, strict=True) if other == layer_type)
        return next(matches, counts[0])

    return read


def gemma4_values_are_keys(keys: Keys) -> bool:
    """Return True if full layers use their keys as values."""
    n_unshared = keys.n_layers() - keys.get("attention.shared_kv_layers", int, 0)
    types = gemma4_types(keys)[:n_unshared]
    full = [layer for layer, layer_type in enumerate(types) if layer_type == FULL]
    return any(not keys.has(f"blk.{layer}.attn_v.weight") for layer in full)


def gemma4_rope(keys: Keys) -> dict[str, Any]:
    """Return `rope_parameters` of gemma4; rotary channels have factor 1, the others 1e30."""
    full = keys.single_precision("rope.freq_base", 1_000_000.0)
    local = keys.single_precision("rope.freq_base_swa", 10_000.0)
    if not keys.has(ROPE_FACTORS):
        raise InputError(f"{keys.file.path}: tensor {ROPE_FACTORS} is missing")
    factors = values_of(keys.file, ROPE_FACTORS)
    n_rotary = int((factors == 1).sum())
    widths = {suffix: keys.size(f"attention.key_length{suffix}") for suffix in ("", "_swa")}
    for suffix, width in widths.items():
        for name in (f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"):
            if (actual := keys.size(name, width)) != width:
                raise InputError(f"{keys.file.path}: {name} is {actual}, expected {width}")
    if not (factors[:n_rotary] == 1).all() or not (factors[n_rotary:] > 1e29).all():
        raise InputError(f"{keys.file.path}: {ROPE_FACTORS} has factors other than 1 and 1e30")
    return {
        FULL: {
            "rope_type": "proportional",
            "rope_theta": full,
            "partial_rotary_factor": n_rotary / len(factors),
        },
        SLIDING: {"rope_type": "default", "rope_theta": local},
    }


def exaone_window(keys: Keys) -> int | None:
    """Return the window of exaone4; the 32B defaults to llama.cpp's, other models have none."""
    return keys.size(WINDOW, 4096) if _has_windows(keys) else None


def exaone_types(keys: Keys) -> list[str]:
    """Return `layer_types` of exaone4."""
    types: list[str] = layer_types(4)(keys)
    return types if _has_windows(keys) else full_attention(keys)


def _has_windows(keys: Keys) -> bool:
    return bool(keys.optional(WINDOW, int)) or keys.n_layers() == 64


def shared_width(keys: Keys) -> int:
    """Return the width of qwen2moe's shared expert; old files have it only in its tensor."""
    tensor = keys.file.tensors.get("blk.0.ffn_up_shexp.weight")
    return keys.size("expert_shared_feed_forward_length", tensor and tensor.shape[0])


def check_streams(keys: Keys) -> None:
    """Require the position streams to cover all rotary channels; in texts the streams are equal."""
    name, width = "rope.dimension_sections", keys.head_width()
    width = keys.size("rope.dimension_count", width)
    sections = keys.numbers(name, 4)
    if not isinstance(sections, list) or 2 * sum(sections) != width:
        raise InputError(
            f"{keys.file.path}: {name} is {sections}, expected a sum of {width // 2}, half of the "
            "rotary channels"
        )

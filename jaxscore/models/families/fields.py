"""Translations from config attributes to `DecoderConfig` fields that several families share."""

from collections.abc import Iterable
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Rotary
from jaxscore.errors import InputError
from jaxscore.models.config.rope_parameters import RIDING
from jaxscore.models.rope import ORIGINAL, rotary

SIZES = "vocab_size hidden_size num_hidden_layers num_attention_heads tie_word_embeddings".split()
ROPE = "max_position_embeddings rope_parameters".split()
INV_FREQ = r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
MAX_POSITIONS = 131_072  # for models without a limit, such as those with ALiBi or recurrences alone

# Model types whose class rotates as many channels as its table of cosines has, which is even
ROTATES_AS_COSINES = set(
    "bamba glm glm4 glm4_moe gpt_neox minimax_m2 phi3 qwen3_5_moe_text qwen3_5_text "
    "qwen3_next qwen4_exp_text recurrent_gemma".split()
)

# transformers' name of an activation -> ours
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
}


def reads(*names: str) -> frozenset[str]:
    """Return the set of attribute names, which each string separates by spaces."""
    return frozenset(" ".join(names).split())


def require(config: Any, **handled: Any) -> None:
    """Check that each attribute is absent or has the one value that is handled.

    Raises:
        InputError: an attribute has another value.
    """
    for name, value in handled.items():
        if (actual := getattr(config, name, value)) != value:
            raise InputError(f"{name} is {actual!r}, which is not handled; handled is {value!r}")


def require_counts(config: Any, *names: str) -> None:
    """Check that attributes are integers of at least 1, since defaults of the classes may not be.

    Raises:
        InputError: an attribute has another value.
    """
    for name in names:
        if type(count := getattr(config, name)) is not int or count < 1:
            raise InputError(f"{name} is {count!r}, expected a number of at least 1")


def require_one_of(config: Any, name: str, *handled: Any) -> Any:
    """Return the value of an attribute that must be one of `handled`.

    Raises:
        InputError: it has another value.
    """
    value = getattr(config, name)
    if value not in handled:
        listed = ", ".join(map(repr, handled))
        raise InputError(f"{name} is {value!r}, which is not handled; handled are {listed}")
    return value


def require_rope_type(config: Any, *handled: str) -> str:
    """Return the rope type of a family whose PyTorch class takes only some types.

    Raises:
        InputError: it is not one of `handled`.
    """
    rope_type: str = config.rope_parameters["rope_type"]
    if rope_type not in handled:
        raise InputError(
            f"rope_type is {rope_type!r}, which transformers' versions do not agree on; handled is "
            f"{' or '.join(map(repr, handled))}"
        )
    return rope_type


def activation(config: Any, attribute: str = "hidden_act") -> str:
    """Return our name of the activation function."""
    name = getattr(config, attribute)
    if name not in ACTIVATIONS:
        raise InputError(
            f"{attribute} is {name!r}, which is not handled; "
            f"handled are {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[name]


def head_width(config: Any) -> int:
    """Return the channels per head: `head_dim`, or `hidden_size` over `num_attention_heads`."""
    width = getattr(config, "head_dim", None)
    if not width and config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads "
            f"{config.num_attention_heads}"
        )
    return width or config.hidden_size // config.num_attention_heads


def decoder_config(config: Any, **overrides: Any) -> DecoderConfig:
    """Return a llama-like decoder with the config's sizes, except for the fields in `overrides`."""
    n_heads = config.num_attention_heads
    n_kv_heads = overrides.get("n_kv_heads", getattr(config, "num_key_value_heads", None))
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if n_heads % n_kv_heads:
        raise InputError(
            f"num_attention_heads {n_heads} is not a multiple of num_key_value_heads {n_kv_heads}"
        )
    width = head_width(config)
    return DecoderConfig.of(
        **{
            "vocab_size": config.vocab_size,
            "width": config.hidden_size,
            "n_layers": config.num_hidden_layers,
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "head_width": width,
            "windows": (0,) * config.num_hidden_layers,
            "norm_kind": "rms",
            "score_scale": width**-0.5,
            "head_tied": config.tie_word_embeddings,
            **overrides,
        }
    )


def gpt_decoder_config(config: Any, **overrides: Any) -> DecoderConfig:
    """Return a decoder with layer norms and an ungated MLP, as in GPT-2.

    Args:
        overrides: fields of `DecoderConfig` that differ.
    """
    return decoder_config(
        config, **{"norm_kind": "layer", "norm_bias": True, "mlp_gated": False, **overrides}
    )


def biases(config: Any) -> dict[str, bool]:
    """Return the bias fields from `attention_bias` and, if the family has it, `mlp_bias`."""
    bias = config.attention_bias
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": getattr(config, "mlp_bias", False)}


def biases_everywhere(bias: bool) -> dict[str, bool]:
    """Return the bias fields of a decoder with biases in all linear layers or in none."""
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": bias}


def rotary_fields(config: Any) -> dict[str, Any]:
    """Return the rotary fields of a decoder whose layers share one table."""
    parameters = frequency_parameters(config, config.rope_parameters)
    allows_odd = config.model_type in ROTATES_AS_COSINES
    table = rotary(head_width(config), parameters, allows_odd=allows_odd)
    return {"rotary": (table,), "rotary_of": (0,) * config.num_hidden_layers}


def rotary_by_layer_type(config: Any) -> dict[str, Any]:
    """Return the rotary fields of a decoder with one table per type in `layer_types`.

    Layers whose type has null in `rope_parameters` are NoPE.
    """
    width, layer_types = head_width(config), list(config.rope_parameters)
    tables = {
        layer_type: rotary(width, frequency_parameters(config, parameters))
        for layer_type, parameters in config.rope_parameters.items()
        if parameters is not None
    }
    n_pairs = max((len(table.frequencies) for table in tables.values()), default=0)
    types = per_layer_values(config, "layer_types")
    if unknown := sorted(set(types) - set(layer_types)):
        raise InputError(f"layer_types has {unknown}, which rope_parameters lacks")
    return {
        "rotary": tuple(tables.get(layer_type, no_rotation(n_pairs)) for layer_type in layer_types),
        "rotary_of": tuple(map(layer_types.index, types)),
    }


def rotary_in_layers(config: Any, has_rotary: Iterable[bool]) -> dict[str, Any]:
    """Return the rotary fields of a decoder in which only some layers have rotary embeddings.

    Args:
        has_rotary: one entry per layer; False for a NoPE layer.
    """
    table = rotary_fields(config)["rotary"][0]
    return {
        "rotary": (table, no_rotation(len(table.frequencies))),
        "rotary_of": tuple(0 if rotates else 1 for rotates in has_rotary),
    }


def rotary_by_length(config: Any, short: Rotary, long: Rotary) -> dict[str, Any]:
    """Return the rotary fields of a decoder that has a second table beyond the original length."""
    return {
        "rotary": (short,),
        "rotary_of": (0,) * config.num_hidden_layers,
        "long_rotary": (long,),
        "long_from": config.rope_parameters[ORIGINAL],
    }


def no_rotation(n_pairs: int) -> Rotary:
    """Return a rotary table that leaves queries and keys unchanged."""
    return Rotary((0.0,) * n_pairs)


def frequency_parameters(config: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters without the keys that do not change frequencies."""
    ignored = RIDING.get(config.model_type, frozenset())
    return {key: value for key, value in parameters.items() if key not in ignored}


def per_layer_values(config: Any, attribute: str) -> list[Any]:
    """Return an attribute that must be a list with one entry per layer."""
    values = getattr(config, attribute)
    if not isinstance(values, list) or len(values) != config.num_hidden_layers:
        raise InputError(
            f"{attribute} is {values!r}, expected an entry for each of num_hidden_layers "
            f"{config.num_hidden_layers}"
        )
    return values


def layer_indices(config: Any, attribute: str) -> list[int]:
    """Return an attribute that must be a list of layer indices."""
    values, n = getattr(config, attribute), config.num_hidden_layers
    if not isinstance(values, list) or not all(type(i) is int and 0 <= i < n for i in values):
        raise InputError(
            f"{attribute} is {str(values)[:60]}, expected a list of layers from 0 to {n - 1}"
        )
    return values


def window_size(config: Any, attribute: str = "sliding_window") -> int:
    """Return the size of the attention window. 0 would hide everything and is refused."""
    size = getattr(config, attribute)
    if type(size) is not int or size < 1:
        raise InputError(f"{attribute} is {size!r}, expected a number of at least 1")
    return size


def windows_by_layer_type(
    config: Any, windowed: str = "sliding_attention", attribute: str = "sliding_window"
) -> tuple[int, ...]:
    """Return each layer's window: `attribute` for type `windowed`, 0 for full attention."""
    types = per_layer_values(config, "layer_types")
    if unknown := sorted(set(types) - {"full_attention", windowed}):
        raise InputError(f"layer_types has {unknown}, which is not handled")
    return tuple(
        window_size(config, attribute) if layer_type == windowed else 0 for layer_type in types
    )


def uniform_window(config: Any) -> tuple[int, ...]:
    """Return the same window for each layer: `sliding_window`, or 0 if it is null."""
    size = 0 if config.sliding_window is None else window_size(config)
    return (size,) * config.num_hidden_layers

"""What many families have in common: sizes under their usual names, and rows of weight tables."""

from collections.abc import Iterable
from typing import Any

from jaxscore.device.decoder_config import DecoderConfig, Rotary
from jaxscore.errors import InputError
from jaxscore.models.config.rope_parameters import RIDING
from jaxscore.models.families.family import Part, Path, Source, Table
from jaxscore.models.rope import ORIGINAL, rotary

SIZES = "vocab_size hidden_size num_hidden_layers num_attention_heads tie_word_embeddings".split()
ROPE = "max_position_embeddings rope_parameters".split()
INV_FREQ = r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"

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
    """Attribute names, several to a string."""
    return frozenset(name for several in names for name in several.split())


def activation(config: Any, attribute: str = "hidden_act") -> str:
    """Our name of the activation that an attribute names."""
    name = getattr(config, attribute)
    if name not in ACTIVATIONS:
        raise InputError(
            f"{attribute} is {name!r}, which is not handled; "
            f"handled are {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[name]


def refuse(config: Any, **handled: Any) -> None:
    """Attributes that must have the one value that is handled, or be absent.

    Raises:
        InputError: naming one that has another.
    """
    for name, value in handled.items():
        if (found := getattr(config, name, value)) != value:
            raise InputError(f"{name} is {found!r}, which is not handled; handled is {value!r}")


def one_of(config: Any, name: str, *handled: Any) -> Any:
    """An attribute that must have one of some values.

    Raises:
        InputError: naming it where it has another.
    """
    found = getattr(config, name)
    if found not in handled:
        listed = ", ".join(map(repr, handled))
        raise InputError(f"{name} is {found!r}, which is not handled; handled are {listed}")
    return found


def head_width(config: Any) -> int:
    """Channels of a head, said or left to the other sizes."""
    said = getattr(config, "head_dim", None)
    if not said and config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is no multiple of num_attention_heads "
            f"{config.num_attention_heads}"
        )
    return said or config.hidden_size // config.num_attention_heads


def turning(config: Any) -> dict[str, Any]:
    """The rotary fields of a decoder whose layers all have the same table."""
    table = rotary(head_width(config), frequencies_of(config, config.rope_parameters))
    return {"rotary": (table,), "rotary_of": (0,) * config.num_hidden_layers}


def turning_by_type(config: Any) -> dict[str, Any]:
    """The rotary fields of a decoder whose layers have a table for each type in `layer_types`.

    A type for which `rope_parameters` has null is not told positions.
    """
    width, kinds = head_width(config), list(config.rope_parameters)
    found = {
        kind: rotary(width, frequencies_of(config, one))
        for kind, one in config.rope_parameters.items()
        if one is not None
    }
    longest = max((len(table.frequencies) for table in found.values()), default=0)
    still = Rotary((0.0,) * longest)
    types = for_each_layer(config, "layer_types")
    if unknown := sorted(set(types) - set(kinds)):
        raise InputError(f"layer_types has {unknown}, for which there are no rope_parameters")
    return {
        "rotary": tuple(found.get(kind, still) for kind in kinds),
        "rotary_of": tuple(map(kinds.index, types)),
    }


def turning_in(config: Any, layers: Iterable[bool]) -> dict[str, Any]:
    """The rotary fields of a decoder of which only some layers are told positions.

    Args:
        layers: for each layer whether it is.
    """
    table = turning(config)["rotary"][0]
    return {
        "rotary": (table, nothing_turns(table)),
        "rotary_of": tuple(0 if turns else 1 for turns in layers),
    }


def turning_by_length(config: Any, short: Rotary, long: Rotary) -> dict[str, Any]:
    """The rotary fields of a decoder with another table for requests longer than the original
    length."""
    return {
        "rotary": (short,),
        "rotary_of": (0,) * config.num_hidden_layers,
        "long_rotary": (long,),
        "long_from": config.rope_parameters[ORIGINAL],
    }


def rope_type(config: Any, *handled: str) -> str:
    """Which scaling the frequencies have, where PyTorch's class takes only some.

    Raises:
        InputError: it is not one of `handled`.
    """
    kind: str = config.rope_parameters["rope_type"]
    if kind not in handled:
        raise InputError(
            f"rope_type is {kind!r}, which transformers' versions do not agree on; handled is "
            f"{' or '.join(map(repr, handled))}"
        )
    return kind


def frequencies_of(config: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """The rotary parameters less the keys that no frequency depends on."""
    rest = RIDING.get(config.model_type, frozenset())
    return {key: value for key, value in parameters.items() if key not in rest}


def decoder(config: Any, **own: Any) -> DecoderConfig:
    """A decoder of these sizes, llama-like in all that `own` does not say."""
    n_heads = config.num_attention_heads
    n_kv_heads = own.get("n_kv_heads", getattr(config, "num_key_value_heads", None))
    n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if n_heads % n_kv_heads:
        raise InputError(
            f"num_attention_heads {n_heads} is no multiple of num_key_value_heads {n_kv_heads}"
        )
    width = head_width(config)
    return DecoderConfig(
        **{
            "vocab_size": config.vocab_size,
            "width": config.hidden_size,
            "n_layers": config.num_hidden_layers,
            "n_heads": n_heads,
            "n_kv_heads": n_kv_heads,
            "head_width": width,
            "windows": (0,) * config.num_hidden_layers,
            "norm": "rms",
            "gated": True,
            "attention_scale": width**-0.5,
            "qkv_bias": False,
            "out_bias": False,
            "mlp_bias": False,
            "tied": config.tie_word_embeddings,
            **own,
        }
    )


def for_each_layer(config: Any, attribute: str) -> list[Any]:
    """An attribute that must have as many entries as there are layers."""
    values = getattr(config, attribute)
    if not isinstance(values, list) or len(values) != config.num_hidden_layers:
        raise InputError(
            f"{attribute} is {values!r}, expected an entry for each of num_hidden_layers "
            f"{config.num_hidden_layers}"
        )
    return values


def layer_numbers(config: Any, attribute: str) -> list[int]:
    """An attribute that lists layers by their number."""
    values, n = getattr(config, attribute), config.num_hidden_layers
    if not isinstance(values, list) or not all(type(i) is int and 0 <= i < n for i in values):
        raise InputError(
            f"{attribute} is {str(values)[:60]}, expected a list of layers from 0 to {n - 1}"
        )
    return values


def window(config: Any, attribute: str = "sliding_window") -> int:
    """How far a token sees; 0 is refused, since it would hide everything."""
    found = getattr(config, attribute)
    if type(found) is not int or found < 1:
        raise InputError(f"{attribute} is {found!r}, expected a number of at least 1")
    return found


def windows_of_types(config: Any) -> tuple[int, ...]:
    """For each layer the window that `layer_types` gives it."""
    types = for_each_layer(config, "layer_types")
    if unknown := sorted(set(types) - {"full_attention", "sliding_attention"}):
        raise InputError(f"layer_types has {unknown}, which is not handled")
    return tuple(window(config) if kind == "sliding_attention" else 0 for kind in types)


def window_everywhere(config: Any) -> tuple[int, ...]:
    """One window for all layers, or none."""
    of_all = 0 if config.sliding_window is None else window(config)
    return (of_all,) * config.num_hidden_layers


def nothing_turns(table: Rotary) -> Rotary:
    """A table as long that leaves queries and keys as they are."""
    return Rotary((0.0,) * len(table.frequencies))


def linear(
    path: Path,
    name: str,
    bias: bool,
    *,
    part: Part | None = None,
    transposed: bool = False,
    layers: tuple[int, ...] | None = None,
) -> Table:
    """The rows of one product."""
    table = {(*path, "weight"): Source(f"{name}.weight", transposed, part, layers=layers)}
    if bias:
        table[*path, "bias"] = Source(f"{name}.bias", part=part, layers=layers)
    return table


def norm(path: Path, name: str, bias: bool, plus: float = 0.0) -> Table:
    """The rows of one norm."""
    table = {(*path, "scale"): Source(f"{name}.weight", plus=plus)}
    return table | ({(*path, "bias"): Source(f"{name}.bias")} if bias else {})


def unembedding(config: DecoderConfig, name: str = "lm_head") -> Table:
    """The rows of what follows the last norm."""
    table: Table = {} if config.tied else {("unembed", "weight"): Source(f"{name}.weight")}
    return table | ({("unembed", "bias"): Source(f"{name}.bias")} if config.head_bias else {})

"""How the layers of gemma4_text differ: sizes of heads, whose keys they use, how positions turn."""

from typing import Any

from jaxscore.device.decoder_config import OtherHeads, Rotary
from jaxscore.errors import InputError
from jaxscore.models.families import parts
from jaxscore.models.rope import rotary

FULL, SLIDING = "full_attention", "sliding_attention"
OWN = {"head_dim", "num_key_value_heads"}  # what `per_layer_config` may give a layer


def _sizes(config: Any, layer: int) -> tuple[int, int]:
    """Key heads and channels of a head."""
    own = config.per_layer_config.get(layer, {})
    if not isinstance(own, dict) or (unknown := sorted(set(own) - OWN)):
        raise InputError(
            f"per_layer_config has {own if not isinstance(own, dict) else unknown} for layer "
            f"{layer}, expected {' and '.join(sorted(OWN))}"
        )
    heads = own.get("num_key_value_heads") or config.num_key_value_heads
    return heads, own.get("head_dim") or config.head_dim


def heads(config: Any, types: list[str]) -> dict[str, Any]:
    """Sizes of the sliding layers, and of the full ones where they have others."""
    sizes = {kind: {_sizes(config, i) for i, one in enumerate(types) if one == kind}
             for kind in (SLIDING, FULL)}  # fmt: skip
    if any(len(found) > 1 for found in sizes.values()):
        raise InputError(f"per_layer_config has several sizes of one layer type: {sizes}")
    [(n_kv_heads, width)] = sizes[SLIDING] or sizes[FULL]
    out: dict[str, Any] = {"n_kv_heads": n_kv_heads, "head_width": width}
    full = tuple(i for i, one in enumerate(types) if one == FULL)
    as_keys = bool(config.attention_k_eq_v)
    if sizes[SLIDING] and full and (sizes[FULL] != sizes[SLIDING] or as_keys):
        [(other_heads, other_width)] = sizes[FULL]
        out["other_heads"] = OtherHeads(full, other_heads, other_width, as_keys)
    elif not sizes[SLIDING]:
        out["values_are_keys"] = as_keys
    n_heads = config.num_attention_heads
    for heads, _ in sizes[SLIDING] | sizes[FULL]:
        if heads < 1 or n_heads % heads:
            raise InputError(
                f"num_attention_heads {n_heads} is no multiple of num_key_value_heads {heads}"
            )
    return out


def keys_of(config: Any, types: list[str]) -> tuple[int, ...]:
    """The last layers use the keys of the last one of their type before them."""
    n, shared = config.num_hidden_layers, config.num_kv_shared_layers
    if not shared:
        return ()
    if type(shared) is not int or not 0 < shared < n or set(types[: n - shared]) != set(types):
        raise InputError(
            f"num_kv_shared_layers is {shared!r}, expected that a layer of each type is before them"
        )
    last = {kind: max(i for i in range(n - shared) if types[i] == kind) for kind in set(types)}
    return tuple(i if i < n - shared else last[types[i]] for i in range(n))


def turning(config: Any, types: list[str]) -> dict[str, Any]:
    """A table for each layer type, by the width of its heads."""
    tables = {
        kind: rotary(
            _sizes(config, types.index(kind))[1],
            parts.frequencies_of(config, config.rope_parameters[kind]),
        )
        for kind in dict.fromkeys(types)
        if config.rope_parameters[kind] is not None
    }
    longest = max((len(one.frequencies) for one in tables.values()), default=0)

    def filled(kind: str) -> Rotary:
        found = tables.get(kind, Rotary(()))
        short = longest - len(found.frequencies)
        return Rotary(found.frequencies + (0.0,) * short, found.factor)

    kinds = list(dict.fromkeys(types))
    return {"rotary": tuple(map(filled, kinds)), "rotary_of": tuple(map(kinds.index, types))}

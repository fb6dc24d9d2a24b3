"""All rotary attributes of a `config.json` in one form: `rope_parameters`.

transformers 4.57 writes `rope_theta`, `rope_scaling` and, by family, `partial_rotary_factor`,
`rotary_pct`, `rotary_emb_base`, `rope_local_base_freq` or `rotary_dim`; transformers 5 writes one
`rope_parameters`, flat or with layer types as keys. If two of them name one number they must
agree, since the versions differ in which one counts.
"""

from collections.abc import Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.config.check import REALS, is_real
from jaxscore.models.rope import ALPHA, ORIGINAL

TYPES = ("full_attention", "sliding_attention")
# Types for which transformers reads the length that a model was trained for
WITH_ORIGINAL = ("llama3", "longrope", "yarn")
# model type -> other names of the base and of the share of a head that rotates
BASES = {"gpt_neox": ("rope_theta", "rotary_emb_base")}
# model type -> an object of the config that has the base
NESTED = {"dbrx": "attn_config"}
SHARES = {"gpt_neox": ("partial_rotary_factor", "rotary_pct")}
# model type -> keys that change no frequency: the family reads them, or they repeat others
RIDING = {"ministral3": frozenset({"llama_4_scaling_beta"})}
# Types whose "dynamic" scaling is by a base that `alpha` makes larger
WITH_ALPHA = frozenset({"hunyuan_v1_dense", "hunyuan_v1_moe"})
# With position streams of images and videos. Those of a text token are equal, so the division of
# channels among them changes nothing.
STREAMS = frozenset(
    "qwen2_5_vl_text qwen2_vl_text qwen3_5_moe_text qwen3_5_text qwen3_vl_moe_text "
    "qwen3_vl_text qwen4_exp_text".split()
)
# Whose base may be null, which is no rotation
MAY_BE_NOPE = frozenset({"olmo_hybrid"})
# Whose class has no default for numbers that the object of a layer type lacks
COMPLETE = frozenset({"mellum"})
OLD = ("rope_scaling", "rope_theta", "rope_local_base_freq")


# Whose class reads `rope_parameters` alone, if the file has it, and never `rope_scaling`
NEW_ALONE = frozenset({"cohere2_moe"})


def names_of(kind: str, default: Mapping[str, Any]) -> frozenset[str]:
    """Attributes that `normal` reads for a model type."""
    if has_layer_types(default):
        old = {"gemma3_text": OLD, "gemma3n_text": OLD, "olmo3": OLD[:2]}.get(kind, ())
        return frozenset({"rope_parameters", *old})
    found = {"rope_parameters", "rope_scaling", *BASES.get(kind, ("rope_theta",))}
    if "partial_rotary_factor" in default:
        found |= {*SHARES.get(kind, ("partial_rotary_factor",))}
    return frozenset(found | ({"rotary_dim"} if kind == "minimax_m2" else set()))


def normal(
    kind: str, raw: Mapping[str, Any], default: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """Normalized `rope_parameters` of a file.

    `rope_type` and `rope_theta` are always present, `partial_rotary_factor` if the family rotates
    a part of each head, `original_max_position_embeddings` if the type uses it. With layer types
    as keys (if `default` has them), each type has its own, or null for no rotation.

    Args:
        raw: the rotary attributes of the file.
        default: parameters of a file without any.
        sizes: attributes that lengths and shares are read from.

    Raises:
        InputError: two names of one number that differ, a value of the wrong type, or a missing
            number that differs between transformers' versions.
    """
    if has_layer_types(default):
        return _for_types(kind, raw, default, sizes)
    if kind in NEW_ALONE:
        if scaling := raw.get("rope_scaling"):
            raise InputError(
                f"rope_scaling is {str(scaling)[:60]}, which transformers' class of this family "
                "does not read; write rope_parameters"
            )
        raw = {"rope_parameters": raw["rope_parameters"]} if raw.get("rope_parameters") else raw
    both = {name: raw[name] for name in ("rope_scaling", "rope_parameters") if raw.get(name)}
    if kind in MAY_BE_NOPE and (found_nope := _nope(raw, both)) is not None:
        return found_nope
    found = [
        _flat(kind, raw, _object(name, value), sizes, default) for name, value in both.items()
    ] or [_flat(kind, raw, {}, sizes, default)]
    if found[0] != found[-1]:
        raise InputError("rope_scaling and rope_parameters say different things; leave one out")
    out = found[0]
    if "partial_rotary_factor" not in default:
        _check_whole(out)
    if "rope_type" in default:
        # transformers 4.57 reads null as no scaling, 5 as the default; for an object without a
        # base they take different ones.
        if not both and "rope_scaling" in raw:
            raise InputError("rope_scaling is null, expected an object; or leave it out")
        # Without any object 5 takes its own base and ignores `rope_theta`.
        theta = out.get("rope_theta", default["rope_theta"])
        if not both and theta != default["rope_theta"]:
            raise InputError(
                f"rope_theta is {theta!r} and rope_scaling is missing, without which "
                "transformers' versions take different ones"
            )
        if both:
            return _with_theta(out, None)
    out = {**default, **out} if not both else out
    if "partial_rotary_factor" in default:
        out.setdefault("partial_rotary_factor", default["partial_rotary_factor"])
    return _with_theta(out, default["rope_theta"])


def _nope(raw: Mapping[str, Any], both: Mapping[str, Any]) -> dict[str, Any] | None:
    """Parameters without a base, if the file has null for it.

    Args:
        both: objects of the file.
    """
    bases = [(name, raw[name]) for name in ("rope_theta",) if name in raw]
    for name, value in both.items():
        given = _object(name, value)
        if "rope_type" in given and given["rope_type"] is None:
            raise InputError(f"{name}.rope_type is null, expected 'default'")
        bases += [(f"{name}.rope_theta", given["rope_theta"])] if "rope_theta" in given else []
    if not bases and not both and "rope_parameters" in raw:
        # transformers 5 takes its default base, and others no rotation
        raise InputError(
            'rope_parameters is null, expected an object; write {"rope_theta": null} for no '
            "rotary embeddings"
        )
    if all(base is not None for _, base in bases):
        return None
    if any(base is not None for _, base in bases) or any(
        _object(name, value).get("rope_type", "default") != "default"
        for name, value in both.items()
    ):
        raise InputError("rope_theta is null, and there are rope_parameters; which one counts?")
    return {"rope_type": "default", "rope_theta": None}


def has_layer_types(default: Mapping[str, Any]) -> bool:
    """Whether the rotary parameters have layer types as keys."""
    return any(name in default for name in TYPES)


def _flat(
    kind: str,
    raw: Mapping[str, Any],
    given: Mapping[str, Any],
    sizes: Mapping[str, Any],
    default: Mapping[str, Any],
) -> dict[str, Any]:
    """One object, merged with the attributes beside it in the file."""
    out = _clean(kind, given, sizes)
    bases = [(name, raw[name]) for name in BASES.get(kind, ("rope_theta",)) if name in raw]
    inner = sizes.get(NESTED.get(kind, ""))
    if isinstance(inner, Mapping) and "rope_theta" in inner:
        bases.append((f"{NESTED[kind]}.rope_theta", inner["rope_theta"]))
    _fill(out, "rope_theta", bases)
    shares = []
    if "partial_rotary_factor" in default:
        names = SHARES.get(kind, ("partial_rotary_factor",))
        shares = [(name, raw[name]) for name in names if name in raw]
    if kind == "minimax_m2" and raw.get("rotary_dim") is not None:
        shares.append(("rotary_dim / head_dim", raw["rotary_dim"] / sizes["head_dim"]))
    _fill(out, "partial_rotary_factor", shares)
    return out


def _for_types(
    kind: str, raw: Mapping[str, Any], default: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """One object per layer type; an old `rope_scaling` is for full layers."""
    old = names_of(kind, default) - {"rope_parameters"}
    given = _object("rope_parameters", raw.get("rope_parameters") or {})
    if given and raw.get("rope_scaling"):
        raise InputError("rope_scaling and rope_parameters are both there; leave one out")
    if given and set(given) != set(default):
        raise InputError(
            f"rope_parameters has {', '.join(sorted(given))}, expected {', '.join(default)}"
        )
    out: dict[str, Any] = {}
    for layer_type, defaults in default.items():
        full = layer_type == "full_attention"
        if given:
            found = given[layer_type]
            if kind in COMPLETE:
                _check_complete(f"rope_parameters.{layer_type}", found)
            if found is None and old:
                # transformers 5 takes the default for it; elsewhere null is no rotation.
                raise InputError(f"rope_parameters.{layer_type} is null, expected an object")
            if found is None:
                out[layer_type] = None
                continue
        else:
            found = (full and raw.get("rope_scaling")) or {}
        own = _clean(kind, _object(f"rope_parameters.{layer_type}", found), sizes)
        if "partial_rotary_factor" in defaults and "rope_type" not in defaults:
            own.setdefault("partial_rotary_factor", defaults["partial_rotary_factor"])
        elif own.get("rope_type") != "proportional":
            _check_whole(own)
        if own.get("truncate", True) is not True:
            # transformers 5 reads it beside the layer types, 4.57 in the object.
            raise InputError(f"rope_parameters.{layer_type} has truncate, which is not handled")
        base = "rope_theta" if full or OLD[2] not in old else OLD[2]
        if base in old and base in raw:
            _fill(own, "rope_theta", [(base, raw[base])])
        if not given and not found:
            own = {**defaults, **own}
        out[layer_type] = _with_theta(own, defaults["rope_theta"])
    return out


def _check_complete(name: str, value: Any) -> None:
    given = _object(name, value)
    rope_type = given.get("rope_type", given.get("type"))
    needed = ["rope_theta", *([ORIGINAL] if rope_type in WITH_ORIGINAL else [])]
    if missing := [key for key in needed if given.get(key) is None]:
        raise InputError(f"{name} lacks {', '.join(missing)}")


def _clean(kind: str, given: Mapping[str, Any], sizes: Mapping[str, Any]) -> dict[str, Any]:
    """An object without nulls, with its type under one name and its original length."""
    out = {key: value for key, value in given.items() if value is not None}
    older = out.pop("type", None)
    rope_type = out.get("rope_type", older)
    if kind in STREAMS:
        rope_type = "default" if rope_type == "mrope" else rope_type
        _check_streams(out, sizes, 0.25 if kind.startswith("qwen3_5") else 1.0)
    if kind in ("phi3", "phi4_multimodal") and rope_type in ("su", "yarn"):
        rope_type = "longrope"  # as its first releases call it
    if kind == "sarvam_mla" and rope_type == "deepseek_yarn":
        rope_type = "yarn"
    if rope_type == ALPHA:
        raise InputError(f"rope_type is {ALPHA!r}, which is not handled")
    if kind in WITH_ALPHA and rope_type == "dynamic" and out.get("alpha"):
        rope_type = ALPHA
    if rope_type is not None:
        out["rope_type"] = rope_type
    if rope_type in WITH_ORIGINAL:
        original = sizes.get(ORIGINAL)
        _fill(out, ORIGINAL, [] if original is None else [(ORIGINAL, original)])
        out.setdefault(ORIGINAL, sizes["max_position_embeddings"])
    if kind == "bailing_hybrid" and rope_type in (None, "default"):
        # Its object repeats the width that is rotated, as a share of the linear layers' heads,
        # whose width `head_dim` is unless the file has both.
        head = sizes.get("linear_head_dim") or sizes["head_dim"]
        if head and out.get("partial_rotary_factor") == sizes["qk_rope_head_dim"] / head:
            del out["partial_rotary_factor"]
    if kind == "ministral3":  # whose object repeats it
        longest = "max_position_embeddings"
        _fill(out, longest, [(longest, sizes[longest])])
        del out[longest]
    return out


def _check_whole(given: Mapping[str, Any]) -> None:
    """Refuse a share for families that rotate whole heads, whose classes do not read it."""
    if (share := given.get("partial_rotary_factor", 1)) != 1:
        raise InputError(
            f"rope_parameters has partial_rotary_factor {share!r}, which transformers' class of "
            "this family does not read; leave it out"
        )


def _check_streams(out: dict[str, Any], sizes: Mapping[str, Any], share: float) -> None:
    """Drop the numbers of channel pairs for time, height and width, which must be all pairs.

    Args:
        share: of a head that rotates, if `out` has none.
    """
    section = out.pop("mrope_section", None)
    interleaved = out.pop("mrope_interleaved", False)
    if type(interleaved) is not bool:
        raise InputError(f"mrope_interleaved is {interleaved!r}, expected true or false")
    if section is None:
        return
    width = sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"]
    width = int(width * out.get("partial_rotary_factor", share))
    whole = isinstance(section, list) and all(type(n) is int and n > 0 for n in section)
    if not whole or len(section) != 3 or 2 * sum(section) != width:
        raise InputError(
            f"mrope_section is {str(section)[:60]}, expected three numbers that come to half of "
            f"the {'head width' if share == 1 else 'rotary channels'} {width}"
        )


def _fill(out: dict[str, Any], key: str, beside: list[tuple[str, Any]]) -> None:
    """Take a number from beside the object; if both have it they must agree."""
    for name, value in beside:
        if not is_real(value):
            like = 10000.0 if key in REALS else 0.5
            raise InputError(f"{name} is {value!r}, expected a value like {like}")
        if out.setdefault(key, value) != value:
            raise InputError(
                f"the rotary parameters have {key} {out[key]!r}, and {name} is {value!r}; "
                "which one counts?"
            )


def _with_theta(given: dict[str, Any], default: Any) -> dict[str, Any]:
    given.setdefault("rope_type", "default")
    theta = given.setdefault("rope_theta", default)
    if theta is None:
        raise InputError("rope_theta is missing; transformers' versions take different ones")
    if not is_real(theta):
        raise InputError(f"rope_theta is {theta!r}, expected a value like 10000.0")
    return given


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {str(value)[:60]}, expected an object")
    return value

"""Normalize all rotary attributes of a `config.json` into `rope_parameters`.

transformers 4.57 writes `rope_theta`, `rope_scaling` and, by family, `partial_rotary_factor`,
`rotary_pct`, `rotary_emb_base`, `rope_local_base_freq` or `rotary_dim`; transformers 5 writes
`rope_parameters`, flat or with layer types as keys. Two attributes for the same number must agree,
since the versions differ in which of them they read.
"""

from collections.abc import Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.config.check import REALS, is_real
from jaxscore.models.rope import ALPHA, ORIGINAL

TYPES = ("full_attention", "sliding_attention")
# Rope types for which transformers reads the original context length
WITH_ORIGINAL = ("llama3", "longrope", "yarn")
# model type -> names of the base
BASES = {"gpt_neox": ("rope_theta", "rotary_emb_base")}
# model type -> nested object of the config that contains the base
NESTED = {"dbrx": "attn_config"}
# model type -> names of the share of a head's channels that is rotary
SHARES = {"gpt_neox": ("partial_rotary_factor", "rotary_pct")}
# model type -> keys that do not change frequencies: the family reads them, or they repeat others
RIDING = {"ministral3": frozenset({"llama_4_scaling_beta"})}
# Model types whose "dynamic" scaling increases the base by `alpha`
WITH_ALPHA = frozenset({"hunyuan_v1_dense", "hunyuan_v1_moe"})
# Model types with position streams for images and videos (mrope). The streams of a text token are
# equal, so the division of channels among them is irrelevant.
STREAMS = frozenset(
    "qwen2_5_vl_text qwen2_vl_text qwen3_5_moe_text qwen3_5_text qwen3_vl_moe_text "
    "qwen3_vl_text qwen4_exp_text".split()
)
# Model types whose base may be null, for no rotary embeddings
MAY_BE_NOPE = frozenset({"olmo_hybrid"})
# Model types whose class does not fill in keys that the object of a layer type lacks
COMPLETE = frozenset({"mellum"})
OLD = ("rope_scaling", "rope_theta", "rope_local_base_freq")


# Model types whose class reads only `rope_parameters`, if the file has it, and never `rope_scaling`
NEW_ALONE = frozenset({"cohere2_moe"})


def names_of(model_type: str, default: Mapping[str, Any]) -> frozenset[str]:
    """Return the attributes that `normal` reads for a model type."""
    if has_layer_types(default):
        old = {"gemma3_text": OLD, "gemma3n_text": OLD, "olmo3": OLD[:2]}.get(model_type, ())
        return frozenset({"rope_parameters", *old})
    names = {"rope_parameters", "rope_scaling", *BASES.get(model_type, ("rope_theta",))}
    if "partial_rotary_factor" in default:
        names |= {*SHARES.get(model_type, ("partial_rotary_factor",))}
    return frozenset(names | ({"rotary_dim"} if model_type == "minimax_m2" else set()))


def normal(
    model_type: str, raw: Mapping[str, Any], default: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the normalized `rope_parameters` of a file.

    `rope_type` and `rope_theta` are always present, `partial_rotary_factor` if the family has
    partial rotary embeddings, `original_max_position_embeddings` if the rope type uses it. If
    `default` has layer types as keys, the result has them, too; null means no rotary embeddings.

    Args:
        raw: the rotary attributes of the file.
        default: the parameters of a file without any.
        sizes: attributes that lengths and shares are read from.

    Raises:
        InputError: different values under two names of one number, a value of the wrong type, or
            a missing number whose default differs between transformers' versions.
    """
    if has_layer_types(default):
        return _for_types(model_type, raw, default, sizes)
    if model_type in NEW_ALONE:
        if scaling := raw.get("rope_scaling"):
            raise InputError(
                f"rope_scaling is {str(scaling)[:60]}, which transformers' class of this family "
                "does not read; write rope_parameters"
            )
        raw = {"rope_parameters": raw["rope_parameters"]} if raw.get("rope_parameters") else raw
    both = {name: raw[name] for name in ("rope_scaling", "rope_parameters") if raw.get(name)}
    if model_type in MAY_BE_NOPE and (nope := _nope(raw, both)) is not None:
        return nope
    candidates = [
        _flat(model_type, raw, _object(name, value), sizes, default) for name, value in both.items()
    ] or [_flat(model_type, raw, {}, sizes, default)]
    if candidates[0] != candidates[-1]:
        raise InputError("rope_scaling and rope_parameters differ; leave one out")
    out = candidates[0]
    if "partial_rotary_factor" not in default:
        _check_no_share(out)
    if "rope_type" in default:
        # For null, transformers 4.57 uses no scaling, and 5 its default; for an object without a
        # base they use different bases.
        if not both and "rope_scaling" in raw:
            raise InputError("rope_scaling is null, expected an object; or leave it out")
        # Without any object, version 5 uses its default base and ignores `rope_theta`.
        theta = out.get("rope_theta", default["rope_theta"])
        if not both and theta != default["rope_theta"]:
            raise InputError(
                f"rope_theta is {theta!r} and rope_scaling is missing, without which "
                "transformers 4.57 and 5 use different bases"
            )
        if both:
            return _with_theta(out, None)
    out = {**default, **out} if not both else out
    if "partial_rotary_factor" in default:
        out.setdefault("partial_rotary_factor", default["partial_rotary_factor"])
    return _with_theta(out, default["rope_theta"])


def _nope(raw: Mapping[str, Any], both: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return parameters without rotary embeddings if the file's base is null, else None.

    Args:
        both: `rope_scaling` and `rope_parameters`, as far as the file has them.
    """
    bases = [(name, raw[name]) for name in ("rope_theta",) if name in raw]
    for name, value in both.items():
        parameters = _object(name, value)
        if "rope_type" in parameters and parameters["rope_type"] is None:
            raise InputError(f"{name}.rope_type is null, expected 'default'")
        bases += (
            [(f"{name}.rope_theta", parameters["rope_theta"])] if "rope_theta" in parameters else []
        )
    if not bases and not both and "rope_parameters" in raw:
        # transformers 5 uses its default base, others no rotary embeddings
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
        raise InputError(
            "rope_theta is null, but rope_parameters set another base or rope_type; leave one out"
        )
    return {"rope_type": "default", "rope_theta": None}


def has_layer_types(default: Mapping[str, Any]) -> bool:
    """Return True if the keys of the rotary parameters are layer types."""
    return any(name in default for name in TYPES)


def _flat(
    model_type: str,
    raw: Mapping[str, Any],
    parameters: Mapping[str, Any],
    sizes: Mapping[str, Any],
    default: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the parameters of one object, merged with the file's top-level attributes."""
    out = _clean(model_type, parameters, sizes)
    bases = [(name, raw[name]) for name in BASES.get(model_type, ("rope_theta",)) if name in raw]
    inner = sizes.get(NESTED.get(model_type, ""))
    if isinstance(inner, Mapping) and "rope_theta" in inner:
        bases.append((f"{NESTED[model_type]}.rope_theta", inner["rope_theta"]))
    _fill(out, "rope_theta", bases)
    shares = []
    if "partial_rotary_factor" in default:
        names = SHARES.get(model_type, ("partial_rotary_factor",))
        shares = [(name, raw[name]) for name in names if name in raw]
    if model_type == "minimax_m2" and raw.get("rotary_dim") is not None:
        shares.append(("rotary_dim / head_dim", raw["rotary_dim"] / sizes["head_dim"]))
    _fill(out, "partial_rotary_factor", shares)
    return out


def _for_types(
    model_type: str, raw: Mapping[str, Any], default: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one object per layer type; the older `rope_scaling` applies to full layers."""
    old = names_of(model_type, default) - {"rope_parameters"}
    by_layer_type = _object("rope_parameters", raw.get("rope_parameters") or {})
    if by_layer_type and raw.get("rope_scaling"):
        raise InputError("rope_scaling and rope_parameters are both present; leave one out")
    if by_layer_type and set(by_layer_type) != set(default):
        raise InputError(
            f"rope_parameters has {', '.join(sorted(by_layer_type))}, expected {', '.join(default)}"
        )
    out: dict[str, Any] = {}
    for layer_type, defaults in default.items():
        full = layer_type == "full_attention"
        if by_layer_type:
            value = by_layer_type[layer_type]
            if model_type in COMPLETE:
                _check_complete(f"rope_parameters.{layer_type}", value)
            if value is None and old:
                # transformers 5 uses the default; for other families null means no rotation.
                raise InputError(f"rope_parameters.{layer_type} is null, expected an object")
            if value is None:
                out[layer_type] = None
                continue
        else:
            value = (full and raw.get("rope_scaling")) or {}
        parameters = _clean(model_type, _object(f"rope_parameters.{layer_type}", value), sizes)
        if "partial_rotary_factor" in defaults and "rope_type" not in defaults:
            parameters.setdefault("partial_rotary_factor", defaults["partial_rotary_factor"])
        elif parameters.get("rope_type") != "proportional":
            _check_no_share(parameters)
        if parameters.get("truncate", True) is not True:
            # transformers 5 reads it next to the layer types, 4.57 in the object.
            raise InputError(f"rope_parameters.{layer_type} has truncate, which is not handled")
        base = "rope_theta" if full or OLD[2] not in old else OLD[2]
        if base in old and base in raw:
            _fill(parameters, "rope_theta", [(base, raw[base])])
        if not by_layer_type and not value:
            parameters = {**defaults, **parameters}
        out[layer_type] = _with_theta(parameters, defaults["rope_theta"])
    return out


def _check_complete(name: str, value: Any) -> None:
    parameters = _object(name, value)
    rope_type = parameters.get("rope_type", parameters.get("type"))
    needed = ["rope_theta", *([ORIGINAL] if rope_type in WITH_ORIGINAL else [])]
    if missing := [key for key in needed if parameters.get(key) is None]:
        raise InputError(f"{name} lacks {', '.join(missing)}")


def _clean(
    model_type: str, parameters: Mapping[str, Any], sizes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an object without nulls, with `rope_type` and the original length filled in."""
    out = {key: value for key, value in parameters.items() if value is not None}
    older = out.pop("type", None)
    rope_type = out.get("rope_type", older)
    if model_type in STREAMS:
        rope_type = "default" if rope_type == "mrope" else rope_type
        _check_streams(out, sizes, 0.25 if model_type.startswith("qwen3_5") else 1.0)
    if model_type in ("phi3", "phi4_multimodal") and rope_type in ("su", "yarn"):
        rope_type = "longrope"  # its name in the first releases differs
    if model_type == "sarvam_mla" and rope_type == "deepseek_yarn":
        rope_type = "yarn"
    if rope_type == ALPHA:
        raise InputError(f"rope_type is {ALPHA!r}, which is not handled")
    if model_type in WITH_ALPHA and rope_type == "dynamic" and out.get("alpha"):
        rope_type = ALPHA
    if rope_type is not None:
        out["rope_type"] = rope_type
    if rope_type in WITH_ORIGINAL:
        original = sizes.get(ORIGINAL)
        _fill(out, ORIGINAL, [] if original is None else [(ORIGINAL, original)])
        out.setdefault(ORIGINAL, sizes["max_position_embeddings"])
    if model_type == "bailing_hybrid" and rope_type in (None, "default"):
        # Its object repeats the rotary width as a share of the head width of linear layers, which
        # is `head_dim` unless the file has both.
        head = sizes.get("linear_head_dim") or sizes["head_dim"]
        if head and out.get("partial_rotary_factor") == sizes["qk_rope_head_dim"] / head:
            del out["partial_rotary_factor"]
    if model_type == "ministral3":  # its object repeats max_position_embeddings
        longest = "max_position_embeddings"
        _fill(out, longest, [(longest, sizes[longest])])
        del out[longest]
    return out


def _check_no_share(parameters: Mapping[str, Any]) -> None:
    """Check that no share is set, for families whose classes rotate whole heads and ignore it."""
    if (share := parameters.get("partial_rotary_factor", 1)) != 1:
        raise InputError(
            f"rope_parameters has partial_rotary_factor {share!r}, which transformers' class of "
            "this family does not read; leave it out"
        )


def _check_streams(out: dict[str, Any], sizes: Mapping[str, Any], share: float) -> None:
    """Drop `mrope_section`, after checking that its channel pairs are all rotary pairs of a head.

    Args:
        share: the rotary share of a head if `out` has none.
    """
    section = out.pop("mrope_section", None)
    interleaved = out.pop("mrope_interleaved", False)
    if type(interleaved) is not bool:
        raise InputError(f"mrope_interleaved is {interleaved!r}, expected true or false")
    if section is None:
        return
    width = sizes.get("head_dim") or sizes["hidden_size"] // sizes["num_attention_heads"]
    width = int(width * out.get("partial_rotary_factor", share))
    is_valid = isinstance(section, list) and all(type(n) is int and n > 0 for n in section)
    if not is_valid or len(section) != 3 or 2 * sum(section) != width:
        raise InputError(
            f"mrope_section is {str(section)[:60]}, expected three numbers that sum to half of "
            f"the {'head width' if share == 1 else 'rotary channels'} {width}"
        )


def _fill(out: dict[str, Any], key: str, siblings: list[tuple[str, Any]]) -> None:
    """Set `key` from attributes outside the object; all values present must agree."""
    for name, value in siblings:
        if not is_real(value):
            like = 10000.0 if key in REALS else 0.5
            raise InputError(f"{name} is {value!r}, expected a value like {like}")
        if out.setdefault(key, value) != value:
            raise InputError(
                f"the rotary parameters have {key} {out[key]!r}, and {name} is {value!r}; "
                "leave one out"
            )


def _with_theta(parameters: dict[str, Any], default: Any) -> dict[str, Any]:
    parameters.setdefault("rope_type", "default")
    theta = parameters.setdefault("rope_theta", default)
    if theta is None:
        raise InputError("rope_theta is missing; transformers 4.57 and 5 have different defaults")
    if not is_real(theta):
        raise InputError(f"rope_theta is {theta!r}, expected a value like 10000.0")
    return parameters


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} is {str(value)[:60]}, expected an object")
    return value

"""Rotary frequencies from a Hugging Face config, for every scaling.

The arithmetic is float32 where PyTorch's is: at position 100,000 the last bit of a frequency
turns a head by a hundredth of a radian.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscore.device.decoder_config import Rotary
from jaxscore.errors import InputError

MOST = 1e30  # below the largest float32
# rope_type -> the keys of rope_scaling that it reads, beside its own name
KEYS: dict[str, set[str]] = {
    "default": set(),
    "dynamic": {"factor", "original_max_position_embeddings"},
    "linear": {"factor"},
    "llama3": {
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {
        "factor",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        "truncate",
    },
}


def rotary(
    width: int, theta: float, scaling: Mapping[str, Any] | None, max_positions: int
) -> Rotary:
    """A table of width / 2 frequencies in radians per position, and its factor.

    Args:
        width: rotated channels of a head.
        theta: base of the wavelengths (RoPE, arXiv 2104.09864).
        scaling: the config's `rope_scaling`: "linear" (arXiv 2306.15595), "llama3" (the Llama
            3.1 release), "yarn" (arXiv 2309.00071). "dynamic" starts where `max_positions`
            ends, and longer requests are refused anyway.
        max_positions: what "yarn" takes where it names no original length.

    Raises:
        InputError: a type or key that is not handled, or a key that is missing.
    """
    kind, values = _checked(scaling, theta)
    wavelengths = _wavelengths(width, theta)
    frequencies = np.float32(1.0) / wavelengths
    factor = 1.0
    if kind == "linear":
        frequencies = frequencies / np.float32(values["factor"])
    elif kind == "llama3":
        frequencies = _llama3(frequencies, values)
    elif kind == "yarn":
        frequencies, factor = _yarn(wavelengths, theta, values, max_positions)
    return _table(frequencies, factor)


def longrope(
    width: int, theta: float, scaling: Mapping[str, Any], max_positions: int, original: int
) -> tuple[Rotary, Rotary]:
    """LongRoPE's tables (arXiv 2402.13753): for requests of up to `original` tokens, and longer.

    Raises:
        InputError: a key that is not handled, a list of another length.
    """
    _check_object(scaling)
    known = {"type", "rope_type", "short_factor", "long_factor", "attention_factor", "factor"}
    if unknown := sorted(set(scaling) - known):
        raise InputError(
            f"rope_scaling of type 'longrope' has keys that are not handled: {unknown}"
        )
    ratio = max_positions / original  # transformers takes this for `factor`, whatever that says
    factor = scaling.get("attention_factor")
    if factor is None:
        factor = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
    _check_positive("attention_factor", factor)
    tables = []
    for key in ("short_factor", "long_factor"):
        found = scaling.get(key)
        values = found if isinstance(found, list) else []
        if len(values) != width // 2 or not all(map(_is_positive, values)):
            raise InputError(
                f"rope_scaling has {key} {str(found)[:60]}, expected {width // 2} numbers above 0"
            )
        stretch = np.asarray(values, np.float32)
        tables.append(_table(np.float32(1.0) / (stretch * _wavelengths(width, theta)), factor))
    return tables[0], tables[1]


def _wavelengths(width: int, theta: float) -> np.ndarray:
    """In positions, over 2 pi."""
    if not _is_positive(theta) or theta < 1:
        raise InputError(f"rope_theta is {theta!r}, expected a number of at least 1")
    if width < 2 or width % 2:
        raise InputError(f"rotary channels of a head come out as {width}, expected an even number")
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    return np.float32(theta) ** exponent


def _table(frequencies: np.ndarray, factor: float) -> Rotary:
    return Rotary(tuple(float(f) for f in frequencies.astype(np.float32)), float(factor))


def _checked(scaling: Mapping[str, Any] | None, theta: float) -> tuple[str, dict[str, Any]]:
    if not scaling:
        return "default", {}
    _check_object(scaling)
    values = {key: value for key, value in scaling.items() if value is not None}
    kind = values.pop("rope_type", None) or values.get("type") or "default"
    values.pop("type", None)
    if kind not in KEYS:
        raise InputError(
            f"rope_scaling has rope_type {kind!r}, which is not handled; "
            f"handled are {', '.join(sorted(KEYS))}"
        )
    if (own := values.pop("rope_theta", theta)) != theta:
        raise InputError(
            f"rope_scaling has rope_theta {own!r}, the config itself {theta!r}; which one counts?"
        )
    if unknown := sorted(set(values) - KEYS[kind]):
        raise InputError(f"rope_scaling of type {kind!r} has keys that are not handled: {unknown}")
    required = {"default": set(), "llama3": KEYS["llama3"]}.get(kind, {"factor"})
    if missing := sorted(required - set(values)):
        raise InputError(f"rope_scaling of type {kind!r} lacks {missing}")
    for key, value in values.items():
        if key != "truncate":
            _check_positive(key, value)
    return kind, values


def _check_object(scaling: Any) -> None:
    if not isinstance(scaling, Mapping):
        raise InputError(f"rope_scaling is {str(scaling)[:60]}, expected an object")


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < MOST  # nor NaN


def _check_positive(key: str, value: Any) -> None:
    if not _is_positive(value):
        raise InputError(f"rope_scaling has {key} {value!r}, expected a positive number")


def _llama3(frequencies: np.ndarray, values: Mapping[str, Any]) -> np.ndarray:
    """Slow turns are divided by the factor, fast ones kept, those between blended."""
    length, factor = values["original_max_position_embeddings"], values["factor"]
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    if not low < high:
        raise InputError(
            f"rope_scaling has low_freq_factor {low}, expected one below high_freq_factor {high}"
        )
    turns = np.float32(length) * frequencies / np.float32(2 * math.pi)  # in the original length
    share = (turns - np.float32(low)) / np.float32(high - low)
    share = np.clip(share, 0, 1).astype(np.float32)
    return (1 - share) * frequencies / np.float32(factor) + share * frequencies


def _yarn(
    wavelengths: np.ndarray, theta: float, values: Mapping[str, Any], max_positions: int
) -> tuple[np.ndarray, float]:
    """Ramp, by channel, from the kept to the interpolated frequency."""
    factor, width = values["factor"], 2 * len(wavelengths)
    length = values.get("original_max_position_embeddings") or max_positions

    def channel(turns: float) -> float:
        """The channel pair that makes so many turns in the original length."""
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = channel(values.get("beta_fast") or 32)
    high = channel(values.get("beta_slow") or 1)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(width // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    ramp = ramp.astype(np.float32)
    kept, interpolated = 1 / wavelengths, 1 / (np.float32(factor) * wavelengths)

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    attention = values.get("attention_factor")
    if attention is None:
        mscale, overall = values.get("mscale"), values.get("mscale_all_dim")
        attention = magnitude(mscale) / magnitude(overall) if mscale and overall else magnitude(1.0)
    return interpolated * ramp + kept * (1 - ramp), attention

"""Rotary frequencies from a Hugging Face config, for every rope type.

Values are rounded to float32 in the same places as in PyTorch: at position 100,000 the last bit of
a frequency rotates a head by a hundredth of a radian.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscore.device.decoder_config import Rotary
from jaxscore.errors import InputError

MAX_REAL = 1e30  # below the largest float32
ORIGINAL = "original_max_position_embeddings"
ALPHA = "ntk_alpha"  # a "dynamic" type independent of the length, as transformers 5 names it
YARN = {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}
# rope_type -> keys that it reads in addition to its name, the base and the share
KEYS: dict[str, set[str]] = {
    "default": set(),
    "dynamic": {"factor", ORIGINAL},
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", ORIGINAL},
    # Published files also have yarn's keys, which are not read.
    ALPHA: {"alpha", ORIGINAL} | YARN,
    "proportional": {"factor"},
    "yarn": {ORIGINAL, "truncate"} | YARN,
}
ODD = {"default", "dynamic", "linear", "llama3"}  # types that may have an odd number of channels
REQUIRED = {
    "default": set(),
    "llama3": KEYS["llama3"],
    ALPHA: {"alpha"},
    "proportional": set(),
    "yarn": {"factor", ORIGINAL},
}


def rotary(head_width: int, parameters: Mapping[str, Any], *, allows_odd: bool = False) -> Rotary:
    """Return frequencies in radians per position, one per pair of rotary channels.

    Args:
        head_width: channels of a head; the share `partial_rotary_factor` of them is rotary.
        parameters: `rope_theta`, base of the wavelengths (RoPE, arXiv 2104.09864), and for scaled
            frequencies `rope_type` with its keys: "linear" (arXiv 2306.15595), "llama3" (the
            Llama 3.1 release), "yarn" (arXiv 2309.00071), "proportional" (Gemma 4: the exponent is
            over the whole head, and channels that do not rotate have frequency 0), "ntk_alpha"
            (Hunyuan: the base times alpha^(d / (d - 2))). "dynamic" applies beyond
            `max_position_embeddings`, where requests are refused anyway.
        allows_odd: if True, an odd number of rotary channels is rounded up in the rotation, but not
            in the exponents, as in classes that take it from the table of cosines.

    Raises:
        InputError: a type or key that is not handled, or a key that is missing.
    """
    theta, share, values = _theta_and_share(parameters)
    rope_type = values.pop("rope_type", "default")
    _check_keys(rope_type, values)
    width = head_width if rope_type == "proportional" else int(head_width * share)
    if rope_type == ALPHA:
        if width < 4:
            raise InputError(f"rotary channels of a head come out as {width}, expected at least 4")
        theta = theta * values["alpha"] ** (width / (width - 2))
    allows_odd = allows_odd and width < head_width and rope_type in ODD
    wavelengths = _wavelengths(width, theta, allows_odd)
    frequencies = np.float32(1.0) / wavelengths
    factor = 1.0
    if rope_type == "linear":
        frequencies = frequencies / np.float32(values["factor"])
    elif rope_type == "proportional":
        frequencies[int(share * head_width // 2) :] = 0
        frequencies = frequencies / np.float32(values.get("factor", 1.0))
    elif rope_type == "llama3":
        frequencies = _llama3(frequencies, values)
    elif rope_type == "yarn":
        frequencies, factor = _yarn(wavelengths, theta, values)
    return _table(frequencies, factor)


def longrope(
    head_width: int, parameters: Mapping[str, Any], max_positions: int
) -> tuple[Rotary, Rotary]:
    """Compute LongRoPE's tables (arXiv 2402.13753) for short and for long requests.

    A request is long if the model reads more tokens of it than the original length.

    Args:
        head_width, parameters: see `rotary`; the rope type is "longrope".
        max_positions: the longest length; its ratio to the original length determines the factor of
            sine and cosine.

    Raises:
        InputError: a key that is not handled, or a list of the wrong length.
    """
    theta, share, values = _theta_and_share(parameters)
    values.pop("rope_type", None)
    original = values.pop(ORIGINAL)
    handled = {"short_factor", "long_factor", "attention_factor", "factor"}
    if unknown := sorted(set(values) - handled):
        raise InputError(
            f"rope_scaling of type 'longrope' has keys that are not handled: {unknown}"
        )
    _check_positive(ORIGINAL, original)
    ratio = max_positions / original
    # transformers 4.57 ignores `factor` and uses the ratio; 5 uses `factor`.
    if (factor := values.get("factor", ratio)) != ratio:
        raise InputError(
            f"rope_scaling has factor {factor!r}, expected max_position_embeddings over "
            f"{ORIGINAL}, {ratio}"
        )
    factor = values.get("attention_factor")
    if factor is None:
        factor = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
    _check_positive("attention_factor", factor)
    width = int(head_width * share)
    tables = []
    for key in ("short_factor", "long_factor"):
        value = values.get(key)
        factors = value if isinstance(value, list) else []
        if len(factors) != width // 2 or not all(map(_is_positive, factors)):
            raise InputError(
                f"rope_scaling has {key} {str(value)[:60]}, expected {width // 2} numbers above 0"
            )
        stretch = np.asarray(factors, np.float32)
        tables.append(_table(np.float32(1.0) / (stretch * _wavelengths(width, theta)), factor))
    return tables[0], tables[1]


def _theta_and_share(parameters: Mapping[str, Any]) -> tuple[float, float, dict[str, Any]]:
    """Return the base, the rotary share of a head's channels, and the other keys, without nulls."""
    if not isinstance(parameters, Mapping):
        raise InputError(f"rope_scaling is {str(parameters)[:60]}, expected an object")
    values = {key: value for key, value in parameters.items() if value is not None}
    theta, share = values.pop("rope_theta"), values.pop("partial_rotary_factor", 1.0)
    if not _is_positive(share) or share > 1:
        raise InputError(f"partial_rotary_factor is {share!r}, expected a number above 0 up to 1")
    return theta, share, values


def _wavelengths(width: int, theta: float, allows_odd: bool = False) -> np.ndarray:
    """Return the wavelengths in positions, divided by 2 pi."""
    if not _is_positive(theta) or theta < 1:
        raise InputError(f"rope_theta is {theta!r}, expected a number of at least 1")
    if width < 1 or (width % 2 and not allows_odd):
        raise InputError(f"rotary channels of a head come out as {width}, expected an even number")
    exponent = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    # NumPy's float32 power depends on the processor and differs from PyTorch's in one of six
    # frequencies by up to 2 ulp. The float64 power is the same everywhere and differs in about one
    # of a hundred, for which PyTorch's result depends on the processor, too.
    power = np.float64(np.float32(theta)) ** exponent.astype(np.float64)
    return power.astype(np.float32)


def _table(frequencies: np.ndarray, factor: float) -> Rotary:
    return Rotary(tuple(float(f) for f in frequencies.astype(np.float32)), float(factor))


def _check_keys(rope_type: str, values: Mapping[str, Any]) -> None:
    if rope_type not in KEYS:
        handled = ", ".join(sorted(set(KEYS) - {ALPHA}))
        raise InputError(
            f"rope_scaling has rope_type {rope_type!r}, which is not handled; handled are {handled}"
        )
    if unknown := sorted(set(values) - KEYS[rope_type]):
        raise InputError(
            f"rope_scaling of type {rope_type!r} has keys that are not handled: {unknown}"
        )
    if missing := sorted(REQUIRED.get(rope_type, {"factor"}) - set(values)):
        raise InputError(f"rope_scaling of type {rope_type!r} lacks {missing}")
    for key, value in values.items():
        if key != "truncate":
            _check_positive(key, value)
        elif type(value) is not bool:
            raise InputError(f"rope_scaling has truncate {value!r}, expected true or false")


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < MAX_REAL  # False for NaN


def _check_positive(key: str, value: Any) -> None:
    if not _is_positive(value):
        raise InputError(f"rope_scaling has {key} {value!r}, expected a positive number")


def _llama3(frequencies: np.ndarray, values: Mapping[str, Any]) -> np.ndarray:
    """Divide low frequencies by the factor, keep high ones, and interpolate in between.

    Llama 4 Scout has two equal bounds, so nothing is interpolated.
    """
    length, factor = values[ORIGINAL], values["factor"]
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    if not low <= high:
        raise InputError(
            f"rope_scaling has low_freq_factor {low}, expected at most high_freq_factor {high}"
        )
    turns = np.float32(length) * frequencies / np.float32(2 * math.pi)  # in the original length
    if low == high:
        share = (turns >= np.float32(low)).astype(np.float32)
    else:
        share = (turns - np.float32(low)) / np.float32(high - low)
        share = np.clip(share, 0, 1).astype(np.float32)
    return (1 - share) * frequencies / np.float32(factor) + share * frequencies


def _yarn(
    wavelengths: np.ndarray, theta: float, values: Mapping[str, Any]
) -> tuple[np.ndarray, float]:
    """Return a ramp by channel from original to interpolated frequencies, and their factor."""
    factor, width = values["factor"], 2 * len(wavelengths)
    length = values[ORIGINAL]

    def channel(turns: float) -> float:
        """Return the channel pair that makes this many turns in the original length."""
        return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = channel(values.get("beta_fast") or 32)
    high = channel(values.get("beta_slow") or 1)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    ramp = np.clip((np.arange(width // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    ramp = ramp.astype(np.float32)
    original, interpolated = 1 / wavelengths, 1 / (np.float32(factor) * wavelengths)

    def magnitude(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    attention = values.get("attention_factor")
    if attention is None:
        mscale, overall = values.get("mscale"), values.get("mscale_all_dim")
        attention = magnitude(mscale) / magnitude(overall) if mscale and overall else magnitude(1.0)
    return interpolated * ramp + original * (1 - ramp), attention

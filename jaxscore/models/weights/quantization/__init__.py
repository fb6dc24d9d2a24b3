"""Quantized checkpoints, by the `quant_method` of their `quantization_config`.

Each method is a module whose `read` checks the settings and returns a `Scheme`, which finds the
quantized tensors and computes the weights that they represent.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.errors import InputError
from jaxscore.models.weights.quantization.settings import ADVICE, KEY, Settings

if TYPE_CHECKING:
    from jaxscore.models.weights.quantization.dequantize import Scheme  # which imports JAX

TEXT = "text_config"
METHODS = {  # `quant_method` -> module
    "awq": "awq",
    "compressed-tensors": "compressed_tensors",
    "fp8": "fp8",
    "gptq": "gptq",
    "mxfp4": "mxfp4",
}
# Families that store matrices as [in, out]: no method defines how to pack these
TRANSPOSED = ("gpt2",)


def plain_config(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the config without `quantization_config`, also inside a `text_config`."""
    plain = {name: value for name, value in raw.items() if name != KEY}
    if isinstance(text := raw.get(TEXT), dict):
        plain[TEXT] = {name: value for name, value in text.items() if name != KEY}
    return plain


def read_scheme(folder: Path, raw: dict[str, Any]) -> "Scheme | None":
    """Return the scheme of a checkpoint's safetensors, or None if they are not quantized.

    Args:
        raw: the content of config.json.

    Raises:
        InputError: the method or one of its settings is not supported.
    """
    text = raw.get(TEXT)  # a wrapper may have the settings here instead of at the top
    values = raw.get(KEY) or (text.get(KEY) if isinstance(text, dict) else None)
    if not values:
        return None
    settings = Settings.of({KEY: values}, folder)
    method = settings.values.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        raise settings.refusal("quant_method", method, f"handled are {', '.join(METHODS)}")
    if raw["model_type"] in TRANSPOSED:
        raise InputError(
            f"{settings.where}: is not handled for model_type {raw['model_type']!r}; {ADVICE}"
        )
    scheme: Scheme = importlib.import_module(f"{__name__}.{METHODS[method]}").read(settings)
    return scheme

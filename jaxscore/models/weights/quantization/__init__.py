"""Quantized checkpoints, by the `quant_method` of their `quantization_config`.

Each method is a module whose `read` checks the settings and returns a `Scheme`, which finds the
quantized tensors and computes the weights that they stand for.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import is_gguf
from jaxscore.models.weights import tensor_files
from jaxscore.models.weights.tensor_files import Tensors

if TYPE_CHECKING:
    from jaxscore.models.weights.gguf import GgufScheme
    from jaxscore.models.weights.quantization.dequantize import Scheme

KEY, TEXT = "quantization_config", "text_config"
METHODS = {  # `quant_method` -> module
    "awq": "awq",
    "compressed-tensors": "compressed_tensors",
    "fp8": "fp8",
    "gptq": "gptq",
    "mxfp4": "mxfp4",
}
# Families that store matrices as [in, out]: no method says which way round it packs these
TRANSPOSED = ("gpt2",)


def plain_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The config of the model itself, without `quantization_config`, in a wrapper's text too."""
    plain = {name: value for name, value in raw.items() if name != KEY}
    if isinstance(text := raw.get(TEXT), dict):
        plain[TEXT] = {name: value for name, value in text.items() if name != KEY}
    return plain


def _settings_of(raw: dict[str, Any]) -> Any:
    """`quantization_config`, of a wrapper's text if the wrapper has none itself."""
    text = raw.get(TEXT)
    return raw.get(KEY) or (text.get(KEY) if isinstance(text, dict) else None)


def read_scheme(folder: Path, raw: dict[str, Any]) -> "Scheme | GgufScheme | None":
    """How the weights of a checkpoint are stored, or None if they are plain safetensors.

    Raises:
        InputError: a method, or a setting of one, that is not handled.
    """
    if is_gguf(folder):
        from jaxscore.models.weights import gguf

        return gguf.GgufScheme(folder)
    if not (found := _settings_of(raw)):
        return None
    from jaxscore.models.weights.quantization.quantization_config import ADVICE, Settings

    settings = Settings.of({KEY: found}, folder)
    method = settings.values.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        raise settings.refusal("quant_method", method, f"handled are {', '.join(METHODS)}")
    if raw["model_type"] in TRANSPOSED:
        raise InputError(
            f"{settings.where}: is not handled for model_type {raw['model_type']!r}; {ADVICE}"
        )
    scheme: Scheme = importlib.import_module(f"{__name__}.{METHODS[method]}").read(settings)
    return scheme


def open_tensors(folder: Path, scheme: "Scheme | GgufScheme | None") -> Tensors:
    """The tensors of a checkpoint by plain names; quantized ones are computed at each look-up.

    Raises:
        InputError: as `tensor_files.open_tensors`, or tensors that do not match the scheme.
    """
    return tensor_files.open_tensors(folder) if scheme is None else scheme.open_tensors(folder)

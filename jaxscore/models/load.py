"""A model by name: which implementation takes it, in which dtype."""

from pathlib import Path

import jax

from jaxscore.errors import InputError
from jaxscore.models import checkpoint, native, transformers_flax
from jaxscore.models.families import FAMILIES
from jaxscore.models.model import Model

IMPLEMENTATIONS = ("auto", "native", "transformers")
DTYPES = ("auto", "float32", "bfloat16")


def load(folder: Path, *, dtype: str = "auto", implementation: str = "auto") -> Model:
    """Parameters on the device and the functions over them.

    Args:
        folder: a Hugging Face checkpoint with safetensors.
        dtype: of the matrices. "auto" is float32 on the CPU and the checkpoint's own elsewhere
            (bfloat16 for float16, which the scorer does not compute in).
        implementation: "native" is our decoder, "transformers" their Flax class, "auto" ours
            where it covers the family.

    Raises:
        InputError: naming the file and what in it is not handled.
        ValueError: a dtype or implementation that does not exist.
    """
    if dtype not in DTYPES or implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"dtype {dtype!r} and implementation {implementation!r}: expected one of "
            f"{', '.join(DTYPES)} and one of {', '.join(IMPLEMENTATIONS)}"
        )
    raw = checkpoint.read_config(folder)
    if raw.get("quantization_config"):
        raise InputError(
            f"{folder / 'config.json'}: quantization_config is not handled; "
            "give the unquantized checkpoint"
        )
    tensors = checkpoint.open_tensors(folder)
    if dtype == "auto":
        stored = tensors.dtype_name()
        plain = jax.default_backend() == "cpu" or stored in ("float32", "float64")
        dtype = "float32" if plain else "bfloat16"
    if implementation == "auto":
        ours = raw["model_type"] in FAMILIES or raw["model_type"] not in transformers_flax.GUARDS
        implementation = "native" if ours else "transformers"
    build = native.build if implementation == "native" else transformers_flax.build
    return build(folder, raw, tensors, dtype)

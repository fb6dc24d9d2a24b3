"""What a caller chooses about a model, as strings."""

from typing import Literal, get_args

Dtype = Literal["float32", "bfloat16"]
AskedDtype = Literal["auto", "float32", "bfloat16"]
Implementation = Literal["native", "transformers"]
AskedImplementation = Literal["auto", "native", "transformers"]
Quantize = Literal["int8"]

DTYPES: tuple[AskedDtype, ...] = get_args(AskedDtype)
IMPLEMENTATIONS: tuple[AskedImplementation, ...] = get_args(AskedImplementation)
QUANTIZED: tuple[Quantize, ...] = get_args(Quantize)


def resolve_implementation(requested: AskedImplementation) -> Implementation:
    """What "auto" stands for: our decoder covers every family that a Flax class is taken for."""
    return "native" if requested == "auto" else requested

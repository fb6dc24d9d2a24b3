"""Options of loading a model, as strings."""

from typing import Literal, get_args

Dtype = Literal["float32", "bfloat16"]
DtypeOption = Literal["auto", "float32", "bfloat16"]
Implementation = Literal["native", "transformers", "function"]
ImplementationOption = Literal["auto", "native", "transformers"]
Quantize = Literal["int8", "stored"]

DTYPES: tuple[DtypeOption, ...] = get_args(DtypeOption)
IMPLEMENTATIONS: tuple[ImplementationOption, ...] = get_args(ImplementationOption)
QUANTIZED: tuple[Quantize, ...] = get_args(Quantize)


def resolve_implementation(requested: ImplementationOption) -> Implementation:
    """Implementation for an option: "auto" is "native", which covers all families of the other."""
    return "native" if requested == "auto" else requested

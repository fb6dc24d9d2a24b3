"""Checkpoints whose weights are stored quantized, by the `quant_method` of their config."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.models.weights import checkpoint
from jaxscore.models.weights.checkpoint import Tensors
from jaxscore.models.weights.stored_types import awq, compressed_tensors, fp8, gptq, mxfp4
from jaxscore.models.weights.stored_types.computed import view
from jaxscore.models.weights.stored_types.scheme import Scheme
from jaxscore.models.weights.stored_types.settings import ADVICE, NAME, Settings

METHODS: dict[str, Callable[[Settings], Scheme]] = {
    "awq": awq.read,
    "compressed-tensors": compressed_tensors.read,
    "fp8": fp8.read,
    "gptq": gptq.read,
    "mxfp4": mxfp4.read,
}
# Of these the checkpoint's matrices are [in, out], which no method says of what it packs.
TRANSPOSED = ("gpt2",)


class Stored(NamedTuple):
    """A config, and what its weights are stored as.

    Attributes:
        plain: the config without `quantization_config`: the model's own.
        method: of its `quantization_config`; None where it has none.
        scheme: how the weights are read; None likewise.
    """

    plain: dict[str, Any]
    method: str | None
    scheme: Scheme | None

    def opened(self, folder: Path) -> Tensors:
        """The checkpoint's tensors by plain names, quantized ones computed at each look-up.

        Raises:
            InputError: as `checkpoint.open_tensors`, or tensors that are not of the scheme.
        """
        tensors = checkpoint.open_tensors(folder)
        if self.scheme is None:
            return tensors
        found = self.scheme.find(tensors)
        if not found.computed:
            raise InputError(
                f"{folder}: {NAME} says {self.method}, and no tensor is stored so; the config and "
                "the weights do not belong together"
            )
        return view(tensors, found)

    def told(self) -> str | None:
        """What people should know, in a line; None where all weights are plain."""
        if self.scheme is None:
            return None
        left_out = f"; {self.scheme.left_out}" if self.scheme.left_out else ""
        return f"{self.method}, {self.scheme.numbers}, read as the numbers they stand for{left_out}"


def read(folder: Path, raw: dict[str, Any]) -> Stored:
    """What the config of a folder says of how weights are stored.

    Raises:
        InputError: a method or a setting of one that is not handled, naming it.
    """
    plain = {name: value for name, value in raw.items() if name != NAME}
    if not raw.get(NAME):
        return Stored(plain, None, None)
    settings = Settings.of(raw, folder)
    method = settings.values.get("quant_method")
    if not isinstance(method, str) or method not in METHODS:
        raise settings.refusal("quant_method", method, f"handled are {', '.join(METHODS)}")
    if raw["model_type"] in TRANSPOSED:
        raise InputError(
            f"{settings.where}: is not handled for model_type {raw['model_type']!r}; {ADVICE}"
        )
    return Stored(plain, method, METHODS[method](settings))

"""Quantized checkpoints, by the `quant_method` of their `quantization_config`.

Each method is a module whose `read` checks the settings and returns a `Scheme`, which finds the
quantized tensors and computes the weights that they stand for. Every setting is read, known to
change nothing, or refused.
"""

import dataclasses
import importlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import is_gguf
from jaxscore.models.weights import tensor_files
from jaxscore.models.weights.tensor_files import Tensors

ADVICE = "give the unquantized checkpoint"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings by name, as `config.json` has them.

    Attributes:
        values: of `quantization_config`, or of an object inside it.
        where: the file and the path of the object in it, for errors.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def of(cls, raw: Mapping[str, Any], folder: Path) -> "Settings":
        """Settings of a raw `config.json`.

        Raises:
            InputError: they are not an object.
        """
        values, where = raw.get(KEY), folder / "config.json"
        if not isinstance(values, dict):
            raise InputError(f"{where}: {KEY} is {values!r}, expected an object; {ADVICE}")
        return cls(values, f"{where}: {KEY}")

    def below(self, values: Any, name: str) -> "Settings":
        """An object inside these settings.

        Raises:
            InputError: it is not an object.
        """
        where = f"{self.where}: {name}"
        if not isinstance(values, dict):
            raise InputError(f"{where} is {values!r}, expected an object; {ADVICE}")
        return Settings(values, where)

    def refuse_others(self, read: Set[str], inert: Set[str]) -> None:
        """Refuse settings that are neither read nor inert, unless their value says "off".

        Raises:
            InputError: naming the settings.
        """
        strange = {
            name: value
            for name, value in self.values.items()
            if name not in read | inert
            and not (value is None or value is False or value in ({}, [], ""))
        }
        if strange:
            listed = ", ".join(f"{name}={value!r}" for name, value in sorted(strange.items()))
            raise InputError(f"{self.where}: settings that are not handled: {listed}; {ADVICE}")

    def one_of(self, name: str, handled: tuple[Any, ...], default: Any = None) -> Any:
        """Value of a setting that must be one of `handled`.

        Raises:
            InputError: it has another value, or is missing without a default.
        """
        value = self.values.get(name, default)
        # `in` takes 1 for True
        if not any(type(value) is type(known) and value == known for known in handled):
            raise self.refusal(name, value, f"handled are {', '.join(map(repr, handled))}")
        return value

    def size(self, name: str, default: Any = None) -> int:
        """A whole number above 0, or -1 for "all".

        Raises:
            InputError: anything else.
        """
        value = self.values.get(name, default)
        if type(value) is not int or (value < 1 and value != -1):
            raise self.refusal(name, value, "expected a whole number above 0, or -1")
        return value

    def blocks(self, name: str, default: Any = None) -> tuple[int, int]:
        """Rows and columns of a block.

        Raises:
            InputError: not a pair of whole numbers above 0.
        """
        value = self.values.get(name, default)
        pair = isinstance(value, list | tuple) and len(value) == 2
        if not pair or not all(type(n) is int and n > 0 for n in value):
            raise self.refusal(name, value, "expected two whole numbers above 0")
        return value[0], value[1]

    def refusal(self, name: str, value: Any, expected: str) -> InputError:
        """Error for a value that is not handled."""
        return InputError(f"{self.where}: {name} is {value!r}, {expected}; {ADVICE}")


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


def read_scheme(folder: Path, raw: dict[str, Any]) -> "Scheme | GgufScheme | None":
    """How the weights of a checkpoint are stored, or None if they are plain safetensors.

    Raises:
        InputError: a method, or a setting of one, that is not handled.
    """
    if is_gguf(folder):
        from jaxscore.models.weights import gguf

        return gguf.GgufScheme(folder)
    text = raw.get(TEXT)  # of a wrapper, which may have none itself
    found = raw.get(KEY) or (text.get(KEY) if isinstance(text, dict) else None)
    if not found:
        return None
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

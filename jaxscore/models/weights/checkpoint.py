"""Checkpoints on disk: their config, format, quantization and tensors."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import is_gguf
from jaxscore.models.weights import quantization, tensor_files
from jaxscore.models.weights.folder import (
    config_path,
    is_converted,
    read_json,
    refuse_gguf,
    resolve,
)
from jaxscore.models.weights.tensor_files import Tensors

if TYPE_CHECKING:  # which import JAX
    from jaxscore.models.weights.gguf import GgufScheme
    from jaxscore.models.weights.quantization.dequantize import Scheme

Format = Literal["safetensors", "gguf", "converted"]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model on disk, whose files are opened at most once, when they are needed.

    Attributes:
        path: the folder, or the GGUF file.
        format: "safetensors" (Hugging Face), "gguf", or "converted" (by `jaxscore convert`).
        written: the content of config.json, or its equivalent for a GGUF file, without the keys in
            `accepted`.
        accepted: unsupported keys of the config, with their values, that the user declared safe.
    """

    path: Path
    format: Format
    written: dict[str, Any]
    accepted: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the config of a folder or GGUF file; see `folder.resolve` for names.

        Raises:
            InputError: the config or its model type is missing.
        """
        if is_gguf(path):
            return cls(path, "gguf", read_config(path))
        return cls(path, "converted" if is_converted(path) else "safetensors", read_config(path))

    @property
    def where(self) -> str:
        """The file with the config, for messages."""
        return str(config_path(self.path))

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The config of the model itself, without `quantization_config`."""
        return quantization.plain_config(self.written)

    @functools.cached_property
    def scheme(self) -> "Scheme | GgufScheme | None":
        """The storage of the weights; None if they are unquantized safetensors.

        Raises:
            InputError: the quantization method or one of its settings is not supported.
        """
        if self.format == "gguf":
            from jaxscore.models.weights import gguf  # which imports JAX

            return gguf.GgufScheme(self.path)
        return quantization.read_scheme(self.path, self.written)

    @functools.cached_property
    def tensors(self) -> Tensors:
        """The tensors by unquantized names; quantized ones are computed at each look-up.

        Raises:
            InputError: a file is missing or damaged, or its tensors do not match the scheme.
        """
        if self.scheme is None:
            return tensor_files.open_tensors(self.path)
        return self.scheme.open_tensors(self.path)


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json of a folder, or its equivalent for a GGUF file.

    Raises:
        InputError: the config or its model type is missing.
    """
    if is_gguf(path):
        from jaxscore.models.weights import gguf  # which imports JAX

        return gguf.read_config(path)
    file = config_path(path)
    if not file.exists():
        refuse_gguf(path)
    config = read_json(file)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{file}: expected an object with a string `model_type`")
    return config


def raw_config(config: Any) -> dict[str, Any]:
    """Return a config as the content of config.json.

    Args:
        config: the content of config.json, a config object of transformers, or the folder or hub id
            of a checkpoint.

    Raises:
        InputError: the config is something else.
    """
    if isinstance(config, str | Path):
        return read_config(resolve(str(config), None))
    if isinstance(config, Mapping):
        return dict(config)
    if not hasattr(config, "to_json_string"):
        raise InputError(
            f"config is {type(config).__name__}, expected the content of config.json, a config of "
            "transformers, or the folder or hub id of a checkpoint"
        )
    values: dict[str, Any] = json.loads(config.to_json_string())
    return values

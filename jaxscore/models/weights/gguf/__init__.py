"""GGUF files, read as the config and the tensors of a Hugging Face checkpoint.

`read_config` translates the metadata. `GgufScheme` returns the tensors under Hugging Face's names
and in its layouts, and dequantizes each at look-up. `ARCHITECTURES` reverses what llama.cpp's
converter does to the tensors of each family.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile, read_gguf
from jaxscore.models.weights.gguf.architecture import Architecture
from jaxscore.models.weights.gguf.architectures import ARCHITECTURES, REFUSED
from jaxscore.models.weights.gguf.metadata import Keys
from jaxscore.models.weights.quantization.dequantize import Found, view
from jaxscore.models.weights.tensor_files import Tensors

# Sizes of Mistral 7B v0.1; later versions have a larger base, or more tokens
MISTRAL = {
    "block_count": 32,
    "embedding_length": 4096,
    "feed_forward_length": 14336,
    "context_length": 32768,
    "rope.freq_base": 10_000.0,
}
LOST_WINDOW = (
    "it has the sizes of Mistral 7B v0.1, whose window of 4,096 tokens GGUF does not store: longer "
    "texts get other scores than from its checkpoint"
)


def read_config(path: Path) -> dict[str, Any]:
    """Return the model's config as `config.json` would have it.

    Raises:
        InputError: the architecture or a metadata key is not supported.
    """
    file = read_gguf(path)
    file_type = file.metadata.get("general.type", "model")
    if not isinstance(file_type, str) or file_type != "model":
        raise InputError(f"{path}: general.type is {file_type!r}, expected 'model'")
    keys = Keys(file)
    config = _architecture(file).attributes(keys)
    keys.check_all_read()
    return config


class GgufScheme:
    """Storage of the weights of a GGUF file.

    Attributes:
        method: the readable name of the format.
        narrowest: the dtype that `--dtype auto` selects on accelerators.
    """

    method = "GGUF"

    def __init__(self, path: Path) -> None:
        """Read the file's header and count the types of its tensors."""
        self._file = read_gguf(path)
        types = [tensor.type.name for tensor in self._file.tensors.values()]
        self._counts = Counter(types).most_common()
        self.narrowest = "float32" if {*types} <= {"F32", "F64"} else "bfloat16"

    def describe(self) -> str:
        """Return one line for messages: `GGUF: 210 Q4_1, 61 F32, 1 Q8_0`."""
        summary = "GGUF: " + ", ".join(f"{n} {name}" for name, n in self._counts)
        metadata = {"llama.rope.freq_base": 10_000.0} | dict(self._file.metadata)
        if all(metadata.get(f"llama.{key}") == value for key, value in MISTRAL.items()):
            return f"{summary}; {LOST_WINDOW}"
        return summary

    def open_tensors(self, path: Path) -> Tensors:
        """Return the tensors by Hugging Face's names; each is dequantized at look-up.

        Raises:
            InputError: a tensor's name is not known for the architecture, or its type needs the
                package `gguf`, which is not installed.
        """
        file = self._file
        computed = _architecture(file).tensors(file)
        return view(Tensors({}, {}, {}), Found(computed, frozenset()))


def _architecture(file: GgufFile) -> Architecture:
    name = file.architecture
    if name in ARCHITECTURES:
        entry = ARCHITECTURES[name]
        return entry(file) if callable(entry) else entry
    reason = REFUSED.get(name, "not known")
    raise InputError(
        f"{file.path}: architecture {name!r} is not supported in GGUF ({reason}); supported are "
        f"{', '.join(ARCHITECTURES)}"
    )

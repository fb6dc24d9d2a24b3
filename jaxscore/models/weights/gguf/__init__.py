"""Models in GGUF files, as the config and the tensors of a Hugging Face checkpoint.

`read_config` translates the metadata, and a `GgufScheme` gives the tensors under Hugging Face's
names and in its layouts; each is dequantized when it is looked up. What conversion to GGUF does to
a family's tensors is from llama.cpp's converter, in which ARCHITECTURES has its reverse.
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
    """What the `config.json` of the model would be.

    Raises:
        InputError: an architecture, or a key of the metadata, that is not handled.
    """
    file = read_gguf(path)
    kind = file.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise InputError(f"{path}: general.type is {kind!r}, expected 'model'")
    keys = Keys(file)
    found = _architecture(file).attributes(keys)
    keys.check_all_read()
    return found


class GgufScheme:
    """How the weights of a GGUF file are stored.

    Attributes:
        method: readable name.
        narrowest: `--dtype auto` on accelerators.
    """

    method = "GGUF"

    def __init__(self, path: Path) -> None:
        """Count the types of a file's tensors."""
        self._file = read_gguf(path)
        types = [tensor.type.name for tensor in self._file.tensors.values()]
        self._counts = Counter(types).most_common()
        self.narrowest = "float32" if {*types} <= {"F32", "F64"} else "bfloat16"

    def describe(self) -> str:
        """One line for messages: `GGUF: 210 Q4_1, 61 F32, 1 Q8_0`."""
        found = "GGUF: " + ", ".join(f"{n} {name}" for name, n in self._counts)
        metadata = {"llama.rope.freq_base": 10_000.0} | dict(self._file.metadata)
        if all(metadata.get(f"llama.{key}") == value for key, value in MISTRAL.items()):
            return f"{found}; {LOST_WINDOW}"
        return found

    def open_tensors(self, path: Path) -> Tensors:
        """The tensors by Hugging Face's names, each dequantized when it is looked up.

        Raises:
            InputError: a tensor whose name is not known for the architecture, or a type whose
                values need the package `gguf`.
        """
        file = self._file
        computed = _architecture(file).tensors(file)
        return view(Tensors({}, {}, {}), Found(computed, frozenset()))


def _architecture(file: GgufFile) -> Architecture:
    name = file.architecture
    if name in ARCHITECTURES:
        found = ARCHITECTURES[name]
        return found(file) if callable(found) else found
    reason = REFUSED.get(name, "not known")
    raise InputError(
        f"{file.path}: architecture {name!r} is not read from GGUF ({reason}); read are "
        f"{', '.join(ARCHITECTURES)}"
    )

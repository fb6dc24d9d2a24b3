"""Models in GGUF files, as the config and the tensors of a Hugging Face checkpoint.

`read_config` translates the metadata, and `open_tensors` gives the tensors under Hugging Face's
names and in its layouts; each is dequantized when it is looked up. What conversion to GGUF does to
a family's tensors is from llama.cpp's converter, in which ARCHITECTURES has its reverse.
"""

from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import GgufFile, StoredTensor, read_gguf
from jaxscore.models.weights.gguf.architectures import ARCHITECTURES, REFUSED, Architecture
from jaxscore.models.weights.gguf.metadata import Keys
from jaxscore.models.weights.quantization.dequantize import Computed
from jaxscore.models.weights.tensor_files import LazyMapping, Tensors


def read_config(path: Path) -> dict[str, Any]:
    """What the `config.json` of the model would be.

    Raises:
        InputError: an architecture, or a key of the metadata, that is not handled.
    """
    file = read_gguf(path)
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise InputError(f"{path}: general.type is {kind!r}, expected 'model'")
    keys = Keys(file)
    found = _architecture(file).config(keys)
    keys.check_all_read()
    return found


def open_tensors(path: Path) -> Tensors:
    """The tensors by Hugging Face's names.

    Raises:
        InputError: a tensor whose name is not known for the architecture, a damaged file, or a
            type whose values need the package `gguf`.
    """
    file = read_gguf(path)
    computed = _architecture(file).tensors(file, read_config(path))
    outlines = {
        name: np.broadcast_to(np.zeros((), weight.dtype), weight.shape)
        for name, weight in computed.items()
    }
    return Tensors(
        LazyMapping(outlines, lambda name: computed[name].compute()),
        {name: weight.where for name, weight in computed.items()},
        outlines,
        frozenset(computed),
        pieces={
            name: weight.piece for name, weight in computed.items() if weight.piece is not None
        },
    )


def describe(path: Path) -> str:
    """How the weights are stored, for people: `GGUF: 210 Q4_1, 61 F32, 1 Q8_0`."""
    counts: dict[str, int] = {}
    for tensor in read_gguf(path).tensors.values():
        counts[tensor.type.name] = counts.get(tensor.type.name, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    return "GGUF: " + ", ".join(f"{n} {name}" for name, n in ordered)


def _architecture(file: GgufFile) -> Architecture:
    name = file.architecture
    if name in ARCHITECTURES:
        found = ARCHITECTURES[name]
        return found(file) if callable(found) else found
    reason = next((why for start, why in REFUSED.items() if name.startswith(start)), "not known")
    raise InputError(
        f"{file.path}: architecture {name!r} is not read from GGUF ({reason}); read are "
        f"{', '.join(ARCHITECTURES)}"
    )


__all__ = ["Computed", "StoredTensor", "describe", "open_tensors", "read_config"]

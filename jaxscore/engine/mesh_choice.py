"""`--mesh`: how many devices share the rows, and how many share each layer."""

import re
from typing import Any

import jax

from jaxscore.device.decoder_config import MODEL, DecoderConfig
from jaxscore.device.sharding import DATA, MeshShape, bytes_a_device, divides, specs
from jaxscore.errors import InputError
from jaxscore.files.byte_sizes import byte_text

AUTO = "auto"


def parse_mesh(text: str) -> MeshShape | None:
    """A mesh from `data=N,model=M`, either of which may be left out; None is `auto`.

    Raises:
        InputError: anything else.
    """
    if text == AUTO:
        return None
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(rf"({DATA}|{MODEL})=([1-9][0-9]{{0,5}})", part)
        if match is None or match[1] in found:
            raise InputError(
                f"mesh {text!r}: {part!r} is not expected there; give auto, or "
                f"{DATA}=N,{MODEL}=M with whole numbers from 1, each once"
            )
        found[match[1]] = int(match[2])
    return MeshShape(**found)


def parameter_bytes(shapes: Any, config: DecoderConfig, mesh: MeshShape) -> int:
    """Bytes of all parameters on one device.

    Args:
        shapes: the tree of `decoder.init_params`, arrays or their shapes.

    Raises:
        ValueError: the mesh does not split this decoder, see `device.sharding.check`.
    """
    return sum(jax.tree.leaves(bytes_a_device(shapes, specs(shapes, config, mesh), mesh)))


def auto_mesh(
    shapes: Any, config: DecoderConfig, n_devices: int, memory: int, working: int = 0
) -> MeshShape:
    """All devices, with the smallest `model`, a power of two, whose parameters fit.

    Args:
        shapes: as in `parameter_bytes`.
        memory: bytes of each device.
        working: bytes that a batch takes beside the parameters.

    Raises:
        InputError: none fits.
    """
    tried = []
    for power in range(n_devices.bit_length()):
        model = 2**power
        if n_devices % model or not divides(config, model):
            continue
        mesh = MeshShape(n_devices // model, model)
        tried.append(f"{byte_text(parameter_bytes(shapes, config, mesh))} with {MODEL}={model}")
        if parameter_bytes(shapes, config, mesh) + working <= memory:
            return mesh
    raise InputError(
        f"mesh {AUTO}: no mesh of {n_devices} devices fits {byte_text(memory)} a device; "
        f"parameters take {', '.join(tried)} a device, and a batch {byte_text(working)}; give "
        "more devices or memory"
    )

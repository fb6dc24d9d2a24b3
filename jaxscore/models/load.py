"""Load a checkpoint: choose the implementation and the dtype."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.device.backends import current_platform
from jaxscore.errors import InputError, check_choice
from jaxscore.models import model_types, native
from jaxscore.models.choices import (
    DTYPES,
    IMPLEMENTATIONS,
    QUANTIZED,
    DtypeOption,
    ImplementationOption,
    Quantize,
)
from jaxscore.models.config import accepted_keys
from jaxscore.models.config.check import FLAG
from jaxscore.models.families import FAMILIES
from jaxscore.models.model import MeshChoice, Model
from jaxscore.models.weights import checkpoint, quantization


def load(
    folder: Path,
    *,
    dtype: DtypeOption = "auto",
    implementation: ImplementationOption = "auto",
    adapter: Path | None = None,
    quantize: Quantize | None = None,
    mesh_choice: MeshChoice | None = None,
    accept_config: Sequence[str] = (),
) -> Model:
    """Load the parameters to the device and make the functions over them.

    Args:
        folder: a Hugging Face checkpoint with safetensors, or the output of `jaxscore convert`.
        dtype: of the matrices. "auto" is float32 on the CPU and the checkpoint's type elsewhere
            (bfloat16 for quantized checkpoints and for float16, in which nothing is computed).
        implementation: "native" is our decoder, "transformers" their Flax class; "auto" is
            "native".
        adapter: folder of a LoRA adapter, merged into the weights as they are read.
        quantize: "int8" stores the layers' weights as int8 with a scale per output channel,
            "stored" keeps them in the blocks of a GGUF file; `dtype` is then that of the products,
            the embedding and the unembedding. Native only.
        mesh_choice: chooses the devices once the model is known; None for the first one.
        accept_config: config keys that are not handled and that the user vouches for. Native only.

    Raises:
        InputError: naming the file and what in it is not handled.
        ValueError: a dtype or implementation that does not exist.
    """
    check_choice("dtype", dtype, DTYPES)
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    check_choice("quantize", quantize, (None, *QUANTIZED))
    try:
        current_platform()
    except ValueError as problem:
        raise InputError(str(problem)) from None
    raw = checkpoint.read_config(folder)
    accepted: dict[str, Any] = {}
    where = str(checkpoint.config_path(folder))
    model_types.check(raw, where)  # before anything is said of its weights
    if accept_config:
        if implementation == "transformers":
            raise InputError(f"{folder}: {FLAG} is for our own decoder; leave it out")
        raw, accepted = accepted_keys.accept(raw, accept_config, where)
    scheme = quantization.read_scheme(folder, raw)
    raw = quantization.plain_config(raw)
    if checkpoint.is_converted(folder):
        tensors = None
        stored_dtype = _converted_dtype(folder, implementation, adapter, quantize)
    else:
        tensors = quantization.open_tensors(folder, scheme)
        stored_dtype = tensors.dtype_name() if scheme is None else scheme.narrowest
    if dtype == "auto":
        on_cpu = current_platform() == "cpu"
        dtype = "float32" if on_cpu or stored_dtype in ("float32", "float64") else "bfloat16"
    if adapter is not None and tensors is not None:
        from jaxscore.models.weights import lora

        kind = raw["model_type"]
        prefix = FAMILIES[kind].prefix if kind in FAMILIES else ""
        tensors = lora.merged(tensors, lora.read(adapter), kind, prefix)
    if implementation != "transformers":
        model = native.build(folder, raw, tensors, dtype, quantize, mesh_choice)
    elif quantize is not None:
        raise InputError(
            f"{folder}: --quantize is for our own decoder, and this model runs as transformers' "
            "class; leave it out"
        )
    else:
        from jaxscore.models.transformers_flax import flax_classes

        assert tensors is not None  # a converted folder was refused above
        model = flax_classes.build(folder, raw, tensors, dtype, mesh_choice)
    stored_as = None if scheme is None else scheme.describe()
    return dataclasses.replace(model, stored_as=stored_as, accepted=accepted)


def _converted_dtype(
    folder: Path,
    implementation: ImplementationOption,
    adapter: Path | None,
    quantize: Quantize | None,
) -> str:
    """Type of a converted checkpoint's parameters.

    Raises:
        InputError: what was given would change them, which is possible before conversion alone.
    """
    if adapter is not None or quantize is not None or implementation == "transformers":
        raise InputError(
            f"{folder}: is converted, which takes no LoRA adapter, no --quantize and no "
            "--model-impl transformers; give the original checkpoint, or convert it with --lora"
        )
    from jaxscore.models.weights import converted

    return converted.read_facts(folder).dtype

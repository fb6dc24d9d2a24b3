"""A model by name: which implementation takes it, in which dtype."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxscore.device.backends import current_platform
from jaxscore.errors import InputError, check_choice
from jaxscore.models import native, refused_families
from jaxscore.models.choices import (
    DTYPES,
    IMPLEMENTATIONS,
    QUANTIZED,
    AskedDtype,
    AskedImplementation,
    Dtype,
    Quantize,
    chosen,
)
from jaxscore.models.config import acceptance
from jaxscore.models.config.check import FLAG
from jaxscore.models.families import FAMILIES
from jaxscore.models.model import MeshChoice, Model
from jaxscore.models.transformers_flax import flax_classes
from jaxscore.models.weights import checkpoint, converted, lora
from jaxscore.models.weights.stored_types import methods


def load(
    folder: Path,
    *,
    dtype: AskedDtype = "auto",
    implementation: AskedImplementation = "auto",
    adapter: Path | None = None,
    quantize: Quantize | None = None,
    mesh_choice: MeshChoice | None = None,
    accept_config: Sequence[str] = (),
) -> Model:
    """Parameters on the device and the functions over them.

    Args:
        folder: a Hugging Face checkpoint with safetensors, or what `jaxscore convert` wrote.
        dtype: of the matrices. "auto" is float32 on the CPU and the checkpoint's own elsewhere
            (bfloat16 for float16, which the scorer does not compute in, and for quantized ones).
        implementation: "native" is our decoder, "transformers" their Flax class, "auto" is
            "native".
        adapter: a folder with a LoRA adapter, merged into the weights as they are read.
        quantize: "int8" stores the layers' weights as int8 with a scale for each output channel;
            `dtype` is then that of the products and of embedding and unembedding. Of our decoder
            alone.
        mesh_choice: picks the devices once the model is known; None is the first one.
        accept_config: keys of the config that are not handled, and that the user vouches for. Of
            our decoder alone.

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
    written = checkpoint.read_config(folder)
    refused_families.check(written, str(folder / native.CONFIG))  # whatever its weights are
    if accept_config and chosen(implementation) != "native":
        raise InputError(f"{folder}: {FLAG} is for our own decoder; leave it out")
    written, accepted = acceptance.accept(written, accept_config, str(folder / native.CONFIG))
    stored = methods.read(folder, written)
    raw = stored.plain
    if converted.is_converted(folder):
        if adapter is not None or quantize is not None or implementation == "transformers":
            raise InputError(
                f"{folder}: is converted, which takes no LoRA adapter, no --quantize and no "
                "--model-impl transformers; give the original checkpoint, or convert it with --lora"
            )
        kept = _kept(dtype, converted.read_facts(folder).dtype)
        model = native.restore(folder, raw, kept, mesh_choice)
        return dataclasses.replace(model, accepted=accepted)
    tensors = stored.opened(folder)
    kept = _kept(dtype, "bfloat16" if stored.scheme else tensors.dtype_name())
    if adapter is not None:
        kind = raw["model_type"]
        prefix = FAMILIES[kind].prefix if kind in FAMILIES else ""
        tensors = lora.merged(tensors, lora.read(adapter), kind, prefix)
    if chosen(implementation) == "native":
        model = native.build(folder, raw, tensors, kept, quantize, mesh_choice)
        return dataclasses.replace(model, stored_as=stored.told(), accepted=accepted)
    if quantize is not None:
        raise InputError(
            f"{folder}: --quantize is for our own decoder, and this model runs as transformers' "
            "class; leave it out"
        )
    model = flax_classes.build(folder, raw, tensors, kept, mesh_choice)
    return dataclasses.replace(model, stored_as=stored.told())


def _kept(dtype: AskedDtype, stored: str) -> Dtype:
    """What "auto" stands for, given the type that most of the weights are stored in."""
    if dtype != "auto":
        return dtype
    plain = current_platform() == "cpu" or stored in ("float32", "float64")
    return "float32" if plain else "bfloat16"

"""Loading of a checkpoint: choice of implementation and dtype, removal of accepted keys."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.device import jax_settings
from jaxscore.device.backends import current_platform
from jaxscore.errors import InputError, check_choice
from jaxscore.models import model_types, native, wrappers
from jaxscore.models.config import read
from jaxscore.models.config.check import FLAG, unhandled
from jaxscore.models.config.rope_parameters import names_of
from jaxscore.models.families import FAMILIES
from jaxscore.models.families.family import bare_name
from jaxscore.models.model import MeshChoice, Model
from jaxscore.models.model_types import (
    DTYPES,
    IMPLEMENTATIONS,
    QUANTIZED,
    Dtype,
    DtypeOption,
    ImplementationOption,
    Quantize,
)
from jaxscore.models.weights.array_tensors import MEMORY, array_tensors
from jaxscore.models.weights.checkpoint import Checkpoint
from jaxscore.models.weights.folder import config_path
from jaxscore.models.weights.tensor_files import Tensors

TEXT = "text_config"
DECISIVE = {"model_type", TEXT, "vision_config", "audio_config", "quantization_config"}


def without(raw: dict[str, Any], accepted: Sequence[str]) -> dict[str, Any]:
    """Return a raw `config.json` without some keys, also removed from its `text_config`."""
    out = {name: value for name, value in raw.items() if name not in accepted}
    if isinstance(text := out.get(TEXT), dict):
        out[TEXT] = {name: value for name, value in text.items() if name not in accepted}
    return out


def accept(checkpoint: Checkpoint, accepted: Sequence[str]) -> Checkpoint:
    """Remove the keys that a user vouches for from the config of a checkpoint.

    Args:
        accepted: names of keys of the file, or of its text_config.

    Raises:
        InputError: a key that the file does not have, that is already handled, or that the family
            reads, so that removing it would change scores.
    """
    if not accepted:
        return checkpoint
    raw, where = checkpoint.written, checkpoint.where
    sections = [raw, raw[TEXT]] if isinstance(raw.get(TEXT), dict) else [raw]
    for name in accepted:
        if not any(name in section for section in sections):
            raise InputError(f"{where}: {FLAG} {name}: the file has no such key; leave it out")
    remaining = without(raw, accepted)
    text = wrappers.text_of(remaining, where)
    if text.family not in FAMILIES:  # loading refuses it by name
        return dataclasses.replace(checkpoint, written=remaining)
    _, _, defaults = read(text.raw, where)
    reads = FAMILIES[text.family].reads | DECISIVE
    if defaults.rope is not None:
        reads |= names_of(text.raw["model_type"], defaults.rope)
    of_wrapper: set[str] = set()
    if text.wrapper is not None:
        of_wrapper = {*text.wrapper.knows, *text.wrapper.tokens, *text.wrapper.aliases}
    values = {}
    for name in accepted:
        value = next(section[name] for section in sections if name in section)
        canonical = defaults.aliases.get(name, name)
        if canonical in reads:
            raise InputError(
                f"{where}: {FLAG} {name}: is read and determines the scores of "
                f"model_type {text.raw['model_type']!r}; leave the flag out"
            )
        if name in of_wrapper or not unhandled({canonical: value}, defaults.values, frozenset()):
            raise InputError(
                f"{where}: {FLAG} {name}: is handled already, {name}={value!r} changes nothing; "
                "leave the flag out"
            )
        values[name] = value
    return dataclasses.replace(checkpoint, written=remaining, accepted=values)


@jax_settings.isolated()
def load(
    folder: Path,
    *,
    dtype: DtypeOption = "auto",
    implementation: ImplementationOption = "auto",
    adapter: Path | None = None,
    quantize: Quantize | None = None,
    mesh_choice: MeshChoice | None = None,
    accept_config: Sequence[str] = (),
    before_weights: Callable[[Model], object] | None = None,
) -> Model:
    """Load the parameters onto the device and build the functions over them.

    Args:
        folder: a Hugging Face checkpoint with safetensors, or the output of `jaxscore convert`.
        dtype: the dtype of the matrices. "auto" is float32 on the CPU and the checkpoint's type
            elsewhere (bfloat16 for quantized checkpoints and for float16, in which nothing is
            computed).
        implementation: "native" is our decoder, "transformers" transformers' Flax class;
            "auto" is "native".
        adapter: folder of a LoRA adapter, merged into the weights as they are read.
        quantize: "int8" stores the layers' weights as int8 with a scale per output channel,
            "stored" keeps them in the blocks of their file; `dtype` then holds for products,
            the embedding and the unembedding. Native only.
        mesh_choice: function that chooses the devices once the model is known; None for the first
            device.
        accept_config: unhandled config keys that the user vouches for. Native only.
        before_weights: see `native.build`; not called for transformers' classes.

    Raises:
        InputError: naming the file and what in it is not handled.
        ValueError: a dtype or implementation that does not exist.
    """
    check_choice("dtype", dtype, DTYPES)
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    check_choice("quantize", quantize, (None, *QUANTIZED))
    _check_platform()
    checkpoint = Checkpoint.open(folder)
    # First, so that a refused model type is reported before problems of its weights.
    model_types.check(checkpoint.written, checkpoint.where)
    if accept_config and implementation == "transformers":
        raise InputError(f"{folder}: {FLAG} is for our own decoder; leave it out")
    checkpoint = accept(checkpoint, accept_config)
    scheme, raw = checkpoint.scheme, checkpoint.config
    if checkpoint.format == "converted":
        tensors = None
        stored_dtype = _converted_dtype(folder, implementation, adapter, quantize)
    else:
        tensors = checkpoint.tensors
        stored_dtype = tensors.dtype_name() if scheme is None else scheme.narrowest
    dtype = _computed_dtype(dtype, stored_dtype)
    if adapter is not None and tensors is not None:
        tensors = _with_adapter(tensors, adapter, raw["model_type"])
    if implementation == "transformers":
        assert tensors is not None  # a converted folder was refused above
        model = _flax_class(folder, raw, tensors, dtype, quantize, mesh_choice)
    else:
        model = native.build(folder, raw, tensors, dtype, quantize, mesh_choice, before_weights)
    stored_as = None if scheme is None else scheme.describe()
    if adapter is not None:
        model = dataclasses.replace(model, replace_params=_refuse_with_adapter)
    facts = dataclasses.replace(model.checkpoint, stored_as=stored_as, accepted=checkpoint.accepted)
    return dataclasses.replace(model, checkpoint=facts)


def _check_platform() -> None:
    """Check that there are programs for the current platform."""
    try:
        current_platform()
    except ValueError as problem:
        raise InputError(str(problem)) from None


def _with_adapter(tensors: Tensors, adapter: Path, model_type: str) -> Tensors:
    """Return the tensors of a checkpoint with a LoRA adapter merged into them."""
    from jaxscore.models.weights import lora  # deferred: few checkpoints have one

    family = FAMILIES.get(model_type)
    bare = str if family is None else functools.partial(bare_name, family)
    return lora.merged(tensors, lora.read(adapter), model_type, bare)


def _flax_class(
    folder: Path,
    raw: dict[str, Any],
    tensors: Tensors,
    dtype: Dtype,
    quantize: Quantize | None,
    mesh_choice: MeshChoice | None,
) -> Model:
    """Build the model with transformers' Flax class."""
    if quantize is not None:
        raise InputError(
            f"{folder}: --quantize is for our own decoder, and this model runs as transformers' "
            "class; leave it out"
        )
    from jaxscore.models.transformers_flax import flax_classes  # deferred: imports transformers

    return flax_classes.build(folder, raw, tensors, dtype, mesh_choice)


def _refuse_with_adapter(values: Any) -> Any:
    raise InputError(
        "new parameters: a LoRA adapter is merged into the current ones and would be missing from "
        "the new ones; load the model without lora, and merge it into the tensors"
    )


@jax_settings.isolated()
def load_tensors(
    config: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    dtype: DtypeOption = "auto",
    quantize: Quantize | None = None,
    mesh_choice: MeshChoice | None = None,
) -> Model:
    """Load a model as in `load`, from tensors in memory.

    Args:
        config: the contents of a config.json.
        tensors: NumPy or JAX arrays of any sharding, by their Hugging Face name.

    Raises:
        InputError: the name of what is not handled.
        ValueError: see `load`.
    """
    check_choice("dtype", dtype, DTYPES)
    check_choice("quantize", quantize, (None, *QUANTIZED))
    where = str(config_path(MEMORY))
    if not isinstance(config.get("model_type"), str):
        raise InputError(f"{where}: expected a string `model_type`")
    model_types.check(dict(config), where)
    if config.get("quantization_config") is not None:
        raise InputError(
            f"{where}: tensors in memory are plain floats; dequantize them, and leave out "
            "quantization_config"
        )
    memory_tensors = array_tensors(tensors)
    dtype = _computed_dtype(dtype, memory_tensors.dtype_name())
    return native.build(MEMORY, dict(config), memory_tensors, dtype, quantize, mesh_choice)


def _computed_dtype(dtype: DtypeOption, stored_dtype: str) -> Dtype:
    """Return the dtype of the matrices, see `load`."""
    if dtype != "auto":
        return dtype
    on_cpu = current_platform() == "cpu"
    return "float32" if on_cpu or stored_dtype in ("float32", "float64") else "bfloat16"


def _converted_dtype(
    folder: Path,
    implementation: ImplementationOption,
    adapter: Path | None,
    quantize: Quantize | None,
) -> str:
    """Return the dtype of a converted checkpoint's parameters.

    Raises:
        InputError: an option that would change them, which is possible only before conversion.
    """
    if adapter is not None or quantize is not None or implementation == "transformers":
        raise InputError(
            f"{folder}: is converted, which takes no LoRA adapter, no --quantize and no "
            "--model-impl transformers; give the original checkpoint, or convert it with --lora"
        )
    from jaxscore.models.weights import converted

    return converted.read_facts(folder).dtype

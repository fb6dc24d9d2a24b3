"""Load a checkpoint: choose implementation and dtype; drop keys that the user vouches for."""

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
    """A raw `config.json` without some keys, of the text model in a wrapper too."""
    out = {name: value for name, value in raw.items() if name not in accepted}
    if isinstance(text := out.get(TEXT), dict):
        out[TEXT] = {name: value for name, value in text.items() if name not in accepted}
    return out


def accept(checkpoint: Checkpoint, accepted: Sequence[str]) -> Checkpoint:
    """Remove the keys that a user vouches for from the config of a checkpoint.

    Args:
        accepted: names of keys of the file, or of its text_config.

    Raises:
        InputError: a key that the file does not have, that is handled already, or that the family
            reads, so that removing it would change the numbers.
    """
    if not accepted:
        return checkpoint
    raw, where = checkpoint.written, checkpoint.where
    parts = [raw, raw[TEXT]] if isinstance(raw.get(TEXT), dict) else [raw]
    for name in accepted:
        if not any(name in part for part in parts):
            raise InputError(f"{where}: {FLAG} {name}: the file has no such key; leave it out")
    left = without(raw, accepted)
    text = wrappers.text_of(left, where)
    if text.family not in FAMILIES:  # which loading refuses by name
        return dataclasses.replace(checkpoint, written=left)
    _, _, defaults = read(text.raw, where)
    reads = FAMILIES[text.family].reads | DECISIVE
    if defaults.rope is not None:
        reads |= names_of(text.raw["model_type"], defaults.rope)
    of_wrapper: set[str] = set()
    if text.wrapper is not None:
        of_wrapper = {*text.wrapper.knows, *text.wrapper.tokens, *text.wrapper.aliases}
    values = {}
    for name in accepted:
        value = next(part[name] for part in parts if name in part)
        own = defaults.aliases.get(name, name)
        if own in reads:
            raise InputError(
                f"{where}: {FLAG} {name}: decides the numbers of model_type "
                f"{text.raw['model_type']!r} and is read; leave the flag out"
            )
        if name in of_wrapper or not unhandled({own: value}, defaults.values, frozenset()):
            raise InputError(
                f"{where}: {FLAG} {name}: is handled already, {name}={value!r} changes nothing; "
                "leave the flag out"
            )
        values[name] = value
    return dataclasses.replace(checkpoint, written=left, accepted=values)


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
    """Load the parameters to the device and make the functions over them.

    Args:
        folder: a Hugging Face checkpoint with safetensors, or the output of `jaxscore convert`.
        dtype: of the matrices. "auto" is float32 on the CPU and the checkpoint's type elsewhere
            (bfloat16 for quantized checkpoints and for float16, in which nothing is computed).
        implementation: "native" is our decoder, "transformers" their Flax class; "auto" is
            "native".
        adapter: folder of a LoRA adapter, merged into the weights as they are read.
        quantize: "int8" stores the layers' weights as int8 with a scale per output channel,
            "stored" keeps them in the blocks of their file; `dtype` is then the products',
            the embedding and the unembedding. Native only.
        mesh_choice: chooses the devices once the model is known; None for the first one.
        accept_config: config keys that are not handled and that the user vouches for. Native only.
        before_weights: see `native.build`; not called for transformers' classes.

    Raises:
        InputError: naming the file and what in it is not handled.
        ValueError: a dtype or implementation that does not exist.
    """
    check_choice("dtype", dtype, DTYPES)
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    check_choice("quantize", quantize, (None, *QUANTIZED))
    _check_platform()
    source = Checkpoint.open(folder)
    model_types.check(source.written, source.where)  # before anything is said of its weights
    if accept_config and implementation == "transformers":
        raise InputError(f"{folder}: {FLAG} is for our own decoder; leave it out")
    source = accept(source, accept_config)
    scheme, raw = source.scheme, source.config
    if source.format == "converted":
        tensors = None
        stored_dtype = _converted_dtype(folder, implementation, adapter, quantize)
    else:
        tensors = source.tensors
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
        model = dataclasses.replace(model, replace_params=_refuse_beside_adapter)
    return dataclasses.replace(model, stored_as=stored_as, accepted=source.accepted)


def _check_platform() -> None:
    """Refuse a platform that we have no programs for."""
    try:
        current_platform()
    except ValueError as problem:
        raise InputError(str(problem)) from None


def _with_adapter(tensors: Tensors, adapter: Path, model_type: str) -> Tensors:
    """The tensors of a checkpoint with a LoRA adapter merged into them."""
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
    """The model as transformers' Flax class."""
    if quantize is not None:
        raise InputError(
            f"{folder}: --quantize is for our own decoder, and this model runs as transformers' "
            "class; leave it out"
        )
    from jaxscore.models.transformers_flax import flax_classes  # deferred: imports transformers

    return flax_classes.build(folder, raw, tensors, dtype, mesh_choice)


def _refuse_beside_adapter(values: Any) -> Any:
    raise InputError(
        "new parameters: a LoRA adapter is merged into the present ones, and would be missing in "
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
    """Like `load`, of tensors in memory.

    Args:
        config: what config.json would contain.
        tensors: NumPy or JAX arrays of any sharding, by their Hugging Face name.

    Raises:
        InputError: naming what in them is not handled.
        ValueError: as `load`.
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
    read = array_tensors(tensors)
    dtype = _computed_dtype(dtype, read.dtype_name())
    return native.build(MEMORY, dict(config), read, dtype, quantize, mesh_choice)


def _computed_dtype(dtype: DtypeOption, stored_dtype: str) -> Dtype:
    """The dtype of the matrices, see `load`."""
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

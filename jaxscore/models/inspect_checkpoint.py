"""Checks that a checkpoint would load, and the attributes that determine its function.

No values of weights are read.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.device import jax_settings
from jaxscore.errors import InputError
from jaxscore.models import load, model_types, native, wrappers
from jaxscore.models.config import read
from jaxscore.models.families import FAMILIES
from jaxscore.models.model_types import Implementation, ImplementationOption, resolve_implementation
from jaxscore.models.transformers_flax import GUARDS, guarded
from jaxscore.models.weights import converted, tensor_files
from jaxscore.models.weights.checkpoint import Checkpoint
from jaxscore.models.weights.folder import GGUF
from jaxscore.models.weights.generation_config import read_generation_config
from jaxscore.models.weights.params import check_params

TIED = "tie_word_embeddings"
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", GGUF)


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute that determines the function.

    Attributes:
        name: the attribute's name; `rope_parameters` includes all rotary attributes.
        value: the value that the family reads.
        origin: "file", "default", or "derived" from other attributes.
    """

    name: str
    value: Any
    origin: str


@dataclasses.dataclass
class Inspection:
    """Findings about a checkpoint; after a refusal, the remaining fields keep their defaults.

    Attributes:
        config: path of the `config.json`.
        model_type: the model type in the file.
        implementation: the implementation that would run it.
        family: the family of the model, or of a wrapper's text model.
        text: the model type of a wrapper's text model.
        stored: the `quant_method` of its `quantization_config`, or "plain".
        attributes: the attributes that determine the function, sorted by name.
        accepted: unhandled keys that the user vouches for, with their values.
        weights: one sentence about the checks of the weights.
        refused: error messages of loading and further problems; empty if it loads.
    """

    config: str
    model_type: str
    implementation: Implementation
    family: str | None = None
    text: str | None = None
    stored: str | None = None
    attributes: list[Attribute] = dataclasses.field(default_factory=list)
    accepted: dict[str, Any] = dataclasses.field(default_factory=dict)
    weights: str = "the config alone is checked"
    refused: list[str] = dataclasses.field(default_factory=list)


@jax_settings.isolated()
def inspect_checkpoint(
    folder: Path, implementation: ImplementationOption = "auto", accept_config: Sequence[str] = ()
) -> Inspection:
    """Run the checks of `load` up to the first value of a weight.

    Args:
        folder: a folder with a config.json; weights are optional.
        implementation, accept_config: see `load`.

    Raises:
        InputError: config.json is missing or lacks a model type.
    """
    source = Checkpoint.open(folder)
    where = source.where
    out = Inspection(where, source.written["model_type"], resolve_implementation(implementation))
    try:
        model_types.check(source.written, where)
        source = load.accept(source, accept_config)
        out.accepted = dict(source.accepted)
    except InputError as problem:
        out.refused.append(str(problem))
        return out
    try:
        out.stored = "plain" if source.scheme is None else source.scheme.method
    except InputError as problem:
        out.refused.append(str(problem))
    tensors = None
    try:
        if source.format == "converted":
            original = converted.read_facts(folder).source
            out.weights = f"converted from {original}; not looked at"
        elif out.stored is not None and _has_weights(source):
            tensors = source.tensors
    except InputError as problem:
        out.refused.append(str(problem))
    try:
        if out.implementation == "native":
            _inspect_native(source, tensors, out)
        else:
            _inspect_flax_class(source.config, where, out)
    except InputError as problem:
        out.refused.append(str(problem))
    return out


def _inspect_native(
    source: Checkpoint, tensors: tensor_files.Tensors | None, out: Inspection
) -> None:
    folder, raw = source.path, source.config
    tied = None if tensors is None else wrappers.HEAD not in tensors.stored
    if raw["model_type"] in wrappers.WRAPPERS and source.format == "converted":
        tied = not converted.has_unembedding(folder)
    text = wrappers.text_of(raw, out.config, tied=tied)
    out.text = text.raw["model_type"] if text.wrapper is not None else None
    if text.family in FAMILIES:
        out.family = text.family
        out.attributes = _attributes(raw, text, out.config)
    read_generation_config(folder, text.raw)
    family, config = native.translate(folder, raw, tied=tied)
    if tensors is None:
        return
    left_out = None
    if text.wrapper is not None:
        tensors, left_out = wrappers.text_tensors(folder, tensors, text.wrapper)
    if family.unread_part:
        left_out = native.describe_unread(family, config, tensors, left_out)
    check_params(folder, family, config, tensors)
    out.weights = f"names, types and shapes of {len(tensors.stored)} tensors fit; no value is read"
    out.weights += f"; left out: {left_out}" if left_out else ""


def _attributes(raw: dict[str, Any], text: wrappers.Text, where: str) -> list[Attribute]:
    """Return the attributes that the family reads, including defaults."""
    config, from_file, defaults = read(text.raw, where)
    if text.wrapper is not None and TIED not in {**raw, **(raw.get("text_config") or {})}:
        del from_file[TIED]  # `text_of` added it
    out = []
    for name in sorted(FAMILIES[text.family].reads & set(vars(config))):
        value = getattr(config, name)
        origin = "file" if name in from_file else "default"
        if origin == "default" and value != defaults.values.get(name, value):
            origin = "derived"
        out.append(Attribute(name, value, origin))
    return out


def _inspect_flax_class(raw: dict[str, Any], where: str, out: Inspection) -> None:
    model_type = raw["model_type"]
    config = guarded(raw, where)
    out.family = model_type
    for name in sorted(GUARDS[model_type].reads | set(GUARDS[model_type].only)):
        if hasattr(config, name):
            origin = "file" if name in raw else "default"
            out.attributes.append(Attribute(name, getattr(config, name), origin))


def _has_weights(source: Checkpoint) -> bool:
    return source.format == "gguf" or any(
        path.suffix in WEIGHT_SUFFIXES or path.name == tensor_files.INDEX
        for path in source.path.iterdir()
    )

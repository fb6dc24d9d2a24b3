"""Whether a checkpoint would load, and which attributes decide, without reading its weights."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models import native, refused_families, wrappers
from jaxscore.models.choices import AskedImplementation, Implementation, chosen
from jaxscore.models.config import acceptance
from jaxscore.models.config.reading import read
from jaxscore.models.families import FAMILIES
from jaxscore.models.transformers_flax.guards import GUARDS, guarded
from jaxscore.models.weights import checkpoint, converted
from jaxscore.models.weights.params import check_params
from jaxscore.models.weights.stored_types import methods
from jaxscore.models.weights.stored_types.settings import NAME

TIED = "tie_word_embeddings"
WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    checkpoint.GGUF,
)  # ends of names of files that hold some


@dataclasses.dataclass(frozen=True)
class Attribute:
    """One attribute that decides something.

    Attributes:
        name: `rope_parameters` stands for all that are about rotary positions.
        value: as the family reads it.
        origin: "file", "default", or "derived" from other attributes.
    """

    name: str
    value: Any
    origin: str


@dataclasses.dataclass
class Look:
    """What is known of a checkpoint; None and empty where a refusal came before.

    Attributes:
        config: the file.
        model_type: as it says.
        implementation: what runs it.
        family: of which it is a member; of a wrapper, its text model is.
        text: model type of a wrapper's text.
        stored: the method of its `quantization_config`, or "plain".
        attributes: by name.
        accepted: keys that are not handled and that the user vouches for, with their values.
        weights: what of the weights is checked, for people.
        refused: why it does not load, as loading says it, and what else is found; empty where it
            loads.
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


def look(
    folder: Path, asked: AskedImplementation = "auto", accept_config: Sequence[str] = ()
) -> Look:
    """Go through what `load` does, up to the first value of a weight.

    Args:
        folder: with a config.json; weights may be there.
        asked, accept_config: see `load`.

    Raises:
        InputError: there is no config.json with a model type.
    """
    raw, where = checkpoint.read_config(folder), str(folder / native.CONFIG)
    out = Look(where, raw["model_type"], chosen(asked))
    try:
        refused_families.check(raw, where)
    except InputError as problem:
        out.refused.append(str(problem))
        return out
    try:
        raw, out.accepted = acceptance.accept(raw, accept_config, where)
    except InputError as problem:
        out.refused.append(str(problem))
        return out
    stored = None
    try:
        stored = methods.read(folder, raw)
        out.stored = stored.method or "plain"
    except InputError as problem:
        out.refused.append(str(problem))
    plain = {name: value for name, value in raw.items() if name != NAME}
    tensors = None
    try:
        if converted.is_converted(folder):
            out.weights = f"converted from {converted.read_facts(folder).source}; not looked at"
        elif stored is not None and _has_weights(folder):
            tensors = stored.opened(folder)
    except InputError as problem:
        out.refused.append(str(problem))
    try:
        if out.implementation == "native":
            _native(folder, plain, tensors, out)
        else:
            _transformers(plain, where, out)
    except InputError as problem:
        out.refused.append(str(problem))
    return out


def _native(
    folder: Path, raw: dict[str, Any], tensors: checkpoint.Tensors | None, out: Look
) -> None:
    tied = None if tensors is None else wrappers.HEAD not in tensors.stored
    if raw["model_type"] in wrappers.WRAPPERS and converted.is_converted(folder):
        tied = not converted.has_unembedding(folder)
    text = wrappers.text_of(raw, out.config, tied=tied)
    out.text = text.raw["model_type"] if text.wrapper is not None else None
    if text.family in FAMILIES:
        out.family = text.family
        out.attributes = _attributes(raw, text, out.config)
    checkpoint.eos_ids(folder, text.raw)
    family, config = native.translate(folder, raw, tied=tied)
    if tensors is None:
        return
    left_out = None
    if text.wrapper is not None:
        tensors, left_out = wrappers.text_tensors(folder, tensors, text.wrapper)
    check_params(folder, family, config, tensors)
    out.weights = f"names, types and shapes of {len(tensors.stored)} tensors fit; no value is read"
    out.weights += f"; left out: {left_out}" if left_out else ""


def _attributes(raw: dict[str, Any], text: wrappers.Text, where: str) -> list[Attribute]:
    """Those that the family reads, with what the file leaves out."""
    config, given, defaults = read(text.raw, where)
    if text.wrapper is not None and TIED not in {**raw, **(raw.get("text_config") or {})}:
        del given[TIED]  # `text_of` has put it there
    out = []
    for name in sorted(FAMILIES[text.family].reads & set(vars(config))):
        value = getattr(config, name)
        origin = "file" if name in given else "default"
        if origin == "default" and value != defaults.values.get(name, value):
            origin = "derived"
        out.append(Attribute(name, value, origin))
    return out


def _transformers(raw: dict[str, Any], where: str, out: Look) -> None:
    kind = raw["model_type"]
    config = guarded(raw, where)
    out.family = kind
    for name in sorted(GUARDS[kind].reads | set(GUARDS[kind].only)):
        if hasattr(config, name):
            origin = "file" if name in raw else "default"
            out.attributes.append(Attribute(name, getattr(config, name), origin))


def _has_weights(folder: Path) -> bool:
    return any(path.suffix in WEIGHTS or path.name == checkpoint.INDEX for path in folder.iterdir())

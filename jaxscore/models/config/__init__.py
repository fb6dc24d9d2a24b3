"""A `config.json` as an object with every attribute, whichever transformers version wrote it.

`defaults.json` has for each model type what transformers' config class takes for a missing
attribute (a test compares it with the installed version):

    values     attribute -> default, under the class's own name; null if it is derived from others
               (see `derived`), or if null is the default
    aliases    other names of an attribute -> the class's own
    differs    attributes with different defaults in transformers 4.57 and 5; a file that leaves
               one out is refused
    rope       rotary parameters of a file without any, under the names of `rope_parameters`; a
               null `rope_theta` differs between the versions too. With layer types as keys, each
               type has its own. Missing if the model has no rotary embeddings
"""

import functools
import json
from importlib import resources
from types import SimpleNamespace
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.models.config import check, rope_parameters
from jaxscore.models.config.derived import derive
from jaxscore.models.rope import ORIGINAL


class Defaults(NamedTuple):
    """An entry of `defaults.json`."""

    values: dict[str, Any]
    aliases: dict[str, str]
    differs: frozenset[str]
    rope: dict[str, Any] | None


class Config(NamedTuple):
    """A config that was read.

    Attributes:
        config: every attribute of the model type under its own name and its aliases, with
            defaults and derived values, and further attributes of the file. All rotary ones are
            in `rope_parameters`.
        given: the attributes of the file itself, under their own names; `rope_parameters` stands
            for all rotary ones.
        defaults: of the model type.
    """

    config: Any
    given: dict[str, Any]
    defaults: Defaults


@functools.cache
def table() -> dict[str, Defaults]:
    """`defaults.json` by model type."""
    text = (resources.files(__name__) / "defaults.json").read_text(encoding="utf-8")
    return {
        kind: Defaults(
            entry["values"],
            entry.get("aliases", {}),
            frozenset(entry.get("differs", ())),
            entry.get("rope"),
        )
        for kind, entry in json.loads(text).items()
    }


def read(raw: dict[str, Any], where: str) -> Config:
    """Read a raw `config.json`.

    Args:
        where: the file, for errors.

    Raises:
        InputError: a model type without defaults, a value of the wrong type, sizes that make no
            model, or two names of one attribute that differ.
    """
    kind = raw["model_type"]
    if (defaults := table().get(kind)) is None:
        raise InputError(f"{where}: unknown model_type {kind!r}")
    check.check_sizes(raw, where)
    given: dict[str, Any] = {}
    for name, value in raw.items():
        own = defaults.aliases.get(name, name)
        if own in given and given[own] != value:
            raise InputError(
                f"{where}: {name} is another name of {own}, and they differ; leave one out"
            )
        given[own] = value
    check.check_types(given, defaults.values, where)
    if missing := sorted(defaults.differs - set(given)):
        raise InputError(
            f"{where}: {', '.join(missing)} is missing; transformers' versions take different "
            "defaults, so write it into the file"
        )
    values = defaults.values | given
    try:
        if defaults.rope is not None:
            names = rope_parameters.names_of(kind, defaults.rope)
            rotary = {name: given.pop(name) for name in names & set(given)}
            sizes = values | {alias: values[own] for alias, own in defaults.aliases.items()}
            parameters = rope_parameters.normal(kind, rotary, defaults.rope, sizes)
            values = {name: value for name, value in values.items() if name not in names}
            values["rope_parameters"] = parameters
            if rotary:
                given["rope_parameters"] = parameters
            if ORIGINAL in parameters and ORIGINAL not in defaults.values:
                given.pop(ORIGINAL, None)  # it is in `rope_parameters`
        config = SimpleNamespace(**values)
        for alias, own in defaults.aliases.items():
            setattr(config, alias, getattr(config, own))
        derive(kind, config)
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None
    except (ArithmeticError, TypeError, ValueError) as problem:
        raise InputError(f"{where}: sizes that make no model ({problem})") from None
    return Config(config, given, defaults)

"""Read a `config.json` of any transformers version into an object with every attribute.

`defaults.json` contains for each model type the defaults of transformers' config class (a test
compares them with the installed version):

    values     attribute -> default, under the class's name for it; null if it is derived from
               others (see `derived`), or if null is the default
    aliases    other names of an attribute -> the class's name
    differs    attributes with different defaults in transformers 4.57 and 5; a file that omits
               one is refused
    rope       rotary parameters of a file without any, under the names of `rope_parameters`; a
               null `rope_theta` means that the versions differ. If its keys are layer types, each
               type has separate parameters. Absent for models without rotary embeddings
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
    """A config with defaults and derived values, and its sources.

    Attributes:
        config: object with every attribute of the model type under its name and its aliases, with
            defaults and derived values, and further attributes of the file. All rotary attributes
            are in `rope_parameters`.
        from_file: the attributes of the file, under the class's names; `rope_parameters` includes
            all rotary attributes.
        defaults: the defaults of the model type.
    """

    config: Any
    from_file: dict[str, Any]
    defaults: Defaults


@functools.cache
def table() -> dict[str, Defaults]:
    """Return the entries of `defaults.json` by model type."""
    text = (resources.files(__name__) / "defaults.json").read_text(encoding="utf-8")
    return {
        model_type: Defaults(
            entry["values"],
            entry.get("aliases", {}),
            frozenset(entry.get("differs", ())),
            entry.get("rope"),
        )
        for model_type, entry in json.loads(text).items()
    }


def read(raw: dict[str, Any], where: str) -> Config:
    """Read a raw `config.json`.

    Args:
        where: the file's name for error messages.

    Raises:
        InputError: a model type without defaults, a value of the wrong type, sizes that do not
            form a valid model, or different values under two names of one attribute.
    """
    model_type = raw["model_type"]
    if (defaults := table().get(model_type)) is None:
        raise InputError(f"{where}: unknown model_type {model_type!r}")
    check.check_sizes(raw, where)
    file_values: dict[str, Any] = {}
    for name, value in raw.items():
        canonical = defaults.aliases.get(name, name)
        if canonical in file_values and file_values[canonical] != value:
            raise InputError(
                f"{where}: {name} is an alias of {canonical}, and they differ; leave one out"
            )
        file_values[canonical] = value
    check.check_types(file_values, defaults.values, where)
    if missing := sorted(defaults.differs - set(file_values)):
        raise InputError(
            f"{where}: {', '.join(missing)} is missing; transformers 4.57 and 5 have different "
            "defaults, so write it into the file"
        )
    values = defaults.values | file_values
    try:
        if defaults.rope is not None:
            names = rope_parameters.names_of(model_type, defaults.rope)
            rotary = {name: file_values.pop(name) for name in names & set(file_values)}
            sizes = values | {
                alias: values[canonical] for alias, canonical in defaults.aliases.items()
            }
            parameters = rope_parameters.normal(model_type, rotary, defaults.rope, sizes)
            values = {name: value for name, value in values.items() if name not in names}
            values["rope_parameters"] = parameters
            if rotary:
                file_values["rope_parameters"] = parameters
            if ORIGINAL in parameters and ORIGINAL not in defaults.values:
                file_values.pop(ORIGINAL, None)  # it is in `rope_parameters`
        config = SimpleNamespace(**values)
        for alias, canonical in defaults.aliases.items():
            setattr(config, alias, getattr(config, canonical))
        derive(model_type, config)
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None
    except (ArithmeticError, TypeError, ValueError) as problem:
        raise InputError(f"{where}: sizes do not form a valid model ({problem})") from None
    return Config(config, file_values, defaults)

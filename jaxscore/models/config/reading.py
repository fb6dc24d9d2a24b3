"""A `config.json` as an object with every attribute, whichever transformers wrote it."""

from types import SimpleNamespace
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.models.config import check, rope_parameters
from jaxscore.models.config.defaults import Defaults, table
from jaxscore.models.config.derived import derive
from jaxscore.models.rope import ORIGINAL


class Reading(NamedTuple):
    """What a file says.

    Attributes:
        config: every attribute of the model type, under its own name and its aliases, defaults
            and derived ones included; what the file has besides is there, too. All that it says
            of rotary positions is `rope_parameters`, see there.
        given: the attributes that the file itself has, under their own names, with
            `rope_parameters` for all of the rotary ones.
        defaults: of the model type.
    """

    config: Any
    given: dict[str, Any]
    defaults: Defaults


def read(raw: dict[str, Any], where: str) -> Reading:
    """The attributes of a raw `config.json`.

    Args:
        where: names the file in errors.

    Raises:
        InputError: a model type that the table does not have, a value of the wrong type, sizes
            that make no model, or two names of one thing that differ.
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
    # One alias of an attribute may have come before it under its own name.
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
            said = {name: given.pop(name) for name in names & set(given)}
            found = rope_parameters.normal(kind, said, defaults.rope, values)
            values = {name: one for name, one in values.items() if name not in names}
            values["rope_parameters"] = found
            if said:
                given["rope_parameters"] = found
            if ORIGINAL in found and ORIGINAL not in defaults.values:
                given.pop(ORIGINAL, None)  # is in it
        config = SimpleNamespace(**values)
        for alias, own in defaults.aliases.items():
            setattr(config, alias, getattr(config, own))
        derive(kind, config)
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None
    except (ArithmeticError, TypeError, ValueError) as problem:
        raise InputError(f"{where}: sizes that make no model ({problem})") from None
    return Reading(config, given, defaults)

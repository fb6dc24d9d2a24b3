"""transformers' own config objects, which its Flax classes are made from."""

from collections.abc import Set
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models.config.check import check_attributes, check_sizes, check_types


def transformers_config(raw: dict[str, Any], where: str) -> Any:
    """The transformers config object of a raw `config.json`, which fills the defaults in.

    Raises:
        InputError: a model type that transformers does not know, or values it refuses.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    kind = raw["model_type"]
    if kind not in CONFIG_MAPPING:
        raise InputError(f"{where}: unknown model_type {kind!r}")
    check_sizes(raw, where)
    told = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it prints values that it does not like, as they are
    try:
        return CONFIG_MAPPING[kind](**{k: v for k, v in raw.items() if k != "model_type"})
    except Exception as problem:  # each config class validates in its own way
        raise InputError(f"{where}: transformers refuses it: {problem}") from None
    finally:
        logging.set_verbosity(told)


def check_class_attributes(raw: dict[str, Any], config: Any, reads: Set[str], where: str) -> None:
    """Every attribute must be read, inert, or at the default that the class has anyway.

    Raises:
        InputError: naming the attributes for which none of these holds, or one of the wrong type.
    """
    defaults = type(config)().to_dict()
    aliases = getattr(config, "attribute_map", {})
    given = {aliases.get(name, name): value for name, value in raw.items()}
    check_attributes(given, defaults, reads, where, raw["model_type"], remedy="")
    filled = {name: getattr(config, name) for name in reads & set(defaults)}
    check_types(filled, defaults, where)

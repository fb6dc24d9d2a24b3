"""transformers' own Flax classes: whether they are installed, and their config objects."""

import importlib.metadata
from collections.abc import Set
from importlib.util import find_spec
from typing import Any

from jaxscore.errors import InputError, install_extra
from jaxscore.models.config.check import check_attributes, check_sizes, check_types


def require_flax_classes(who: str) -> None:
    """Require a transformers with Flax classes; 4.57 is the last line that has them.

    Args:
        who: what needs one, for the message.

    Raises:
        InputError: it has none; the message says what to install.
    """
    if find_spec("transformers.modeling_flax_utils") is None:
        version = importlib.metadata.version("transformers")
        raise InputError(
            f"{who} runs on a Flax class of transformers, and transformers {version} has none; "
            f"{install_extra('flax-classes')}, which takes transformers 4.57, the last line that "
            "has them"
        )


def transformers_config(raw: dict[str, Any], where: str) -> Any:
    """transformers' config object of a raw `config.json`, defaults filled in.

    Raises:
        InputError: a model type or values that transformers refuses.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    kind = raw["model_type"]
    if kind not in CONFIG_MAPPING:
        raise InputError(f"{where}: unknown model_type {kind!r}")
    check_sizes(raw, where)
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # it would print refused values
    try:
        return CONFIG_MAPPING[kind](**{k: v for k, v in raw.items() if k != "model_type"})
    except Exception as problem:  # each config class validates in its own way
        raise InputError(f"{where}: transformers refuses it: {problem}") from None
    finally:
        logging.set_verbosity(verbosity)


def check_class_attributes(raw: dict[str, Any], config: Any, reads: Set[str], where: str) -> None:
    """Require every attribute to be read, inert, or at the default of its class.

    Raises:
        InputError: other attributes, or a value of the wrong type.
    """
    defaults = type(config)().to_dict()
    aliases = getattr(config, "attribute_map", {})
    given = {aliases.get(name, name): value for name, value in raw.items()}
    check_attributes(given, defaults, reads, where, raw["model_type"], remedy="")
    filled = {name: getattr(config, name) for name in reads & set(defaults)}
    check_types(filled, defaults, where)

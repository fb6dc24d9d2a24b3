"""Config keys that are not handled and that a user vouches for."""

from collections.abc import Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.models import wrappers
from jaxscore.models.config import read
from jaxscore.models.config.check import FLAG, unhandled
from jaxscore.models.config.rope_parameters import names_of
from jaxscore.models.families import FAMILIES

TEXT = "text_config"
DECISIVE = {"model_type", TEXT, "vision_config", "audio_config", "quantization_config"}


def without(raw: dict[str, Any], accepted: Sequence[str]) -> dict[str, Any]:
    """A raw `config.json` without some keys, of the text model in a wrapper too."""
    out = {name: value for name, value in raw.items() if name not in accepted}
    if isinstance(text := out.get(TEXT), dict):
        out[TEXT] = {name: value for name, value in text.items() if name not in accepted}
    return out


def accept(
    raw: dict[str, Any], accepted: Sequence[str], where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Remove the keys that a user vouches for from a raw `config.json`.

    Args:
        accepted: names of keys of the file, or of its text_config.
        where: the file, for errors.

    Returns:
        The config without them, and each key with its value.

    Raises:
        InputError: a key that the file does not have, that is handled already, or that the family
            reads, so that removing it would change the numbers.
    """
    if not accepted:
        return raw, {}
    parts = [raw, raw[TEXT]] if isinstance(raw.get(TEXT), dict) else [raw]
    for name in accepted:
        if not any(name in part for part in parts):
            raise InputError(f"{where}: {FLAG} {name}: the file has no such key; leave it out")
    left = without(raw, accepted)
    text = wrappers.text_of(left, where)
    if text.family not in FAMILIES:
        return left, {}  # which loading refuses by name
    _, _, defaults = read(text.raw, where)
    reads = FAMILIES[text.family].reads | DECISIVE
    if defaults.rope is not None:
        reads |= names_of(text.raw["model_type"], defaults.rope)
    of_wrapper: set[str] = set()
    if text.wrapper is not None:
        of_wrapper = {*text.wrapper.knows, *text.wrapper.tokens, *text.wrapper.aliases}
    found = {}
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
        found[name] = value
    return left, found

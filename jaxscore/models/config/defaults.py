"""What a `config.json` leaves out, by `model_type`: `defaults.json`, and its types and names.

The file has for each model type what transformers' config class takes where an attribute is
missing (a test holds it against the installed line):

    values     attribute -> default, under the class's own name; null where it is derived from
               others (`derived`), or where null is the default
    aliases    other names of an attribute -> the class's own
    differs    attributes for which transformers 4.57 and 5 have different defaults; a file that
               leaves one out is refused
    rope       rotary parameters of a file that has none, under the names of `rope_parameters`; a
               null `rope_theta` differs between the lines, too. With layer types as keys, each
               type has its own. No entry, no rotary positions
"""

import functools
import json
from importlib import resources
from typing import Any, NamedTuple


class Defaults(NamedTuple):
    """One entry of `defaults.json`."""

    values: dict[str, Any]
    aliases: dict[str, str]
    differs: frozenset[str]
    rope: dict[str, Any] | None


@functools.cache
def table() -> dict[str, Defaults]:
    """All of `defaults.json`."""
    file = resources.files("jaxscore.models.config") / "defaults.json"
    return {
        kind: Defaults(
            entry["values"],
            entry.get("aliases", {}),
            frozenset(entry.get("differs", ())),
            entry.get("rope"),
        )
        for kind, entry in json.loads(file.read_text(encoding="utf-8")).items()
    }

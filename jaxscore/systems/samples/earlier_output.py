"""Whether what an earlier run has left in an output file is of this run's input and settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.lm import LM

REMEDY = "give another --output, or delete it to compute everything again"


def check_input(n_items: int, same: Sequence[bool | None], path: Path) -> int:
    """Refuse a file of other items: going on would destroy what is in it.

    Args:
        n_items: of this run.
        same: for each record of the file whether it is of the item in its place; None where
            that item cannot be used, so nothing follows from it.
        path: the file.

    Returns:
        How many items have changed.

    Raises:
        InputError: there are more records than items, or none is of its item.
    """
    if len(same) > n_items:
        raise InputError(
            f"{path}: holds {len(same)} items and the input {n_items}, so it is not of this "
            f"input; {REMEDY}"
        )
    n_changed = sum(one is False for one in same)
    if n_changed and True not in same:
        raise InputError(
            f"{path}: none of its items is the one in the same place of this input; {REMEDY}"
        )
    return n_changed


def check_settings(
    name: str, found: Mapping[str, Any], asked: Mapping[str, Any], path: Path
) -> None:
    """Refuse to mix results that were computed in different ways.

    Args:
        name: the record's, for people.
        found: what it was computed with.
        asked: what this run computes with, as far as it is known.
        path: the file.

    Raises:
        InputError: names both ways.
    """
    for key, value in asked.items():
        if found.get(key) != value:
            raise InputError(
                f"{path}: {name} was computed with {key} {found.get(key)}, this run has "
                f"{key} {value}; {REMEDY}"
            )


def model_facts(lm: LM) -> dict[str, Any]:
    """What a record says of a model that was loaded in Python; None for what does not apply."""
    found = lm.describe()
    return {
        "model": found["model"],
        "revision": found["revision"],
        "lora": found.get("lora"),
        "quantize": found.get("quantized"),
        "reproducible": found.get("reproducible"),
    }

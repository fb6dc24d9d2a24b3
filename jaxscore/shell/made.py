"""Facts of how a record was made, which an output has if a later run may continue it."""

from collections.abc import Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.lm import LM


def record_facts(lm: LM) -> dict[str, Any]:
    """Return the facts of a model and its precision in a record; None for what does not apply."""
    described = lm.describe()
    return {
        "model": described["model"],
        "revision": described["revision"],
        "lora": described.get("lora"),
        "quantize": described.get("quantized"),
        "reproducible": described.get("reproducible"),
        "dtype": described["dtype"],
    }


def check_made(name: str, earlier: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that a record of an earlier run was made as those of this run are.

    Args:
        name: the item's, for the message.
        earlier: facts in the record. One without a dtype may have any.
        made: facts in this run's records, as far as they are known.

    Raises:
        InputError: the two differ.
    """
    for fact, value in current.items():
        other = earlier.get(fact)
        if other != value and (fact != "dtype" or other is not None):
            raise InputError(
                f"{name} was computed with {fact} {other}, this run has {fact} {value}"
            )

"""What `self-certainty` knows of an item: its outputs, and their confidences."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from jaxscore.io.json_input import json_kind
from jaxscore.systems.resuming import Known
from jaxscore.types.results import ScoredRequest

# Further confidences of an output, with gold: field -> attribute of its scores.
MEASURED = {
    "mean_logprob_list": "mean_logprob",
    "mean_entropy_list": "mean_entropy",
    "perplexity_list": "perplexity",
}
NO_TOKENS = "no tokens, so there is no prediction to be certain of"
LONE_TOKEN = "one token with nothing before it, so it is not predicted"


@dataclasses.dataclass
class Confidence(Known):
    """What is known of an item's outputs.

    Attributes:
        values: nats per token, one per output; None if unknown.
        errors: place of an output -> why it has none.
        measured: further confidences, by a key of `MEASURED`; None if they are neither requested
            nor known.
        made: what the values were computed with; None if no value is known, or if it was not
            written down, as by the published script.
        stated: the settings in the item's record, the same object in each.
    """

    values: list[float | None]
    errors: dict[int, str]
    measured: dict[str, list[float | None]] | None = None
    stated: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def unknown(
        cls, outputs: Sequence[Any], token_ids: Sequence[Any], *, measures: bool
    ) -> "Confidence":
        """Nothing is known yet, except which outputs cannot be scored.

        Args:
            token_ids: drawn ids of each output, or None; special tokens may have no text.
            measures: whether the confidences of `MEASURED` are requested.
        """
        errors = {}
        for place, output in enumerate(outputs):
            if not isinstance(output, str):
                errors[place] = f"found {json_kind(output)}, expected a string"
            elif not output and not token_ids[place]:
                errors[place] = NO_TOKENS
        nothing: list[float | None] = [None] * len(outputs)
        measured = {name: [*nothing] for name in MEASURED} if measures else None
        return cls(None, nothing, errors, measured)

    @property
    def missing(self) -> list[int]:
        """Places of the outputs that are not scored."""
        lists = [self.values, *(self.measured or {}).values()]
        return [
            place
            for place in range(len(self.values))
            if place not in self.errors and any(values[place] is None for values in lists)
        ]

    def take(self, place: int, scored: ScoredRequest, made: Mapping[str, Any]) -> None:
        """Note the scores of an output."""
        value = scored.mean_self_certainty
        if value is None:
            self.errors[place] = scored.error or (LONE_TOKEN if scored.n_tokens else NO_TOKENS)
            return
        is_cut = scored.truncated > 0 or (self.made or {}).get("truncate") is not None
        self.values[place] = value
        for name, values in (self.measured or {}).items():
            values[place] = getattr(scored, MEASURED[name])
        self.made = {**made, "truncate": "left"} if is_cut else made


class Inputs(NamedTuple):
    """An item's fields as the run uses them.

    Attributes:
        name: for messages.
        given: all fields but those that an earlier run added.
        context: the model's input.
        outputs: as given; one that is no text cannot be scored.
        input_field: where the context stands.
    """

    name: str
    given: dict[str, Any]
    context: str
    outputs: list[Any]
    input_field: str


def recalled_measures(record: Mapping[str, Any], n: int) -> dict[str, list[float | None]] | None:
    """The further confidences of a record, or None unless it has all of them."""
    lists = {name: record.get(name) for name in MEASURED}
    if not all(isinstance(values, list) and len(values) == n for values in lists.values()):
        return None
    return {
        name: [
            math.inf if value == "Infinity" else value if is_finite(value) else None
            for value in cast("list[Any]", values)
        ]
        for name, values in lists.items()
    }


def is_finite(value: Any) -> bool:
    """Whether a value is finite; `math.isfinite` does not take a whole number of 400 digits."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and abs(value) < 1e300

"""The outputs of an item of `self-certainty`, and their confidences."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from jaxscore.io.json_input import json_kind
from jaxscore.systems.drawn_tokens import OUTPUTS, PROMPT, ids_of
from jaxscore.types.results import ScoredRequest

# Further confidences of an output, with gold: field -> attribute of its scores.
MEASURED = {
    "mean_logprob_list": "mean_logprob",
    "mean_entropy_list": "mean_entropy",
    "perplexity_list": "perplexity",
}
# Fields of a record that are not the item's; `processed_index` is the published script's.
OWN_FIELDS = (
    "confidence_list", "processed_index", "confidence_settings", "confidence_errors", *MEASURED,
)  # fmt: skip
INPUT_FIELD, OTHER_INPUT_FIELD = PROMPT, "input"
OUTPUT_ERROR = re.compile(r"output (\d+): ")
NO_TOKENS = "no tokens, so there is no prediction to be certain of"
LONE_TOKEN = "one token with nothing before it, so it is not predicted"


class Inputs(NamedTuple):
    """An item's fields as the run uses them.

    Attributes:
        name: for messages.
        given: all fields but those that an earlier run added.
        context: the model's input.
        outputs: as given; one that is not a text cannot be scored.
        input_field: the field of the context.
        token_ids: what the item has as the drawn ids of each output, unchecked; None for none.
        error: why the item cannot be used, or None.
    """

    name: str
    given: dict[str, Any]
    context: str
    outputs: list[Any]
    input_field: str
    token_ids: Sequence[Any] = ()
    error: str | None = None


def read_inputs(name: str, item: Mapping[str, Any], settings: Any) -> Inputs:
    """Read an item, or the record of one.

    Args:
        name: for messages.
        settings: of the run.
    """
    given = {field: value for field, value in item.items() if field not in OWN_FIELDS}
    field, output_field = settings.input_field, settings.output_field
    if field == INPUT_FIELD and given.get(field) is None and OTHER_INPUT_FIELD in given:
        field = OTHER_INPUT_FIELD
    error = _complaint(given, field, str) or _complaint(given, output_field, list)
    if error:
        return Inputs(name, given, "", [], field, error=error)
    outputs = given[output_field]
    has_ids = (field, output_field) == (PROMPT, OUTPUTS)
    ids = [ids_of(given, output) if has_ids else None for output in range(len(outputs))]
    return Inputs(name, given, given[field], outputs, field, ids)


def _complaint(given: Mapping[str, Any], field: str, expected: type) -> str | None:
    """What is wrong with a field, or None."""
    wanted = "a string" if expected is str else "a list of strings"
    if field not in given:
        there = ", ".join(map(repr, given)) or "none"
        return f'no field "{field}", expected {wanted}; there are {there}'
    if not isinstance(given[field], expected):
        return f'field "{field}" is {json_kind(given[field])}, expected {wanted}'
    return None


@dataclasses.dataclass
class Confidence:
    """The confidences of an item's outputs.

    Attributes:
        values: nats per token, one per output; None if unknown.
        errors: place of an output -> why it has none.
        measured: further confidences, by a key of `MEASURED`; None if they are neither requested
            nor known.
        made: what the values were computed with; None if no value is known, or if it was not
            written down, as by the published script.
    """

    values: list[float | None]
    errors: dict[int, str]
    measured: dict[str, list[float | None]] | None = None
    made: Mapping[str, Any] | None = None

    @classmethod
    def unknown(cls, inputs: Inputs, *, measures: bool) -> "Confidence":
        """Nothing is known yet, except which outputs cannot be scored.

        Args:
            measures: whether the confidences of `MEASURED` are requested.
        """
        errors = {}
        for place, output in enumerate(inputs.outputs):
            if not isinstance(output, str):
                errors[place] = f"found {json_kind(output)}, expected a string"
            elif not output and not inputs.token_ids[place]:  # special tokens may have no text
                errors[place] = NO_TOKENS
        nothing: list[float | None] = [None] * len(inputs.outputs)
        measured = {name: [*nothing] for name in MEASURED} if measures else None
        return cls(nothing, errors, measured)

    @classmethod
    def of_record(
        cls, inputs: Inputs, record: Mapping[str, Any], *, measures: bool
    ) -> "Confidence":
        """The confidences of a record.

        A number that is not finite is not known: the published script writes NaN for an output
        without tokens. That script does not say how it computed, so that nothing is added to an
        item of its file: it is complete, or computed again.
        """
        out, made = cls.unknown(inputs, measures=measures), record.get("confidence_settings")
        values = record.get("confidence_list")
        # Older scripts wrote as many as the first item has.
        for place, value in enumerate(values if isinstance(values, list) else ()):
            if is_finite(value) and place < len(out.values) and place not in out.errors:
                out.values[place] = value
        if isinstance(made, dict) and any(value is not None for value in out.values):
            out.made = made
            out.measured = _measures(record, len(out.values)) or out.measured
            return out
        is_complete = all(
            value is not None or place in out.errors for place, value in enumerate(out.values)
        )
        return out if is_complete else cls.unknown(inputs, measures=measures)

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

    def record(self, inputs: Inputs, place: int) -> dict[str, Any]:
        """The record of an item without what is right.

        Args:
            place: of the item, from 0.
        """
        out = {
            **inputs.given,
            "confidence_list": self.values,
            **(self.measured or {}),
            "processed_index": place,
        }
        if self.made is not None:
            out["confidence_settings"] = {k: v for k, v in self.made.items() if v is not None}
        errors = [f"output {output + 1}: {self.errors[output]}" for output in sorted(self.errors)]
        if inputs.error is not None:
            errors = [inputs.error]
        return {**out, "confidence_errors": errors} if errors else out


def _measures(record: Mapping[str, Any], n: int) -> dict[str, list[float | None]] | None:
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

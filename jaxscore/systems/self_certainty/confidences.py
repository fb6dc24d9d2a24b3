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
# Fields that a run adds to an item; `processed_index` comes from the published script.
OWN_FIELDS = (
    "confidence_list", "processed_index", "confidence_settings", "confidence_errors", *MEASURED,
)  # fmt: skip
INPUT_FIELD, OTHER_INPUT_FIELD = PROMPT, "input"
OUTPUT_ERROR = re.compile(r"output (\d+): ")
NO_TOKENS = "no tokens, so nothing is predicted"
LONE_TOKEN = "a single token without context, so it is not predicted"


class Inputs(NamedTuple):
    """An item's fields as the run uses them.

    Attributes:
        name: the item's name in messages.
        fields: all fields except those that an earlier run added.
        context: the model's input.
        outputs: the unchecked outputs; only strings can be scored.
        input_field: the name of the context's field.
        token_ids: the item's drawn ids of each output, unchecked; None if it has none.
        error: the reason why the item cannot be used, or None.
    """

    name: str
    fields: dict[str, Any]
    context: str
    outputs: list[Any]
    input_field: str
    token_ids: Sequence[Any] = ()
    error: str | None = None


def read_inputs(name: str, item: Mapping[str, Any], settings: Any) -> Inputs:
    """Read an item or its record.

    Args:
        name: the item's name in messages.
        settings: the run's settings.
    """
    fields = {field: value for field, value in item.items() if field not in OWN_FIELDS}
    field, output_field = settings.input_field, settings.output_field
    if field == INPUT_FIELD and fields.get(field) is None and OTHER_INPUT_FIELD in fields:
        field = OTHER_INPUT_FIELD
    error = _complaint(fields, field, str) or _complaint(fields, output_field, list)
    if error:
        return Inputs(name, fields, "", [], field, error=error)
    outputs = fields[output_field]
    has_ids = (field, output_field) == (PROMPT, OUTPUTS)
    ids = [ids_of(fields, output) if has_ids else None for output in range(len(outputs))]
    return Inputs(name, fields, fields[field], outputs, field, ids)


def _complaint(fields: Mapping[str, Any], field: str, expected: type) -> str | None:
    """Return the error of a field, or None if it has the expected type."""
    wanted = "a string" if expected is str else "a list of strings"
    if field not in fields:
        names = ", ".join(map(repr, fields)) or "none"
        return f'no field "{field}", expected {wanted}; there are {names}'
    if not isinstance(fields[field], expected):
        return f'field "{field}" is {json_kind(fields[field])}, expected {wanted}'
    return None


@dataclasses.dataclass
class Confidence:
    """The confidences of an item's outputs.

    Attributes:
        values: the self-certainty of each output in nats per token; None if unknown.
        errors: position of an output -> the reason why it is not scored.
        measured: key of `MEASURED` -> further confidences; None if neither requested nor known.
        settings: the `confidence_settings` of the values; None if no value is known or if they
            were not recorded, as by the published script.
    """

    values: list[float | None]
    errors: dict[int, str]
    measured: dict[str, list[float | None]] | None = None
    settings: Mapping[str, Any] | None = None

    @classmethod
    def unknown(cls, inputs: Inputs, *, measures: bool) -> "Confidence":
        """Return confidences without values, with the errors of outputs that cannot be scored.

        Args:
            measures: True if the confidences of `MEASURED` are requested.
        """
        errors = {}
        for k, output in enumerate(inputs.outputs):
            if not isinstance(output, str):
                errors[k] = f"found {json_kind(output)}, expected a string"
            elif not output and not inputs.token_ids[k]:  # special tokens may have no text
                errors[k] = NO_TOKENS
        nothing: list[float | None] = [None] * len(inputs.outputs)
        measured = {name: [*nothing] for name in MEASURED} if measures else None
        return cls(nothing, errors, measured)

    @classmethod
    def of_record(
        cls, inputs: Inputs, record: Mapping[str, Any], *, measures: bool
    ) -> "Confidence":
        """Return the confidences of a record.

        Values that are not finite count as unknown: the published script writes NaN for an output
        without tokens. Its files do not record settings, so an incomplete item in them is computed
        again as a whole.
        """
        out, settings = cls.unknown(inputs, measures=measures), record.get("confidence_settings")
        values = record.get("confidence_list")
        # Older scripts wrote as many values as the first item has outputs.
        for k, value in enumerate(values if isinstance(values, list) else ()):
            if is_finite(value) and k < len(out.values) and k not in out.errors:
                out.values[k] = value
        if isinstance(settings, dict) and any(value is not None for value in out.values):
            out.settings = settings
            out.measured = _measures(record, len(out.values)) or out.measured
            return out
        is_complete = all(
            value is not None or k in out.errors for k, value in enumerate(out.values)
        )
        return out if is_complete else cls.unknown(inputs, measures=measures)

    @property
    def missing(self) -> list[int]:
        """The positions of the outputs to score."""
        lists = [self.values, *(self.measured or {}).values()]
        return [
            k
            for k in range(len(self.values))
            if k not in self.errors and any(values[k] is None for values in lists)
        ]

    def take(self, k: int, scored: ScoredRequest, provenance: Mapping[str, Any]) -> None:
        """Store the scores of an output."""
        value = scored.mean_self_certainty
        if value is None:
            self.errors[k] = scored.error or (LONE_TOKEN if scored.n_tokens else NO_TOKENS)
            return
        is_cut = scored.truncated > 0 or (self.settings or {}).get("truncate") is not None
        self.values[k] = value
        for name, values in (self.measured or {}).items():
            values[k] = getattr(scored, MEASURED[name])
        self.settings = {**provenance, "truncate": "left"} if is_cut else provenance

    def record(self, inputs: Inputs, index: int) -> dict[str, Any]:
        """Return the record of an item, without the verdicts.

        Args:
            index: the item's index, from 0.
        """
        out = {
            **inputs.fields,
            "confidence_list": self.values,
            **(self.measured or {}),
            "processed_index": index,
        }
        if self.settings is not None:
            out["confidence_settings"] = {k: v for k, v in self.settings.items() if v is not None}
        errors = [f"output {k + 1}: {self.errors[k]}" for k in sorted(self.errors)]
        if inputs.error is not None:
            errors = [inputs.error]
        return {**out, "confidence_errors": errors} if errors else out


def _measures(record: Mapping[str, Any], n: int) -> dict[str, list[float | None]] | None:
    """Return the further confidences of a record, or None unless it has all of them."""
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
    """Return True if a value is a finite number; `math.isfinite` fails for ints of 400 digits."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and abs(value) < 1e300

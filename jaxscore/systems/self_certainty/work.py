"""Items of `self-certainty` with the confidences that are known, and their records."""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from jaxscore.io.items import named
from jaxscore.io.json_input import json_kind
from jaxscore.io.json_output import Lazy, to_json_value
from jaxscore.systems.drawn_tokens import ID_FIELDS, OUTPUTS, PROMPT, DrawnTokens, ids_of
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Failure
from jaxscore.systems.resuming import NO_OUTPUT, Work
from jaxscore.systems.self_certainty import right_responses
from jaxscore.systems.self_certainty.confidences import (
    MEASURED,
    Confidence,
    Inputs,
    is_finite,
    recalled_measures,
)
from jaxscore.systems.self_certainty.right_responses import RightResponses
from jaxscore.types.requests import Request

INPUT_FIELD, OTHER_INPUT_FIELD = PROMPT, "input"
# Fields of a record beside the item's own; `processed_index` is the published script's.
OWN_FIELDS = (
    "confidence_list", "processed_index", "confidence_settings", "confidence_errors", *MEASURED,
)  # fmt: skip

OUTPUT_ERROR = re.compile(r"output \d+: ")

T = TypeVar("T")
Place = tuple[int, int]  # of an item, and of one of its outputs


class ConfidenceWork(Work[Confidence]):
    """Items with the confidences that are known.

    Attributes:
        inputs: of the entries.
        right: which outputs are right; None without gold.
    """

    known: list[Confidence]  # type: ignore[assignment]

    def read(self) -> None:
        """See `Work.read`.

        Raises:
            NothingUsable: no item has gold, which is requested.
        """
        self.inputs: Sequence[Inputs] = [self._inputs(place) for place in range(len(self.entries))]
        self.known = [self._unknown(inputs) for inputs in self.inputs]
        self.right: RightResponses | None = None
        if self.settings.gold is not None:
            self.right = right_responses.read(
                self.inputs, self.settings.gold, self.settings.answer_rule
            )

    def _inputs(self, place: int) -> Inputs:
        name, item = self.entries[place].name, self.items[place]
        given = {field: value for field, value in item.items() if field not in OWN_FIELDS}
        field, output_field = self.settings.input_field, self.settings.output_field
        if field == INPUT_FIELD and given.get(field) is None and OTHER_INPUT_FIELD in given:
            field = OTHER_INPUT_FIELD
        error = _complaint(given, field, str) or _complaint(given, output_field, list)
        if error:
            self.errors[place] = error
            return Inputs(name, given, "", [], field)
        return Inputs(name, given, given[field], given[output_field], field)

    def _unknown(self, inputs: Inputs) -> Confidence:
        ids = [self.drawn_ids(inputs, output) for output in range(len(inputs.outputs))]
        return Confidence.unknown(inputs.outputs, ids, measures=self.settings.gold is not None)

    def drawn_ids(self, inputs: Inputs, output: int) -> Any:
        """Return the ids that the item has of an output, unchecked; None if it has none."""
        names = inputs.input_field, self.settings.output_field
        return ids_of(inputs.given, output) if names == (PROMPT, OUTPUTS) else None

    def is_same(self, place: int, record: Mapping[str, Any]) -> bool:
        """Return True if input, outputs and ids of a record equal the item's."""
        inputs, values = self.inputs[place], record.get("confidence_list")
        return (
            record.get(inputs.input_field) == inputs.context
            and record.get(self.settings.output_field) == to_json_value(inputs.outputs)
            and all(record.get(name) == inputs.given.get(name) for name in ID_FIELDS)
            and isinstance(values, list)
            and len(values) <= len(inputs.outputs)
        )

    def recall(self, place: int, record: Mapping[str, Any]) -> Confidence | None:
        """The confidences of a record.

        A number that is not finite is not known: the published script writes NaN for an output
        without tokens. That script does not say how it computed, so that nothing is added to an
        item of its file: it is complete, or computed again.
        """
        out, made = self._unknown(self.inputs[place]), record.get("confidence_settings")
        # Older scripts wrote as many as the first item has.
        for output, value in enumerate(record["confidence_list"]):
            if is_finite(value) and output not in out.errors:
                out.values[output] = value
        if isinstance(made, dict) and any(value is not None for value in out.values):
            out.made = made
            out.measured = recalled_measures(record, len(out.values)) or out.measured
            return out
        is_complete = all(
            value is not None or output in out.errors for output, value in enumerate(out.values)
        )
        return out if is_complete else None

    def made_with(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """See `Work.made_with`."""
        names = ("alignment", "input_field", "output_field")
        out = {**model, **{name: getattr(self.settings, name) for name in names}}
        if self.settings.truncate is None:  # a run that may cut inputs continues one that may not
            out["truncate"] = None
        return out

    def is_finished(self, place: int) -> bool:
        """See `Work.is_finished`."""
        return not self.known[place].missing

    def record(self, place: int) -> dict[str, Any] | None:
        """An item with its confidences; None while one is missing."""
        if not self.is_finished(place):
            return None
        known = self.known[place]
        out = {
            **self.inputs[place].given,
            "confidence_list": known.values,
            **(known.measured or {}),
            "processed_index": place,
        }
        if known.made is not None:
            known.stated |= {name: v for name, v in known.made.items() if v is not None}
            out["confidence_settings"] = known.stated
        if errors := self._output_errors(place):
            out["confidence_errors"] = errors
        return out if self.right is None else {**out, **self.right.fields(place)}

    def requests(self, places: Sequence[Place], drawn: DrawnTokens) -> Iterator[Request]:
        """Make a request for each output, with the drawn ids of those that have them."""
        context: tuple[int, Any] = (-1, None)  # place of an item, and its ids
        for place, output in places:
            inputs, ids = self.inputs[place], None
            if self.drawn_ids(inputs, output) is not None:
                if context[0] != place:
                    context = place, drawn.context_ids(inputs.given)
                ids = drawn.request_ids(inputs.given, output, context[1])
            name = f"{self.entries[place].name}, output {output + 1}"
            yield Request(name, inputs.context, inputs.outputs[output], ids)

    def missing_outputs(self) -> list[Place]:
        """All outputs that are not scored, in the input's order."""
        return [(place, k) for place, known in enumerate(self.known) for k in known.missing]

    def scorable_outputs(self) -> list[Place]:
        """All outputs that are scored or can be, in the input's order."""
        return [
            (place, k)
            for place, known in enumerate(self.known)
            for k in range(len(known.values))
            if k not in known.errors
        ]

    def note_noise(self, spread: float) -> None:
        """Add how far rounding moves a confidence, in nats; a larger earlier value stays.

        Records that were passed on already get it too.
        """
        for known in self.known:
            if known.made is not None:
                earlier: Any = known.made.get("noise")
                largest = max(earlier, spread) if is_finite(earlier) else spread
                if earlier == "Infinity":
                    largest = math.inf
                known.made = {**known.made, "noise": largest}
                if known.stated:
                    known.stated["noise"] = largest

    def remarks(self) -> list[str]:
        """See `Work.remarks`."""
        out = super().remarks()
        n = sum(
            known.made is None and any(value is not None for value in known.values)
            for known in self.known
        )
        if n:
            out.append(
                f"{n} of them do not say how they were computed and are kept as they are; the "
                "published script computes in half precision and as --alignment upstream does"
            )
        return out

    def failures(self) -> list[Failure]:
        """Items and outputs without a confidence, then items whose gold is unusable."""
        graded = {} if self.right is None else self.right.errors
        return [
            *(
                Failure(entry.name, error)
                for place, entry in enumerate(self.entries)
                for error in self._output_errors(place)
            ),
            *(Failure(self.entries[place].name, why) for place, why in graded.items()),
        ]

    def _output_errors(self, place: int) -> list[str]:
        if place in self.errors:
            return [self.errors[place]]
        errors = self.known[place].errors
        return [f"output {output + 1}: {errors[output]}" for output in sorted(errors)]


class MergedWork(ConfidenceWork):
    """Items of finished runs, which are made of their records when they are needed."""

    known: Sequence[Confidence]  # type: ignore[assignment]

    def __init__(self, records: Sequence[dict[str, Any]], settings: Any) -> None:
        """Read the gold of all records.

        Raises:
            InputError: no item is usable; a record was computed with other settings.
        """
        self.items, self.settings = records, settings  # type: ignore[assignment]
        self.output, self.errors, self.n_changed, self._n_passed_on = NO_OUTPUT, {}, 0, 0
        self.entries = self._lazy(self._entry)
        self.read()
        self.refuse_if_all_failed()
        self._check(self.made_with({}))

    def _lazy(self, make: Callable[[int], T]) -> Lazy[T]:
        """A sequence that keeps the last element, which is mostly needed again."""
        return Lazy(range(len(self.items)), functools.lru_cache(1)(make))

    def _entry(self, place: int) -> Entry[Any]:
        item = self.items[place]
        return Entry(named(f"item {place + 1}", item), place + 1, item)

    def read(self) -> None:
        """See `Work.read`."""
        self.inputs, self.right = self._lazy(self._inputs), None
        for _ in self.inputs:  # notes the unusable ones
            pass
        if self.settings.gold is not None:
            self.right = right_responses.read(
                self.inputs, self.settings.gold, self.settings.answer_rule
            )
            self.inputs = self._lazy(self._inputs)  # without what is computed again
        self.known = self._lazy(self._recalled)

    def missing_outputs(self) -> list[Place]:
        """None, since nothing is computed."""
        return []

    def _inputs(self, place: int) -> Inputs:
        inputs = super()._inputs(place)
        if self.right is not None:
            for name in self.right.fields(place):  # computed again from all records
                inputs.given.pop(name, None)
        return inputs

    def _recalled(self, place: int) -> Confidence:
        """The confidences of a record; an output without one failed, as its record says why.

        A run would score it again, but no model is there to do so.
        """
        record, known = self.items[place], self._unknown(self.inputs[place])
        if place not in self.errors and self.is_same(place, record):
            known = self.recall(place, record) or known
        stated = record.get("confidence_errors")
        reasons = dict(
            error.removeprefix("output ").split(": ", 1)
            for error in (stated if isinstance(stated, list) else [])
            if isinstance(error, str) and OUTPUT_ERROR.match(error)
        )
        for output in known.missing:
            known.errors[output] = reasons.get(str(output + 1), "its record gives no reason")
        return known

    def records(self) -> Sequence[dict[str, Any]]:  # type: ignore[override]
        """The records of all items."""
        return self._lazy(self._record)

    def _record(self, place: int) -> dict[str, Any]:
        record = self.record(place)
        assert record is not None
        return record


def _complaint(given: Mapping[str, Any], field: str, expected: type) -> str | None:
    """What is wrong with a field, or None."""
    wanted = "a string" if expected is str else "a list of strings"
    if field not in given:
        there = ", ".join(map(repr, given)) or "none"
        return f'no field "{field}", expected {wanted}; there are {there}'
    if not isinstance(given[field], expected):
        return f'field "{field}" is {json_kind(given[field])}, expected {wanted}'
    return None

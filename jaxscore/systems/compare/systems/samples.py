"""Items of `self-certainty`."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.analysis import margins
from jaxscore.io.items import NAME_FIELDS, item_label
from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, System, Title, Unit
from jaxscore.systems.samples.confidences import INPUT_FIELD, OTHER_INPUT_FIELD, OUTPUT_FIELD

CONFIDENCES = {"confidence": "self-certainty of an output, nats per token"}
CONFIDENCE_CHOICES = {
    "top_right": Title("the most certain output is right", right=True, statistic="self-certainty"),
    "top_output": Title("most certain output", statistic="self-certainty"),
}


def read_confidences(
    record: Mapping[str, Any], place: int, facts: Mapping[str, Any]
) -> Iterator[Unit]:
    """One unit per item; each output has a number of its own."""
    made = record.get("confidence_settings")
    made = made if isinstance(made, dict) else {}
    asked = _input(record, str(made.get("input_field", INPUT_FIELD)))
    outputs = fields.listed(record, str(made.get("output_field", OUTPUT_FIELD)))
    named = {**_named(record, place), "text": (asked, outputs)}
    if (error := fields.error(record)) is not None:
        yield Unit(**named, error=error)
        return
    values = fields.numbers(record, "confidence_list", count=len(outputs))
    known = [k for k, value in enumerate(values) if value is not None]
    choices = {}
    if known:
        scores = [float(values[k] or 0.0) for k in known]
        top = known[fields.best(scores)]
        margin = fields.lead(scores)
        spread = fields.number(made.get("noise"), "noise")
        within = None if spread is None or margin is None else margins.within(margin, spread)
        choices["top_output"] = Choice(f"output {top + 1}", margin, within)
        if isinstance(record.get("right"), list):
            right = record["right"]
            if len(right) == len(outputs):
                verdict = fields.mark({"right": right[top]}, "right")
                choices["top_right"] = Choice(verdict, margin)
    yield Unit(**named, numbers={"confidence": values}, choices=choices)


def _named(record: Mapping[str, Any], place: int) -> dict[str, Any]:
    """By its own name, else by its place."""
    own = next((record[one] for one in NAME_FIELDS if isinstance(record.get(one), str | int)), None)
    return {
        "id": f"item {place + 1}" if own is None else own,
        "name": item_label(place, dict(record)),
    }


def _input(record: Mapping[str, Any], field: str) -> Any:
    return record.get(field, record.get(OTHER_INPUT_FIELD))


SELF_CERTAINTY = System(
    name="self-certainty",
    what="items",
    commands=("self-certainty",),
    read=read_confidences,
    numbers=CONFIDENCES,
    choices=CONFIDENCE_CHOICES,
    fixed=("alignment",),
)

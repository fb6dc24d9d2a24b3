"""Document of `self-certainty`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report.document import Card, Chart, Column, Document, Items, Row, Rows, Source
from jaxscore.report.html.charts.histogram import counts, histogram, two_sided
from jaxscore.report.html.systems import confidence_parts
from jaxscore.report.markdown import NOTHING
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    sentence,
    yes_no,
)


def page(source: Source) -> Document:
    """The page of a run; its items are records as the output file has them."""
    record = source.record
    summary, settings = record["summary"], record["settings"]
    given = record["items"] if source.items is None else source.items
    items = [_Item(one, settings) for one in given]
    return Document(
        system="self-certainty",
        title=f"Self-certainty: {_model(record, items)}",
        verdict=sentence(source.headline),
        cards=[
            estimate_card("Mean self-certainty", summary["mean_self_certainty"], "outputs"),
            Card("Items", f"{summary['n_items']:,}"),
            Card("Outputs", f"{summary['n_scored']:,}", f"scored, of {summary['n_outputs']:,}"),
            *confidence_parts.cards(record),
        ],
        charts=[
            *_charts(items, summary["mean_self_certainty"].mean),
            *confidence_parts.charts(record),
        ],
        items=_table(source, items),
        sections=[*confidence_parts.sections(record), *closing(record, "outputs")],
        about=[
            "Self-certainty is the mean of KL(uniform || prediction) over an output's tokens, in "
            "nats per token. The interval of the mean resamples items, since outputs of one item "
            "are not independent."
        ],
    )


def _model(record: Mapping[str, Any], items: Sequence["_Item"]) -> str:
    """As the items say it where nothing was left to compute, so that no model was loaded."""
    known = (one.given.get("confidence_settings") for one in items)
    named = [str(one["model"]) for one in known if isinstance(one, Mapping) and "model" in one]
    return model_of(record) if "model" in record["settings"] or not named else named[0]


def _six(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.6g}"


class _Item:
    """One item: its text, and its outputs in order of certainty."""

    def __init__(self, given: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.given = given
        name = settings.get("input_field", "model_input")
        self.text = str(given.get(name, given.get("input", "")) or "")
        outputs = given.get(settings.get("output_field", "output"))
        outputs = outputs if isinstance(outputs, list) else []
        values = given.get("confidence_list") or []
        right = given.get("right")
        self.has_right = isinstance(right, list) and len(right) == len(outputs)
        verdicts = right if isinstance(right, list) and self.has_right else [None] * len(outputs)
        verdicts = [one if isinstance(one, bool) else None for one in verdicts]
        values = [*values, *[None] * len(outputs)][: len(outputs)]
        self.outputs: list[tuple[str, float | None, bool | None]] = [
            (str(output), value, verdict)
            for output, value, verdict in zip(outputs, values, verdicts, strict=True)
        ]
        self.outputs.sort(key=lambda one: (one[1] is None, -(one[1] or 0.0)))
        self.known = [value for _, value, _ in self.outputs if value is not None]


def _charts(items: Sequence[_Item], mean: float | None) -> list[Chart]:
    found = counts([value for item in items for value in item.known])
    if found is None:
        return []
    label = "self-certainty, nats per token"
    svg = histogram(found, title="Self-certainty", what="outputs", label=label, mean=mean)
    out = [Chart("Self-certainty of all outputs", svg)]
    judged = {
        verdict: [
            v
            for item in items
            for _, v, right in item.outputs
            if right is verdict and v is not None
        ]
        for verdict in (True, False)
    }
    sides = [counts(judged[verdict], edges=found.edges) for verdict in (True, False)]
    right, wrong = sides
    if right is not None and wrong is not None:
        svg = two_sided(
            right, wrong, title="Right and wrong", what="outputs", label=label,
            names=("right", "wrong"),
        )  # fmt: skip
        out.append(Chart("Self-certainty of right and wrong outputs", svg))
    apart = counts([item.known[0] - item.known[1] for item in items if len(item.known) > 1])
    if apart is not None:
        label = "best less second, nats per token"
        svg = histogram(apart, title="Lead", what="items", label=label)
        out.append(Chart("Lead of the most certain output", svg))
    return out


def _table(source: Source, items: Sequence[_Item]) -> Items:
    ordered = sorted((item for item in items if item.known), key=lambda item: item.known[0])
    left = [item for item in items if not item.known]
    rows = [*ordered, *left]
    first = [item.outputs[0] if item.known else ("", None, None) for item in rows]
    columns = [
        Column("Input", "text", [item.text for item in rows]),
        Column("Place", "number", [str(item.given.get("processed_index", "")) for item in rows]),
        Column("Most certain", "text", [text for text, _, _ in first]),
        Column("Best", "number", [_six(value) for _, value, _ in first], "nats per token"),
        Column(
            "Second", "number",
            [_six(item.known[1] if len(item.known) > 1 else None) for item in rows],
            "nats per token",
        ),
        Column("Scored", "number", [str(len(item.known)) for item in rows], "outputs"),
    ]  # fmt: skip
    if any(item.has_right for item in rows):
        columns.insert(3, Column("Right?", "flag", [yes_no(right) for _, _, right in first]))
    return Items(
        what="items",
        order="least certain first",
        n_all=source.n_items,
        columns=columns,
        tables=[
            Rows(
                "Outputs in order of certainty",
                ["Output", "Self-certainty"],
                "right",
                [_outputs(item) for item in rows],
            )
        ],
        errors={
            k: "; ".join(map(str, item.given["confidence_errors"]))
            for k, item in enumerate(rows)
            if item.given.get("confidence_errors")
        },
    )


def _outputs(item: _Item) -> list[Row]:
    most = max(item.known, default=0.0)
    return [
        Row(
            [text, _six(value)],
            None if value is None or most <= 0 else max(0.0, value / most),
            bool(right),
        )
        for text, value, right in item.outputs
    ]

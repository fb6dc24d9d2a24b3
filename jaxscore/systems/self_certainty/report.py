"""Report of `self-certainty`."""

import dataclasses
import functools
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.io.json_output import Lazy
from jaxscore.report.document import (
    Card,
    Chart,
    Column,
    Document,
    Field,
    Items,
    Row,
    Rows,
    Section,
    Source,
    n_listed,
)
from jaxscore.report.html.chart_parts import by_n, calibrated, means
from jaxscore.report.html.histogram import counts, histogram, two_sided
from jaxscore.report.html.intervals import Curve, Point, curves
from jaxscore.report.markdown import NOTHING, SHOWN, interval, number, table, text
from jaxscore.report.prompts import Message, last_of_user, messages_of
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    table_by_n,
    verdict,
    yes_no,
)
from jaxscore.systems.self_certainty import right_responses

FIGURES = {"auroc": "AUROC", "prr": "PRR", "aurc": "AURC"}
UNKNOWN = -1  # verdict of an ungraded output
CERTAIN, PROBABLE = "self-certainty", "negative perplexity"
DEFINITIONS = (
    "A confidence is good if right outputs have higher ones. AUROC: probability that a right "
    "output has a higher confidence than a wrong one, ties counted half; 0.5 is chance level. "
    "AURC: share of wrong outputs among the k most confident, mean over all k; lower is better. "
    "PRR (arXiv 2406.15627): the share of right outputs among the k most confident, mean over all "
    "k, less that of all outputs, divided by the same difference with all right outputs first; 1 "
    "is best, 0 is chance level. ECE, in ten bins: only of 1/perplexity, since the other "
    "confidences are not probabilities. Perplexity and mean log-probability order outputs "
    "identically, so the two differ only in ECE."
)


def report(source: Source) -> Document:
    """Return the report of a run, whose items are the records of the output file."""
    record = source.record
    summary = record["summary"]
    records = record["items"] if source.items is None else source.items
    items = Lazy(range(len(records)), lambda k: _Item(records[k], record["settings"]))
    mean: Estimate = summary["mean_self_certainty"]
    is_graded = "quality" in record and record["quality"]["n_responses"] > 1
    return Document(
        system="self-certainty",
        title=f"Self-certainty: {model_of(record)}",
        verdict=verdict(source),
        cards=[
            estimate_card("Mean self-certainty", mean, "outputs"),
            Card("Items", f"{summary['n_items']:,}"),
            Card("Outputs", f"{summary['n_scored']:,}", f"scored, of {summary['n_outputs']:,}"),
            *(_quality_cards(record) if is_graded else []),
        ],
        charts=[*_charts(items, mean.mean), *(_quality_charts(record) if is_graded else [])],
        items=_items(source, items),
        sections=[
            *(_quality_sections(record) if "quality" in record else []),
            *_wrong(record.get("wrong", [])),
            *closing(record, "items or outputs"),
        ],
        about=[
            "Self-certainty is the mean of KL(uniform || prediction) over an output's tokens, in "
            "nats per token. The interval of the mean resamples items, since outputs of one item "
            "are not independent."
        ],
    )


def _quality_cards(record: Mapping[str, Any]) -> list[Card]:
    """Return the figures of self-certainty."""
    quality = record["quality"]
    figures = quality["confidences"][CERTAIN]
    unreadable = [
        Card("No readable answer", str(quality["n_unreadable"]), line)
        for line in right_responses.unreadable(quality)
    ]
    return unreadable + [
        estimate_card(title, _estimate(figures[name], quality["n_responses"]), "outputs with gold")
        for name, title in FIGURES.items()
        if figures[name]["value"] is not None
    ]


def _quality_charts(record: Mapping[str, Any]) -> list[Chart]:
    """Return the charts of AUROC, risk at coverage, reliability, and right choices by N."""
    quality = record["quality"]
    groups = [
        (name, _estimate(figures["auroc"], quality["n_responses"]), 0.5)
        for name, figures in quality["confidences"].items()
    ]
    reference = "at 0.5 are chance level"
    out = means("AUROC by confidence", groups, "outputs", label="AUROC", reference=reference)
    risks = [
        Curve(name, [Point(point.coverage, point.risk) for point in points])
        for name, points in quality["risk_coverage"].items()
    ]
    title, x = "Risk at coverage", "share of outputs, the most confident first"
    if svg := curves(risks, title=title, x=x, y="share wrong"):
        out.append(Chart(title, svg, "Lower is better. At the right end all outputs are counted."))
    bins = [dataclasses.asdict(point) for point in quality["reliability"]]
    ece = quality["confidences"][PROBABLE]["ece"]
    out += calibrated("Reliability of 1/perplexity", {"bins": bins, "ece": ece}, "outputs")
    return out + by_n("The most confident of N outputs", record["best_of_n"], "outputs")


def _estimate(figure: Mapping[str, Any], n: int) -> Estimate:
    return Estimate(n, figure["value"], figure["low"], figure["high"])


def _quality_sections(record: Mapping[str, Any]) -> list[Section]:
    """Return the section that compares the confidences."""
    quality, settings = record["quality"], record["settings"]
    title = "Right outputs and confidence"
    if "no_share" in record:
        return [Section(title, [f"Nothing is graded: {text(record['no_share'])}."], True)]
    if quality["n_responses"] < 2:
        return [Section(title, [_left_out(quality)], True)]
    confidences = quality["confidences"]
    rows = [
        [name, *(_figure(figures[figure]) for figure in FIGURES), number(figures["ece"], 4)]
        for name, figures in confidences.items()
    ]
    whys = {figures["undefined"] for figures in confidences.values() if figures["undefined"]}
    parts = [
        _left_out(quality),
        *(f"AUROC and PRR are not defined: {why}." for why in whys),
        table(["Confidence", *FIGURES.values(), "ECE"], rows),
        f"{DEFINITIONS} Intervals hold 95% of {settings['n_bootstrap']} bootstrap draws of items, "
        f"since outputs of one item are not independent.{_fewer_draws(quality, settings)}",
        "### Risk at coverage",
        "Share of wrong outputs among the most confident ones.",
        _coverage(quality["risk_coverage"]),
        "### Reliability of 1/perplexity",
        _bins(quality["reliability"]),
    ]
    if (rows := record["best_of_n"]) and rows[0]["accuracy"].n >= 2:
        parts += [
            "### The most confident of N outputs",
            f"Share of right ones, {rows[0]['accuracy'].n} items, with Wilson's 95% interval. As "
            "in `select`, outputs without an extractable answer are not taken, unless all of an "
            "item's are so. `oracle` is right if any of the N outputs is.",
            table_by_n(rows, "accuracy"),
            "Difference to the first sample, mean of the items' own differences, with a bootstrap "
            "interval over items; - stands for equal values.",
            table_by_n(rows, "above_first"),
        ]
    return [Section(title, parts, True)]


def _left_out(quality: Mapping[str, Any]) -> str:
    n, right, items = quality["n_responses"], quality["n_right"], quality["n_items"]
    line = f"{n} outputs of {items} items have gold and a confidence; {right} are right."
    for unreadable in right_responses.unreadable(quality):
        line += f" {unreadable}."
    if more := quality["n_without_confidence"]:
        line += f" {more} outputs have gold and no confidence, and are left out."
    if without := quality["without_gold"]:
        line += f" {len(without)} items have no gold and are left out: "
        line += f"{', '.join(map(text, without[:SHOWN]))}"
        rest = len(without) - SHOWN
        line += f", and {rest} more." if rest > 0 else "."
    return line


def _figure(figure: Mapping[str, Any]) -> str:
    if figure["value"] is None:
        return NOTHING
    return f"{number(figure['value'], 4)} ({interval(figure['low'], figure['high'])})"


def _fewer_draws(quality: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    fewest = min(values["n_draws"] for values in quality["confidences"].values())
    if not 0 < fewest < settings["n_bootstrap"]:
        return ""
    return f" Of AUROC and PRR {fewest} draws count; the others are all right or all wrong."


def _coverage(by_confidence: Mapping[str, Sequence[Any]]) -> str:
    first = next(iter(by_confidence.values()))
    rows = [
        [
            f"{100 * point.coverage:.0f} %",
            str(point.n),
            *(number(points[k].risk, 4) for points in by_confidence.values()),
        ]
        for k, point in enumerate(first)
    ]
    return table(["Coverage", "Outputs", *by_confidence], rows, left=0)


def _bins(bins: Sequence[Any]) -> str:
    rows = [
        [f"{b.low:.1f} to {b.high:.1f}", str(b.n), number(b.mean_probability, 4),
         number(b.frequency, 4)]
        for b in bins
    ]  # fmt: skip
    return table(["1/perplexity", "Outputs", "Mean", "Right"], rows)


def _wrong(wrong: Sequence[Mapping[str, Any]]) -> list[Section]:
    rows = [
        [
            text(output["name"]),
            str(output["output"]),
            number(output["self_certainty"], 4),
            NOTHING if output["answer"] is None else text(output["answer"]),
            text(str(output["text"])),
        ]
        for output in wrong
    ]
    title = f"Wrong outputs, the most certain first ({len(rows)} shown)"
    header = ["Item", "Output", "Self-certainty", "Answer", "Text"]
    return [Section(title, [table(header, rows)])] if rows else []


class _Item:
    """An item's text, and its outputs in order of certainty.

    Attributes:
        prompt: the text before the outputs.
        outputs: (text, confidence, verdict) of each; None for unknown values.
        confidences: the known confidences in descending order.
    """

    def __init__(self, record: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.record = record
        name = settings.get("input_field", "model_input")
        self.prompt = str(record.get(name, record.get("input", "")) or "")
        outputs = _list(record, settings.get("output_field", "output"))
        right = _list(record, "right")
        self.has_right = bool(right) and len(right) == len(outputs)
        verdicts = [value if isinstance(value, bool) else None for value in right]
        values = [*_list(record, "confidence_list"), *[None] * len(outputs)]
        self.outputs: list[tuple[str, float | None, bool | None]] = [
            (str(output), values[k], verdicts[k] if self.has_right else None)
            for k, output in enumerate(outputs)
        ]
        self.outputs.sort(key=lambda value: (value[1] is None, -(value[1] or 0.0)))
        self.confidences = [value for _, value, _ in self.outputs if value is not None]

    @functools.cached_property
    def messages(self) -> list[Message]:
        """The prompt's messages; empty if it was not written by a chat template."""
        return messages_of(self.prompt)

    @property
    def text(self) -> str:
        """The user's last message, or the prompt."""
        return last_of_user(self.messages) or self.prompt

    def rows(self) -> list[Row]:
        """Return the outputs as a table."""
        highest = max(self.confidences, default=0.0)
        return [
            Row(
                [output, _six(value)],
                None if value is None or highest <= 0 else max(0.0, value / highest),
                bool(right),
            )
            for output, value, right in self.outputs
        ]


def _list(record: Mapping[str, Any], field: str) -> list[Any]:
    value = record.get(field)
    return value if isinstance(value, list) else []


def _six(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.6g}"


def _charts(items: Sequence[_Item], mean: float | None) -> list[Chart]:
    known_values, verdicts, leads = array("d"), array("b"), array("d")
    for item in items:
        for _, value, is_right in item.outputs:
            if value is not None:
                known_values.append(value)
                verdicts.append(UNKNOWN if is_right is None else is_right)
        if len(item.confidences) > 1:
            leads.append(item.confidences[0] - item.confidences[1])
    values, graded = np.array(known_values), np.array(verdicts)
    if (total := counts(values)) is None:
        return []
    label = "self-certainty, nats per token"
    svg = histogram(total, title="Self-certainty", units="outputs", label=label, mean=mean)
    out = [Chart("Self-certainty of all outputs", svg)]
    right, wrong = (counts(values[graded == v], edges=total.edges) for v in (True, False))
    if right is not None and wrong is not None:
        svg = two_sided(
            right, wrong, title="Right and wrong", units="outputs", label=label,
            names=("right", "wrong"),
        )  # fmt: skip
        out.append(Chart("Self-certainty of right and wrong outputs", svg))
    if (apart := counts(leads)) is not None:
        label = "best less second, nats per token"
        svg = histogram(apart, title="Lead", units="items", label=label)
        out.append(Chart("Lead of the most certain output", svg))
    return out


def _items(source: Source, items: Sequence[_Item]) -> Items:
    keys, has_error, has_right = array("d"), array("b"), False
    for item in items:
        keys.extend((not item.confidences, item.confidences[0] if item.confidences else 0.0))
        has_error.append(bool(item.record.get("confidence_errors")))
        has_right = has_right or item.has_right
    order = np.lexsort(np.array(keys).reshape(-1, 2).T[::-1])
    listed, beyond = np.split(order, [n_listed(len(order))])
    rows = [items[k] for k in listed]
    first = [item.outputs[0] if item.confidences else ("", None, None) for item in rows]
    second = [item.confidences[1] if len(item.confidences) > 1 else None for item in rows]
    columns = [
        Column("Input", "text", [item.text for item in rows]),
        Column("Place", "number", [str(item.record.get("processed_index", "")) for item in rows]),
        Column("Most certain", "text", [output for output, _, _ in first]),
        Column("Best", "number", [_six(value) for _, value, _ in first], "nats per token"),
        Column("Second", "number", [_six(value) for value in second], "nats per token"),
        Column("Scored", "number", [str(len(item.confidences)) for item in rows], "outputs"),
    ]
    if has_right:
        columns.insert(3, Column("Right?", "flag", [yes_no(right) for _, _, right in first]))
    chats = (item.messages if len(item.messages) > 1 else [] for item in rows)
    chat_texts = ["\n\n".join(f"{role}: {said}" for role, said in chat) for chat in chats]
    return Items(
        units="items",
        order="least certain first",
        n_all=source.n_items,
        n_beyond=int((np.array(has_error)[beyond] == 0).sum()),
        columns=columns,
        fields=[Field("Messages", chat_texts)] if any(chat_texts) else [],
        tables=[
            Rows(
                "Outputs in order of certainty",
                ["Output", "Self-certainty"],
                "right",
                [item.rows() for item in rows],
            )
        ],
        errors={
            k: "; ".join(map(str, item.record["confidence_errors"]))
            for k, item in enumerate(rows)
            if item.record.get("confidence_errors")
        },
    )

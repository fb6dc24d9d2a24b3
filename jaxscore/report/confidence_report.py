"""Report of `self-certainty` for people: how well confidences find the right outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import by_n, sections
from jaxscore.report.markdown import NOTHING, interval, number, table, text

FIGURES = {"auroc": "AUROC", "prr": "PRR", "aurc": "AURC"}
DEFINITIONS = (
    "A confidence is good where right outputs have higher ones. AUROC: probability that a right "
    "output has a higher confidence than a wrong one, equal ones counted half; 0.5 is no "
    "information. AURC: share of wrong outputs among the k most confident, mean over all k; lower "
    "is better. PRR (arXiv 2406.15627): the share of right outputs among the k most confident, "
    "mean over all k, less that of all outputs, divided by the same difference where all right "
    "outputs come first; 1 is best, 0 is no information. ECE, in ten bins: of 1/perplexity alone, "
    "since the other confidences are no probabilities. Perplexity orders outputs as the mean "
    "log-probability does, so the two differ in ECE alone."
)


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the JSON file holds."""
    parts = [
        f"# Confidence of sampled outputs: {text(str(record['settings'].get('model', '')))}",
        *quality(record),
        *_mean(record["summary"]),
        *sections.noise(record),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "items or outputs"),
        *_wrong(record.get("wrong", [])),
        *sections.settings(record["settings"]),
    ]
    return "\n\n".join(parts) + "\n"


def _mean(summary: Mapping[str, Any]) -> list[str]:
    one: Estimate = summary["mean_self_certainty"]
    cells = [number(one.mean), interval(one.low, one.high), str(one.n), str(summary["n_outputs"])]
    header = ["", "Mean", "95% interval", "Scored", "Outputs"]
    return [table(header, [["Self-certainty, nats per token", *cells]])] if one.n > 1 else []


def quality(record: Mapping[str, Any]) -> list[str]:
    """The confidences side by side; nothing where no output was graded."""
    if "quality" not in record:
        return []
    found, settings = record["quality"], record["settings"]
    if "no_share" in record:
        return [
            "## Right outputs and confidence",
            f"Nothing is graded: {text(record['no_share'])}.",
        ]
    parts = ["## Right outputs and confidence", _left_out(found)]
    if found["n_responses"] < 2:
        return parts
    rows = [
        [name, *(_figure(one[figure]) for figure in FIGURES), number(one["ece"], 4)]
        for name, one in found["confidences"].items()
    ]
    whys = {one["undefined"] for one in found["confidences"].values() if one["undefined"]}
    parts += [
        *(f"AUROC and PRR are not defined: {why}." for why in whys),
        table(["Confidence", *FIGURES.values(), "ECE"], rows),
        f"{DEFINITIONS} Intervals hold 95% of {settings['n_bootstrap']} bootstrap draws of items, "
        f"since outputs of one item are not independent.{_fewer_draws(found, settings)}",
        "## Risk at coverage",
        "Share of wrong outputs among the most confident ones.",
        _coverage(found["risk_coverage"]),
        "## Reliability of 1/perplexity",
        _bins(found["reliability"]),
    ]
    rows = record["best_of_n"]
    if rows and rows[0]["accuracy"].n >= 2:
        parts += [
            "## The most confident of N outputs",
            f"Share of right ones, {rows[0]['accuracy'].n} items, with Wilson's 95% interval. As "
            "in `select`, outputs without an extractable answer are not taken, unless all of an "
            "item's are so. `oracle` is right where any of the N outputs is.",
            by_n.table_by_n(rows, "accuracy"),
            "Difference to the first sample, mean of the items' own differences, with a bootstrap "
            "interval over items; - where equal values cannot tell.",
            by_n.table_by_n(rows, "above_first"),
        ]
    return parts


def _left_out(found: Mapping[str, Any]) -> str:
    n, right, items = found["n_responses"], found["n_right"], found["n_items"]
    line = f"{n} outputs of {items} items have gold and a confidence; {right} are right."
    if more := found["n_without_confidence"]:
        line += f" {more} outputs have gold and no confidence, and are left out."
    if without := found["without_gold"]:
        line += f" {len(without)} items have no gold and are left out: "
        line += f"{', '.join(map(text, without[: sections.SHOWN]))}"
        rest = len(without) - sections.SHOWN
        line += f", and {rest} more." if rest > 0 else "."
    return line


def _figure(one: Mapping[str, Any]) -> str:
    if one["value"] is None:
        return NOTHING
    return f"{number(one['value'], 4)} ({interval(one['low'], one['high'])})"


def _fewer_draws(found: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    fewest = min(one["n_draws"] for one in found["confidences"].values())
    if not 0 < fewest < settings["n_bootstrap"]:
        return ""
    return f" Of AUROC and PRR {fewest} draws count; the others are all right or all wrong."


def _coverage(curves: Mapping[str, Sequence[Any]]) -> str:
    first = next(iter(curves.values()))
    rows = [
        [
            f"{100 * one.coverage:.0f} %",
            str(one.n),
            *(number(c[k].risk, 4) for c in curves.values()),
        ]
        for k, one in enumerate(first)
    ]
    return table(["Coverage", "Outputs", *curves], rows, left=0)


def _bins(bins: Sequence[Any]) -> str:
    rows = [
        [f"{one.low:.1f} to {one.high:.1f}", str(one.n), number(one.mean_probability, 4),
         number(one.frequency, 4)]
        for one in bins
    ]  # fmt: skip
    return table(["1/perplexity", "Outputs", "Mean", "Right"], rows)


def _wrong(wrong: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            text(one["name"]),
            str(one["output"]),
            number(one["self_certainty"], 4),
            NOTHING if one["answer"] is None else text(one["answer"]),
            text(str(one["text"])),
        ]
        for one in wrong
    ]
    title = f"## Wrong outputs, the most certain first ({len(rows)} shown)"
    return (
        [title, table(["Item", "Output", "Self-certainty", "Answer", "Text"], rows)] if rows else []
    )

"""Counts, printed lines and report of the systems that choose between sampled responses."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report.document import Card, Column, Document, Items, Source
from jaxscore.report.html.chart_parts import by_n
from jaxscore.report.markdown import NOTHING, SHOWN, aligned, number, text
from jaxscore.report.sections import (
    closing,
    estimate_card,
    section,
    table_by_n,
    verdict,
    yes_no,
)
from jaxscore.systems.selection.answers import form_lines, unreadable_line
from jaxscore.systems.selection.grading import ENOUGH, percent

COUNTS = {
    "n_items": "items",
    "n_decided": "decided",
    "n_fallbacks": "decided by a fallback",
    "n_with_code": "with code",
    "n_without_code": "without code",
    "n_failed": "failed",
}


def report(source: Source) -> Document:
    """Return the report of a run."""
    record = source.record
    by = f": {record['chosen_by']}" if "chosen_by" in record else ""
    rows = record.get("accuracy", [])
    by_power = record.get("by_power", [])
    return Document(
        system=source.system,
        title=f"Choices between sampled responses{by}",
        verdict=verdict(source),
        cards=[*_unreadable_card(record), *_cards(rows)],
        charts=[
            *by_n("Share of right choices", rows, "responses"),
            *by_n("Share of right choices by power", by_power, "responses"),
        ],
        items=_items(record.get("wrong", [])),
        sections=[
            *section(_accuracy(record), opened=True),
            *section(_by_power(by_power)),
            *closing(record, "items"),
        ],
        about=[_counted(record["summary"])],
    )


def _unreadable_card(record: Mapping[str, Any]) -> list[Card]:
    """Return the card of responses without a readable answer, which shares count as wrong."""
    if not _unreadable(summary := record["summary"], record):
        return []
    note = f"of {summary['n_compared']:,} responses; they count as wrong"
    return [Card("No readable answer", f"{summary['n_unreadable']:,}", note)]


def _cards(rows: Sequence[Mapping[str, Any]]) -> list[Card]:
    """Return a card for each way of choosing among the largest N."""
    largest_n = max((row["best_n"] for row in rows), default=0)
    return [
        estimate_card(f"{row['way']}, N = {largest_n}", row["accuracy"], "items")
        for row in rows
        if row["best_n"] == largest_n and row["accuracy"].n >= ENOUGH
    ]


def _counted(summary: Mapping[str, Any]) -> str:
    """Return a sentence with the counts of decisions and fallbacks."""
    counts = [
        f"{summary[name]} {description}"
        for name, description in COUNTS.items()
        if summary.get(name) is not None
    ]
    whys = [f"{n} `{name}`" for name, n in summary.get("fallbacks", {}).items() if n]
    fallbacks = f"; fallbacks: {', '.join(whys)}" if whys else ""
    return f"{', '.join(counts)}{fallbacks}."


def _accuracy(record: Mapping[str, Any]) -> list[str]:
    """Return shares of right choices by N and, of a vote, by power."""
    parts = ["## Share of right choices"]
    if "accuracy" not in record:
        return [*parts, "No item was graded: no field with gold was named."]
    n, without = record["summary"]["n_with_gold"], record["without_gold"]
    if without:
        named = ", ".join(map(text, without[:SHOWN]))
        more = len(without) - SHOWN
        rest = f", and {more} more" if more > 0 else ""
        parts.append(f"{len(without)} items have no gold and are in no share: {named}{rest}.")
    if n < ENOUGH:
        return [*parts, f"{n} items have gold, which is too few for a share."]
    if "no_share" in record:
        return [*parts, f"Shares are undefined: {text(record['no_share'])}."]
    rows = record["accuracy"]
    parts += [f"{line}." for line in _unreadable(record["summary"], record)]
    parts += [
        f"Of {n} items with gold, with Wilson's 95% interval. The first N responses of an item are "
        "considered; an item with fewer has all of them considered.",
        table_by_n(rows, "accuracy"),
        "`oracle` is right where any of the N responses is. Difference to the first sample, mean "
        "of the items' own differences, with a 95% interval of "
        f"{record['settings']['n_bootstrap']} bootstrap means over items; - stands for equal "
        "values.",
        table_by_n(rows, "above_first"),
    ]
    return parts


def _by_power(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the same of votes of other powers."""
    if not rows or rows[0]["accuracy"].n < ENOUGH:
        return []
    return [
        "## By power of the vote",
        "Share of right choices of the first N responses; power 0 is the majority vote.",
        table_by_n(rows, "accuracy"),
    ]


def _items(wrong: Sequence[Mapping[str, Any]]) -> Items:
    confidences = [item["confidence"] for item in wrong]
    return Items(
        units="wrong choices",
        order="the most confident first",
        n_all=len(wrong),
        columns=[
            Column("Item", "text", [item["name"] for item in wrong]),
            Column("Chosen", "text", [str(item["chosen"] or "") for item in wrong]),
            Column("Gold", "text", [str(item["gold"]) for item in wrong]),
            Column(
                "Confidence",
                "number",
                [number(c, 4) if isinstance(c, float) else NOTHING for c in confidences],
            ),
            Column("Right", "number", [str(item["n_right"]) for item in wrong], "responses"),
            Column("Responses", "number", [str(item["n_responses"]) for item in wrong]),
            Column("Any right?", "flag", [yes_no(item["n_right"] > 0) for item in wrong]),
        ],
    )


def count_responses(records: Sequence[Mapping[str, Any]], best_n: int) -> dict[str, Any]:
    """Return N, and how many responses the items have, if records have all confidences."""
    numbers: dict[str, Any] = {"best_n": best_n}
    lists = [record["confidence_list"] for record in records if "confidence_list" in record]
    lengths = [len(values) for values in lists if isinstance(values, list) and values]
    if lengths:
        numbers["fewest_responses"], numbers["most_responses"] = min(lengths), max(lengths)
        numbers["n_with_more"] = sum(length > best_n for length in lengths)
    return numbers


def printed_lines(
    summary: Mapping[str, Any], details: Mapping[str, Any], fallbacks: Mapping[str, str]
) -> list[str]:
    """Return lines on the considered responses, the fallbacks and the shares of right choices."""
    lines = _unreadable(summary, details)
    lines += [_line_of_n(summary)] if "best_n" in summary else []
    lines += [
        f"fallback, {count} of {summary['n_items']} items: {fallbacks[name]}"
        for name, count in summary.get("fallbacks", {}).items()
        if count
    ]
    if summary.get("n_unanswered"):
        lines.append(f"{summary['n_unanswered']} items have no extractable answer in any response")
    lines += form_lines(summary)
    if n := summary.get("n_with_noise"):
        within = summary["n_within_noise"]
        lines.append(f"{within} of {n} within the noise: rounding could turn their answer")
    return [*lines, *_accuracy_lines(details)]


def _unreadable(summary: Mapping[str, Any], details: Mapping[str, Any]) -> list[str]:
    """Return a line on responses without a readable answer, if shares count these."""
    if "no_share" in details:
        return []
    return unreadable_line(summary.get("n_unreadable", 0), summary.get("n_compared", 0))


def _line_of_n(summary: Mapping[str, Any]) -> str:
    n = summary["best_n"]
    if "most_responses" not in summary:
        return f"N = {n}: what is after the first {n} responses of an item is left out"
    fewest, largest = summary["fewest_responses"], summary["most_responses"]
    n_with_more = summary["n_with_more"]
    each = f"{largest} responses each" if fewest == largest else f"{fewest} to {largest} responses"
    left = "all of them are considered"
    if n_with_more:
        left = (
            f"{n_with_more} of them have more than {n}, and what is after the first {n} is left out"
        )
    return f"N = {n}: the {summary['n_items']} items have {each}; {left}"


def _accuracy_lines(details: Mapping[str, Any]) -> list[str]:
    """Return shares of right choices: by N, and of a vote by power for the largest N."""
    rows = details.get("accuracy", [])
    if not rows or rows[0]["accuracy"].n < ENOUGH:
        return []
    ways = list(dict.fromkeys(row["way"] for row in rows))
    shares = {(row["best_n"], row["way"]): percent(row["accuracy"]) for row in rows}
    numbers = list(dict.fromkeys(row["best_n"] for row in rows))
    lines = [[str(n), *(shares.get((n, way), "") for way in ways)] for n in numbers]
    out = [
        f"share of right choices, {rows[0]['accuracy'].n} items, with 95% intervals",
        aligned([["N", *ways], *lines]),
    ]
    powers = [row for row in details.get("by_power", []) if row["best_n"] == numbers[-1]]
    if powers:
        lines = [[row["way"], percent(row["accuracy"])] for row in powers]
        out.append(aligned([["", f"N = {numbers[-1]}"], *lines]))
    return out

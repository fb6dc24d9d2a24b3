"""What a run that chooses between responses counts and prints."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report import text_table
from jaxscore.systems.entries import Entry
from jaxscore.systems.selection.answers import form_lines
from jaxscore.systems.selection.grading import ENOUGH, percent

MOST_REMARKS = 20  # notes on items that are printed; all are in the report's data


def count_responses(entries: Sequence[Entry[dict[str, Any]]], best_n: int) -> dict[str, Any]:
    """N, and how many responses the items have that it is applied to."""
    lists = [(entry.item or {}).get("output") for entry in entries]
    lengths = [len(texts) for texts in lists if isinstance(texts, list) and texts]
    return {
        "best_n": best_n,
        "fewest_responses": min(lengths, default=None),
        "most_responses": max(lengths, default=None),
        "n_with_more": sum(length > best_n for length in lengths),
    }


def note_remarks(notes: Mapping[str, str]) -> list[str]:
    lines = [f"note: {name}: {note}" for name, note in notes.items()]
    n_left = len(lines) - MOST_REMARKS
    return [*lines[:MOST_REMARKS], *([f"and {n_left} more notes"] if n_left > 0 else [])]


def manifest_counts(summary: Mapping[str, Any]) -> dict[str, int]:
    """Counts of the manifest, besides that of failures."""
    counts = {name: n for name, n in summary.items() if name.startswith("n_")}
    counts |= {f"n_fallbacks_{name}": n for name, n in summary.get("fallbacks", {}).items()}
    return {name: n for name, n in counts.items() if n is not None and name != "n_failed"}


def printed_lines(
    summary: Mapping[str, Any], details: Mapping[str, Any], fallbacks: Mapping[str, str]
) -> list[str]:
    """What a choice was made between, what did not decide it, and how often it is right."""
    lines = [_line_of_n(summary)] if "best_n" in summary else []
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


def _line_of_n(summary: Mapping[str, Any]) -> str:
    fewest, most = summary["fewest_responses"], summary["most_responses"]
    n, n_with_more = summary["best_n"], summary["n_with_more"]
    each = f"{most} responses each" if fewest == most else f"{fewest} to {most} responses"
    left = "all of them are considered"
    if n_with_more:
        left = (
            f"{n_with_more} of them have more than {n}, and what is after the first {n} is left out"
        )
    return f"N = {n}: the {summary['n_items']} items have {each}; {left}"


def _accuracy_lines(details: Mapping[str, Any]) -> list[str]:
    """Shares of right choices: by N, and of a vote by power for the largest N."""
    rows = details.get("accuracy", [])
    if not rows or rows[0]["accuracy"].n < ENOUGH:
        return []
    ways = list(dict.fromkeys(row["way"] for row in rows))
    shares = {(row["best_n"], row["way"]): percent(row["accuracy"]) for row in rows}
    numbers = list(dict.fromkeys(row["best_n"] for row in rows))
    lines = [[str(n), *(shares.get((n, way), "") for way in ways)] for n in numbers]
    out = [
        f"share of right choices, {rows[0]['accuracy'].n} items, with 95% intervals",
        text_table.table([["N", *ways], *lines]),
    ]
    powers = [row for row in details.get("by_power", []) if row["best_n"] == numbers[-1]]
    if powers:
        lines = [[row["way"], percent(row["accuracy"])] for row in powers]
        out.append(text_table.table([["", f"N = {numbers[-1]}"], *lines]))
    return out

"""Report for people of the commands that choose between sampled responses."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report import by_n, sections
from jaxscore.report.markdown import NOTHING, number, table, text

ENOUGH = 2  # items; of fewer no share is shown
COUNTS = {
    "n_items": "items",
    "n_decided": "decided",
    "n_fallbacks": "decided by a fallback",
    "n_with_code": "with code",
    "n_without_code": "without code",
    "n_failed": "failed",
}


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the JSON file holds."""
    by = f": {text(record['chosen_by'])}" if "chosen_by" in record else ""
    parts = [
        f"# Choices between sampled responses{by}",
        *accuracy(record),
        counted(record["summary"]),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "items"),
        *_wrong(record.get("wrong", [])),
        *sections.settings(record["settings"]),
    ]
    return "\n\n".join(parts) + "\n"


def counted(summary: Mapping[str, Any]) -> str:
    """What was decided, and how."""
    told = [
        f"{summary[name]} {what}" for name, what in COUNTS.items() if summary.get(name) is not None
    ]
    whys = [f"{n} `{name}`" for name, n in summary.get("fallbacks", {}).items() if n]
    fallbacks = f"; fallbacks: {', '.join(whys)}" if whys else ""
    return f"{', '.join(told)}{fallbacks}."


def accuracy(record: Mapping[str, Any]) -> list[str]:
    """Shares of right choices by N and, of a vote, by power."""
    if "accuracy" not in record:
        return ["No item was graded: no field with gold was named."]
    n, without = record["summary"]["n_with_gold"], record["without_gold"]
    parts = ["## Share of right choices"]
    if without:
        shown = ", ".join(map(text, without[: sections.SHOWN]))
        more = len(without) - sections.SHOWN
        rest = f", and {more} more" if more > 0 else ""
        parts.append(f"{len(without)} items have no gold and are in no share: {shown}{rest}.")
    if n < ENOUGH:
        return [*parts, f"{n} items have gold, which is too few for a share."]
    if "no_share" in record:
        return [*parts, f"There is no share: {text(record['no_share'])}."]
    rows = record["accuracy"]
    parts += [
        f"Of {n} items with gold, with Wilson's 95% interval. The first N responses of an item are "
        "looked at; an item with fewer has all of them looked at.",
        by_n.table_by_n(rows, "accuracy"),
        "`oracle` is right where any of the N responses is. Difference to the first sample, mean "
        "of the items' own differences, with a 95% interval of "
        f"{record['settings']['n_bootstrap']} bootstrap means over items; - where equal values "
        "cannot tell.",
        by_n.table_by_n(rows, "above_first"),
    ]
    if by_power := record.get("by_power"):
        parts += [
            "## By power of the vote",
            "Share of right choices of the first N responses; power 0 is the majority vote.",
            by_n.table_by_n(by_power, "accuracy"),
        ]
    return parts


def _wrong(wrong: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            text(one["name"]),
            number(one["confidence"], 4) if isinstance(one["confidence"], float) else NOTHING,
            f"{one['n_right']} of {one['n_responses']}",
            text(str(one["chosen"] or "")),
            text(str(one["gold"])),
        ]
        for one in wrong
    ]
    header = ["Item", "Confidence", "Right responses", "Chosen", "Gold"]
    title = f"## Wrong choices, the most confident first ({len(rows)} shown)"
    return [title, table(header, rows)] if rows else []

"""What `plan` found of a target's compiler beside memory: collectives, and estimates of time."""

from collections.abc import Sequence
from typing import Any

from jaxscore.io.byte_sizes import format_bytes, format_three_digits
from jaxscore.report.text_table import table

MODEL = "the compiler's model of the chip, not a measurement"


def blocks(report: dict[str, Any]) -> list[str]:
    """The tables that there is something for."""
    parts = [_collectives(report), _layer(report), _vocabulary(report)]
    return [part for part in parts if part]


def _collectives(report: dict[str, Any]) -> str:
    rows = [("collectives", "", "count", "bytes")]
    for one in report["batches"]:
        for moved in one["collectives"]:
            rows.append(
                (_shape(one), moved["op"], str(moved["count"]), format_bytes(moved["bytes"]))
            )
    if len(rows) == 1:
        return ""
    return f"{table(rows)}\nas the programs have them; what is in a loop stands once"


def _layer(report: dict[str, Any]) -> str:
    rows = [("estimate of one layer", "time", "MFU", "collectives")]
    for one in report["layer"]:
        moved = sum(part["bytes"] for part in one["collectives"])
        row = (_shape(one), _time(one["seconds"]), _share(one["mfu"]))
        rows.append((*row, format_bytes(moved) if moved else ""))
    return f"{table(rows)}\n{_how(report['layer'])}" if len(rows) > 1 else ""


def _vocabulary(report: dict[str, Any]) -> str:
    rows = [("estimate of the vocabulary pass", "time", "products alone")]
    for one in report["vocabulary"]:
        share = _share(one["products_share"])
        rows.append((_shape(one), _time(one["seconds"]), share))
    return f"{table(rows)}\n{_how(report['vocabulary'])}" if len(rows) > 1 else ""


def _how(estimates: Sequence[dict[str, Any]]) -> str:
    """What such a number is, what it rests on, and what it leaves out."""
    lines = [MODEL]
    if kernels := sorted({name for one in estimates for name in one["kernels"]}):
        lines.append(f"a kernel counts as what it declares: {', '.join(kernels)}")
    lines += [
        f"{shape}: without {count} operations that it has no model of; they move nothing"
        for shape, count in ((_shape(one), one["operations_left_out"]) for one in estimates)
        if count
    ]
    if any(one["seconds"] is None for one in estimates):
        lines.append("none: it has no model of some operation, or refused the program")
    return "\n".join(lines)


def _shape(one: dict[str, Any]) -> str:
    return f"{one['queries']} queries" if "queries" in one else f"{one['rows']} x {one['length']}"


def _time(seconds: float | None) -> str:
    return "none" if seconds is None else f"{format_three_digits(seconds * 1000)} ms"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"

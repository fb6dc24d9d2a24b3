"""Tables of `jaxscore plan`."""

from collections.abc import Sequence
from typing import Any

from jaxscore.io.printable import format_bytes, format_three_digits
from jaxscore.report.markdown import table

MODEL = "the compiler's model of the chip, not a measurement"


def text(report: dict[str, Any]) -> str:
    """A page of tables of what `cli.plan` puts together."""
    blocks = [_model(report), _parts(report), _flops(report), _programs(report)]
    if "target" in report:
        blocks += estimate_blocks(report)
    if report["device_memory"] is not None:
        blocks.append(_verdict(report))
    return "\n\n".join(blocks)


def _model(report: dict[str, Any]) -> str:
    r, mesh = report, report["mesh"]
    stored = f"{r['quantize']}, products in {r['dtype']}" if r["quantize"] else r["dtype"]
    if "stored_share" in r:
        stored = f"{r['stored_share']:.0%} as stored, the rest and products in {r['dtype']}"
    lines = [
        f"{r['model']}: {r['model_type']}, {r['parameters']:,} parameters{_active(r)}, {stored}",
        f"{r['n_layers']} layers of width {r['width']}, {r['n_heads']} query heads, "
        f"{r['n_kv_heads']} key heads, vocabulary {r['vocab_size']}, "
        f"{r['max_positions']} positions",
        f"mesh data={mesh['data']},model={mesh['model']}",
    ]
    lines += [
        f"  {count} {name} do not divide by {mesh['model']}: whole on every device"
        for name, count in r["whole_on_every_device"].items()
    ]
    return "\n".join(lines)


def _active(report: dict[str, Any]) -> str:
    if report["active_parameters"] == report["parameters"]:
        return ""
    return f" ({report['active_parameters']:,} for each token)"


def _parts(report: dict[str, Any]) -> str:
    rows = [("part", "parameters", "bytes", "per device")]
    for one in report["parts"]:
        sizes = format_bytes(one["bytes"]), format_bytes(one["bytes_a_device"])
        rows.append((one["name"], f"{one['parameters']:,}", *sizes))
    total = sum(one["bytes"] for one in report["parts"])
    sizes = format_bytes(total), format_bytes(report["bytes_a_device"])
    rows.append(("all", f"{report['parameters']:,}", *sizes))
    kept = report["key_value_bytes_a_token"]
    sizes = format_bytes(kept["model"]), format_bytes(kept["device"])
    rows.append(("keys and values per token", "", *sizes))
    if (states := report.get("state_bytes_a_path")) is not None:
        sizes = format_bytes(states["model"]), format_bytes(states["device"])
        rows.append(("states per prefix or slot", "", *sizes))
    return table(rows)


def _flops(report: dict[str, Any]) -> str:
    flops = report["flops"]
    rows = [("FLOPs", "", ""), ("weights", _flop_text(flops["linear_a_token"]), "per token")]
    for depth, count in flops["attention_a_token_at"].items():
        rows.append((f"attention to {depth} tokens", _flop_text(count), "per token"))
    rows.append(("unembedding", _flop_text(flops["unembedding_a_query"]), "per query"))
    return table(rows)


def _programs(report: dict[str, Any]) -> str:
    judged = report["device_memory"] is not None
    header = ["batch", "temporary", "peak", "compiled in"]
    rows = [header + ["fits"] * judged]
    for one in report["programs"]:
        refused = one["temporary_bytes"] is None
        row = [
            f"{one['rows']} x {one['length']}",
            "refused" if refused else format_bytes(one["temporary_bytes"]),
            format_bytes(one["peak_bytes_a_device"]),
            "" if refused else f"{one['compile_seconds']:.1f} s",
        ]
        rows.append(row + [_yes(one["fits"])] * judged)
    made = f"programs of one of {report['compiled_shards']} shards, "
    if report["compiled_shards"] == 1:
        made = "programs of the whole model, "
    made += f"compiled for {report['compiled_for']}"
    if "compiler" in report:
        made += f" by {report['compiler']['name']} {report['compiler']['version']}; nothing ran"
    if report["compiled_shards"] < report["mesh"]["model"]:
        made += "; here are too few devices to compile for a shard"
    return f"{table(rows)}\n{made}"


def _verdict(report: dict[str, Any]) -> str:
    memory = format_bytes(report["device_memory"])
    fits = [one["fits"] for one in report["programs"]]
    how = "fits" if all(fits) else "fits in part" if any(fits) else "does not fit"
    lines = [f"{how}: {memory} per device"]
    for one in report["would_fit"]:
        stored = f"--quantize {one['quantize']}" if one["quantize"] else f"--dtype {one['dtype']}"
        lines.append(f"  all of these batches fit with {stored} from model={one['model']}")
    if not report["would_fit"]:
        lines.append("  no mesh makes all of these batches fit; give less --batch-tokens")
    return "\n".join(lines)


def estimate_blocks(report: dict[str, Any]) -> list[str]:
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
        shape = _shape(one) + (", recurrent" if one["is_recurrent"] else "")
        row = (shape, _time(one["seconds"]), _share(one["mfu"]))
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
    if any(one.get("is_recurrent") for one in estimates):
        lines.append("recurrent: without the states at branch points, which are made in a loop")
    if any(one["seconds"] is None for one in estimates):
        lines.append("none: it has no model of some operation, or refused the program")
    return "\n".join(lines)


def _shape(one: dict[str, Any]) -> str:
    return f"{one['queries']} queries" if "queries" in one else f"{one['rows']} x {one['length']}"


def _time(seconds: float | None) -> str:
    return "none" if seconds is None else f"{format_three_digits(seconds * 1000)} ms"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _flop_text(count: int) -> str:
    power = (len(str(count)) - 1) // 3
    if not power:
        return str(count)
    return f"{format_three_digits(count / 1000**power)} {' kMGTP'[power]}"

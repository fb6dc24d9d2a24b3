"""`jaxscore plan`: reports memory and work of a model on given devices, without its weights."""

import argparse
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxscore.cli import messages, model_flags, outputs
from jaxscore.cli.app import Command
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine import BATCH_TOKENS, GPU_TARGETS, set_variables
from jaxscore.errors import format_bytes, format_three_digits
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.report.markdown import aligned
from jaxscore.report.sections import yes_no
from jaxscore.shell.flags import flag, options_of

DESCRIPTION = """\
Say what a model takes, without its weights: parameters, bytes per device under
a mesh, memory of compiled programs, FLOPs per token, and whether it fits.

input:
  a folder with config.json, of a family that the native decoder covers, or
  config.json alone

output, on stdout, and as a JSON file with --output:
  with --mesh auto the meshes that it chooses from, with an estimate of tokens
    per second, for which nothing is compiled
  parameters and bytes of each part, in all and on each device of the mesh
  bytes per token of the KV cache, which generation and shared prefixes keep
  FLOPs: per token 2 for each weight of a product that it meets (of experts,
    those that run), and 4 * heads * head width per layer and visible token;
    per query 2 * vocabulary * width
  memory of the program that `score` would run for some shapes of batches:
    temporary, and the peak with parameters, rows and scores. The compiler
    reports it, and nothing runs. Where this machine has fewer devices than
    `model`, it is the program of the whole model on one device.
  in the JSON also XLA's own count of FLOPs. It counts the body of a loop once
    (layers, heads, vocabulary blocks), so it is far below what runs.

with --topology or --gpu-target the compiler is that of an accelerator which is
not here. Memory and refusals are what it would say there. Added are
  collectives: their number and bytes, as the programs have them
  with --topology an estimate of the time of one layer (of a hybrid, one with
    attention and one recurrent), with the share of the
    chip's bfloat16 peak (MFU), and of the LM head for --batch-tokens
    queries. It is the compiler's model of the chip and not a measurement.
    Operations without a model are left out and counted where they move
    nothing; any other one leaves no estimate.
  in the JSON: batches, layer, vocabulary, compiler

  python -m jaxscore plan --model config.json --mesh data=1,model=8
  python -m jaxscore plan --model config.json --mesh auto --devices 8 \\
      --device-memory 80GB
  python -m jaxscore plan --model config.json --topology v5e:2x2

exit code: 0 reported, whether it fits or not, 2 unusable input.
"""


shape = functools.partial(flag, excludes="shapes", is_advanced=True)
compiler = functools.partial(flag, None, excludes="compilers")


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `plan`."""

    model: str = flag(
        metavar="PATH",
        help=f"its config.json, or {model_flags.MODEL}",
    )
    dtype: model_flags.Dtype = flag(
        "auto",
        help="of the matrices; auto: as commands load them: float32 on this CPU, and on other "
        "devices (--mesh, --devices, --device-memory, --topology, --gpu-target) as the config says "
        "that they are stored, bfloat16 for float16",
    )
    quantize: model_flags.Quantize | None = flag(
        None, help="the layers' weights as 8-bit integers, or as a quantized file stores them"
    )
    accept_config: list[str] = flag([], metavar="KEY", is_advanced=True, help=model_flags.ACCEPT)
    mesh: str | None = flag(
        None,
        metavar="data=N,model=M|fsdp=N,model=M|auto",
        help="rows over data; heads, MLP, experts and vocabulary over model; with fsdp in place of "
        "data each weight also over fsdp; auto: the fastest "
        "that fits --device-memory on --devices, by an estimate, with the model a power of two "
        "(default data=1,model=1; auto with --topology)",
    )
    devices: int | None = flag(None, least=1, metavar="N", help="how many devices there are")
    device_memory: str | None = flag(
        None,
        metavar="SIZE",
        help="of each device, such as 16GB or 80GiB; default: as --topology or --gpu-target has it",
    )
    batch_tokens: int = flag(
        BATCH_TOKENS,
        least=1,
        metavar="N",
        is_advanced=True,
        help=f"tokens per batch, padding included, for each share of data (default {BATCH_TOKENS}; "
        "on accelerators `score` takes up to 32,768 by default)",
    )
    row_lengths: list[int] | None = shape(
        None,
        least=1,
        metavar="N",
        help="rows to compile whole batches of (default: the shortest, the longest of which a "
        "batch holds one, and one between)",
    )
    all_shapes: bool = shape(
        False, help="every shape that the packer uses, up to the model's positions; takes minutes"
    )
    device: model_flags.Device | None = compiler(
        help="what to compile for; default: the best one present"
    )
    topology: str | None = compiler(
        metavar="KIND:AxB",
        help="TPUs that are not here: v5e:2x2, v5p:2x2x1, v6e:2x2, or another that libtpu knows; "
        "needs the extra tpu-compiler",
    )
    gpu_target: Literal[tuple(GPU_TARGETS)] | None = compiler(  # type: ignore[valid-type]
        help="a GPU that is not here: memory and collectives; needs JAX's CUDA plugin"
    )
    output: Path | None = flag(
        None, "--json", metavar="FILE", help="the same facts as JSON; - is stdout"
    )
    quiet: bool = flag(False, help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    if args.topology is not None:
        set_variables("tpu")
    if args.gpu_target is not None:
        set_variables("gpu")
    source = model_flags.config_source(args.model)
    from jaxscore.cli import plan_facts  # deferred: imports JAX
    from jaxscore.engine.devices import use_device
    from jaxscore.models.weights.folder import config_path

    ahead = args.topology is not None or args.gpu_target is not None
    use_device("cpu" if ahead else args.device)
    if args.output is None:
        facts = plan_facts.report(args, source)
    else:
        outputs.check_output(args.output, config_path(source))
        with atomic(args.output) as out:
            facts = plan_facts.report(args, source)
            out.write(json_text(facts))
    print(text(facts))
    print()
    n_compiled = sum(program["temporary_bytes"] is not None for program in facts["programs"])
    return messages.print_closing_block(
        done=f"1 model, {n_compiled} programs compiled",
        results=[headline(facts)],
        files=[] if args.output is None else [args.output],
    )


def headline(facts: Mapping[str, Any]) -> str:
    """The largest memory per device, and whether it fits."""
    peak = max(program["peak_bytes_a_device"] for program in facts["programs"])
    peak_text = f"at most {format_bytes(peak)} per device"
    if (process := facts.get("process_bytes")) is not None:
        peak_text = (
            f"at most {format_bytes(peak + process)}: {format_bytes(peak)} for weights and batches "
            f"and {format_bytes(process)} for the process, as this one has them"
        )
    if (memory := facts["device_memory"]) is None:
        return peak_text
    return f"{peak_text}, {'fits' if peak <= memory else 'does not fit'} in {format_bytes(memory)}"


MODEL = "the compiler's model of the chip, not a measurement"


def text(report: dict[str, Any]) -> str:
    """A page of tables of what `cli.plan` puts together."""
    blocks = [_model(report), _parts(report), _flops(report), _programs(report)]
    if "meshes" in report:
        blocks.insert(1, _meshes(report))
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
        f"mesh {MeshShape(**mesh)}",
    ]
    lines += [
        f"  {count} {name} do not divide by {mesh['model']}: whole on every device"
        for name, count in r["whole_on_every_device"].items()
    ]
    return "\n".join(lines)


def _meshes(report: dict[str, Any]) -> str:
    """Return the meshes from which `--mesh auto` chose."""
    rows = [("mesh", "parameters per device", "largest batch", "tokens per second")]
    for entry in report["meshes"]:
        shape = str(MeshShape(**entry["mesh"]))
        sizes = format_bytes(entry["parameter_bytes"]), f"{entry['batch_tokens']} tokens"
        speed = f"{entry['tokens_per_second']:,.0f}" if entry["batch_tokens"] else "none"
        rows.append(
            (shape, *(sizes if entry["batch_tokens"] else (sizes[0], "does not fit")), speed)
        )
    return f"{aligned(rows)}\nestimates without a compiler; the fastest that fits is taken"


def _active(report: dict[str, Any]) -> str:
    if report["active_parameters"] == report["parameters"]:
        return ""
    return f" ({report['active_parameters']:,} for each token)"


def _parts(report: dict[str, Any]) -> str:
    rows = [("part", "parameters", "bytes", "per device")]
    for row in report["parts"]:
        sizes = format_bytes(row["bytes"]), format_bytes(row["bytes_a_device"])
        rows.append((row["name"], f"{row['parameters']:,}", *sizes))
    total = sum(row["bytes"] for row in report["parts"])
    sizes = format_bytes(total), format_bytes(report["bytes_a_device"])
    rows.append(("all", f"{report['parameters']:,}", *sizes))
    kept = report["key_value_bytes_a_token"]
    sizes = format_bytes(kept["model"]), format_bytes(kept["device"])
    rows.append(("keys and values per token", "", *sizes))
    if (states := report.get("state_bytes_a_path")) is not None:
        sizes = format_bytes(states["model"]), format_bytes(states["device"])
        rows.append(("states per prefix or slot", "", *sizes))
    return aligned(rows)


def _flops(report: dict[str, Any]) -> str:
    flops = report["flops"]
    rows = [("FLOPs", "", ""), ("weights", _flop_text(flops["linear_a_token"]), "per token")]
    for depth, count in flops["attention_a_token_at"].items():
        rows.append((f"attention to {depth} tokens", _flop_text(count), "per token"))
    rows.append(("unembedding", _flop_text(flops["unembedding_a_query"]), "per query"))
    return aligned(rows)


def _programs(report: dict[str, Any]) -> str:
    judged = report["device_memory"] is not None
    header = ["batch", "temporary", "peak", "compiled in"]
    rows = [header + ["fits"] * judged]
    for program in report["programs"]:
        refused = program["temporary_bytes"] is None
        row = [
            f"{program['rows']} x {program['length']}",
            "refused" if refused else format_bytes(program["temporary_bytes"]),
            format_bytes(program["peak_bytes_a_device"]),
            "" if refused else f"{program['compile_seconds']:.1f} s",
        ]
        rows.append(row + [yes_no(program["fits"])] * judged)
    summary = f"programs of one of {report['compiled_shards']} shards, "
    if report["compiled_shards"] == 1:
        summary = "programs of the whole model, "
    summary += f"compiled for {report['compiled_for']}"
    if "compiler" in report:
        summary += f" by {report['compiler']['name']} {report['compiler']['version']}; nothing ran"
    if report["compiled_shards"] < report["mesh"]["model"]:
        summary += "; here are too few devices to compile for a shard"
    return f"{aligned(rows)}\n{summary}"


def _verdict(report: dict[str, Any]) -> str:
    memory = format_bytes(report["device_memory"])
    fits = [program["fits"] for program in report["programs"]]
    how = "fits" if all(fits) else "fits in part" if any(fits) else "does not fit"
    lines = [f"{how}: {memory} per device"]
    for program in report["would_fit"]:
        stored = (
            f"--quantize {program['quantize']}"
            if program["quantize"]
            else f"--dtype {program['dtype']}"
        )
        meshes = [f"{name}={program[name]}" for name in ("model", "fsdp") if program[name]]
        lines.append(f"  all of these batches fit with {stored} from {' or '.join(meshes)}")
    if not report["would_fit"] and not all(fits):
        looked = "no mesh that was looked at makes all of these batches fit"
        lines.append(f"  {looked}; give less --batch-tokens")
    return "\n".join(lines)


def estimate_blocks(report: dict[str, Any]) -> list[str]:
    """Return the tables that are not empty."""
    blocks = [_collectives(report), _layer(report), _vocabulary(report)]
    return [block for block in blocks if block]


def _collectives(report: dict[str, Any]) -> str:
    rows = [("collectives", "", "count", "bytes")]
    for batch in report["batches"]:
        for moved in batch["collectives"]:
            rows.append(
                (_shape(batch), moved["op"], str(moved["count"]), format_bytes(moved["bytes"]))
            )
    if len(rows) == 1:
        return ""
    return f"{aligned(rows)}\nas in the programs; the body of a loop is counted once"


def _layer(report: dict[str, Any]) -> str:
    rows = [("estimate of one layer", "time", "MFU", "collectives")]
    for estimate in report["layer"]:
        moved = sum(entry["bytes"] for entry in estimate["collectives"])
        shape = _shape(estimate) + (", recurrent" if estimate["is_recurrent"] else "")
        row = (shape, _time(estimate["seconds"]), _share(estimate["mfu"]))
        rows.append((*row, format_bytes(moved) if moved else ""))
    return f"{aligned(rows)}\n{_how(report['layer'])}" if len(rows) > 1 else ""


def _vocabulary(report: dict[str, Any]) -> str:
    rows = [("estimate of the LM head", "time", "products alone")]
    for estimate in report["vocabulary"]:
        share = _share(estimate["products_share"])
        rows.append((_shape(estimate), _time(estimate["seconds"]), share))
    return f"{aligned(rows)}\n{_how(report['vocabulary'])}" if len(rows) > 1 else ""


def _how(estimates: Sequence[dict[str, Any]]) -> str:
    """Describe the estimates: their source, and what they leave out."""
    lines = [MODEL]
    if kernels := sorted({name for estimate in estimates for name in estimate["kernels"]}):
        lines.append(f"a kernel counts as what it declares: {', '.join(kernels)}")
    lines += [
        f"{shape}: without {count} operations that it does not model; they move nothing"
        for shape, count in (
            (_shape(estimate), estimate["operations_left_out"]) for estimate in estimates
        )
        if count
    ]
    if any(estimate.get("is_recurrent") for estimate in estimates):
        lines.append("recurrent: without the states at branch points, which are made in a loop")
    if any(estimate["seconds"] is None for estimate in estimates):
        lines.append("none: it does not model some operation, or refused the program")
    return "\n".join(lines)


def _shape(shape: dict[str, Any]) -> str:
    return (
        f"{shape['queries']} queries"
        if "queries" in shape
        else f"{shape['rows']} x {shape['length']}"
    )


def _time(seconds: float | None) -> str:
    return "none" if seconds is None else f"{format_three_digits(seconds * 1000)} ms"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _flop_text(count: int) -> str:
    power = (len(str(count)) - 1) // 3
    if not power:
        return str(count)
    return f"{format_three_digits(count / 1000**power)} {' kMGTP'[power]}"


COMMAND = Command("plan", DESCRIPTION, options_of(Flags), run)

"""`jaxscore plan`: reports memory and work of a model on given devices, without its weights."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, model_flags, outputs
from jaxscore.cli.help_pages import advanced
from jaxscore.engine.defaults import BATCH_TOKENS, DEVICES, GPU_TARGETS, set_variables
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.io.printable import format_bytes
from jaxscore.models.model_types import DTYPES, QUANTIZED
from jaxscore.report.plan_tables import text

DESCRIPTION = """\
Say what a model takes, without its weights: parameters, bytes per device under
a mesh, memory of compiled programs, FLOPs per token, and whether it fits.

input:
  a folder with config.json, of a family that the native decoder covers, or
  config.json alone

output, on stdout, and as a JSON file with --output:
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
    chip's bfloat16 peak (MFU), and of the vocabulary pass for --batch-tokens
    queries. It is the compiler's model of the chip and not a measurement.
    Operations without a model are left out and counted where they move
    nothing; with any other one there is no estimate.
  in the JSON: batches, layer, vocabulary, compiler

  python -m jaxscore plan --model config.json --mesh data=1,model=8
  python -m jaxscore plan --model config.json --mesh auto --devices 8 \\
      --device-memory 80GB
  python -m jaxscore plan --model config.json --topology v5e:2x2

exit code: 0 reported, whether it fits or not, 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("plan", description=DESCRIPTION)
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="a local Hugging Face folder, its config.json, or `demo`, the embedded model",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="of the matrices; auto: as the config says that they are stored, bfloat16 for float16",
    )
    parser.add_argument(
        "--quantize",
        choices=QUANTIZED,
        help="the layers' weights as 8-bit integers, or as stored in a GGUF file",
    )
    model_flags.add_accept_flag(parser)
    parser.add_argument(
        "--mesh",
        metavar="data=N,model=M|auto",
        help="rows over data; heads, MLP, experts and vocabulary over model; auto: the smallest "
        "model, a power of two, that fits --device-memory on --devices (default data=1,model=1; "
        "auto with --topology)",
    )
    parser.add_argument(
        "--devices", type=model_flags.positive, metavar="N", help="how many devices there are"
    )
    parser.add_argument(
        "--device-memory",
        metavar="SIZE",
        help="of each device, such as 16GB or 80GiB; default: as --topology or --gpu-target has it",
    )
    advanced(
        parser,
        "--batch-tokens",
        type=model_flags.positive,
        default=BATCH_TOKENS,
        metavar="N",
        help=f"tokens per batch, padding included, for each share of data (default {BATCH_TOKENS}; "
        "on accelerators `score` takes up to 32,768 by default)",
    )
    _add_programs(parser)
    parser.add_argument(
        "--output", "--json", type=Path, metavar="FILE", help="the same facts as JSON; - is stdout"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(run=run)


def _add_programs(parser: argparse.ArgumentParser) -> None:
    """Which shapes are compiled, and for which devices."""
    shapes = parser.add_mutually_exclusive_group()
    advanced(
        shapes,
        "--row-lengths",
        nargs="+",
        action="extend",
        type=model_flags.positive,
        metavar="N",
        help="rows to compile whole batches of (default: the shortest, the longest of which a "
        "batch holds one, and one between)",
    )
    advanced(
        shapes,
        "--all-shapes",
        action="store_true",
        help="every shape that the packer uses, up to the model's positions; takes minutes",
    )
    compilers = parser.add_mutually_exclusive_group()
    compilers.add_argument(
        "--device", choices=DEVICES, help="what to compile for; default: the best one present"
    )
    compilers.add_argument(
        "--topology",
        metavar="KIND:AxB",
        help="TPUs that are not here: v5e:2x2, v5p:2x2x1, v6e:2x2, or another that libtpu knows; "
        "needs the extra tpu-compiler",
    )
    compilers.add_argument(
        "--gpu-target",
        choices=GPU_TARGETS,
        help="a GPU that is not here: memory and collectives; needs JAX's CUDA plugin",
    )


def run(args: argparse.Namespace) -> int:
    if args.topology is not None:
        set_variables("tpu")
    if args.gpu_target is not None:
        set_variables("gpu")
    source = model_flags.config_source(args.model)
    from jaxscore.cli import plan_facts  # deferred: imports JAX
    from jaxscore.engine.devices import use_device
    from jaxscore.models.weights.checkpoint import config_path

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
    if (memory := facts["device_memory"]) is None:
        return peak_text
    return f"{peak_text}, {'fits' if peak <= memory else 'does not fit'} in {format_bytes(memory)}"

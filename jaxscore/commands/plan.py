"""`jaxscore plan`: what a model takes on given devices, before its weights are anywhere."""

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import jax

from jaxscore.commands import shared
from jaxscore.device import decoder
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.dots import storage_dtype
from jaxscore.device.sharding import MeshShape, bytes_a_device, check, divides, specs, whole
from jaxscore.engine.footprint import Footprint, batch_shapes, measure
from jaxscore.engine.mesh import Arrangement
from jaxscore.engine.mesh_choice import auto_mesh, parameter_bytes, parse_mesh
from jaxscore.engine.platform import DEVICES, use_device
from jaxscore.errors import InputError
from jaxscore.files.atomic import atomic
from jaxscore.files.byte_sizes import parse_bytes
from jaxscore.files.json_output import json_text
from jaxscore.models import costs, native
from jaxscore.models.load import DTYPES, QUANTIZED
from jaxscore.models.weights import checkpoint, converted
from jaxscore.models.weights.params import keys_of, shapes_of
from jaxscore.plan.packing import SHORTEST_ROW, row_lengths
from jaxscore.reports import provenance
from jaxscore.reports.plan_tables import text
from jaxscore.scorer import BATCH_TOKENS

CONFIG = "config.json"
MATRICES = {
    "float64": "float32",
    "float32": "float32",
    "float16": "bfloat16",
    "bfloat16": "bfloat16",
}
SHOWN = "n_layers width n_heads n_kv_heads vocab_size max_positions".split()

DESCRIPTION = """\
Say what a model takes, without its weights: parameters, bytes a device under a mesh, the memory
of compiled programs, FLOPs a token, and whether it fits.

input:
  a folder with config.json, of a family that the native decoder covers, or config.json alone

output, on stdout, and with --json as a file:
  parameters and bytes of each part, in all and on each device of the mesh
  bytes a token of keys and values, which generation and long shared prefixes keep
  FLOPs: for each token 2 a weight of a product that it meets (of its experts, those that run),
    and 4 * heads * head width a layer and token that it sees; for each query 2 * vocabulary *
    width
  for some shapes of batches the memory of the program that `score` would run: temporary, and the
    peak with parameters, rows and scores. The compiler says it, and nothing is run. Where this
    machine has fewer devices than `model`, it is the program of the whole model on one.
  in the JSON also XLA's own count of FLOPs. It takes a loop's body once (of all layers, heads and
    blocks of the vocabulary one each), so it is far below what runs.

  python -m jaxscore plan --model config.json --mesh data=1,model=8
  python -m jaxscore plan --model config.json --mesh auto --devices 8 --device-memory 80GB

exit code: 0 told, whether it fits or not, 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "plan",
        help="what a model takes on given devices, told without its weights",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        "--quantize", choices=QUANTIZED, help="the layers' weights as 8-bit integers"
    )
    parser.add_argument(
        "--mesh",
        default="data=1,model=1",
        metavar="data=N,model=M|auto",
        help="rows over data; heads, MLP, experts and vocabulary over model; auto: the smallest "
        "model, a power of two, that fits --device-memory on --devices",
    )
    parser.add_argument("--devices", type=shared.positive, metavar="N", help="how many there are")
    parser.add_argument(
        "--device-memory", metavar="SIZE", help="of each device, such as 16GB or 80GiB"
    )
    parser.add_argument(
        "--batch-tokens",
        type=shared.positive,
        default=BATCH_TOKENS,
        metavar="N",
        help=f"tokens a batch, padding included, for each share of data (default {BATCH_TOKENS})",
    )
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument(
        "--row-lengths",
        nargs="+",
        type=shared.positive,
        metavar="N",
        help="rows to compile whole batches of (default: the shortest, the longest of which a "
        "batch holds one, and one between)",
    )
    shapes.add_argument(
        "--all-shapes",
        action="store_true",
        help="every shape that the packer uses, up to the model's positions; takes minutes",
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="what to compile for; default: the best there is"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="the same as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    use_device(args.device)
    file = _config_file(args.model)
    if args.json is None:
        print(text(_report(args, file)))
        return 0
    shared.check_output(args.json, file, flag="--json")
    with atomic(args.json) as out:
        report = _report(args, file)
        out.write(json_text(report))
    print(text(report))
    return 0


def _config_file(model: str) -> Path:
    """The config.json of what `--model` names."""
    path = checkpoint.resolve(model, None) if model == "demo" else Path(model)
    with contextlib.suppress(OSError, ValueError):  # too long, not permitted, a zero byte
        if path.is_dir():
            return path / CONFIG
        if path.name == CONFIG and path.exists():
            return path
    raise InputError(
        f"--model {model}: no folder and no {CONFIG} here; give one of the two (a hub id would "
        f"fetch the weights too; of those only {CONFIG} is needed)"
    )


def _report(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """Everything that is told, as the JSON has it."""
    memory = None if args.device_memory is None else parse_bytes(args.device_memory)
    asked = parse_mesh(args.mesh)
    if asked is None and (args.devices is None or memory is None):
        raise InputError("--mesh auto needs --devices and --device-memory; give both")
    if asked is not None and args.devices not in (None, asked.size):
        raise InputError(
            f"--mesh {asked} is of {asked.size} devices, --devices says {args.devices}; "
            "leave one of the two out"
        )
    raw = checkpoint.read_config(file.parent)
    dtype = args.dtype if args.dtype != "auto" else _stored_dtype(file, raw)
    _, translated = native.translate(file.parent, raw)
    config, shapes = _stored(translated, dtype, args.quantize)
    if asked is not None:
        _check(asked, config)  # before anything is compiled
    batches = _batches(config.max_positions, args)

    def measured(shards: int) -> list[Footprint]:
        where = None if shards == 1 else Arrangement(MeshShape(1, shards))
        params = _as_loaded(shapes, config, where)
        model = native.from_params(config, params, dtype, raw["model_type"], arrangement=where)
        found = []
        for rows, length in batches:
            shared.remark(args, f"compiling {rows} x {length} tokens")
            found.append(measure(model, rows, length))
            shared.remark(args, f"compiled in {found[-1].compile_seconds:.1f} s")
        return found

    def here(mesh: MeshShape) -> int:
        """Shards that this machine can compile a program for."""
        return mesh.model if mesh.model <= len(jax.devices()) else 1

    shards = 1 if asked is None else here(asked)
    found = measured(shards)
    working = max(one.working_bytes for one in found)
    if asked is None:
        assert memory is not None  # as --mesh auto asks for
        asked = auto_mesh(shapes, config, args.devices, memory, working)
        if here(asked) > shards:
            shards = here(asked)
            found = measured(shards)
            working = max(one.working_bytes for one in found)
    parts = costs.parts(shapes, bytes_a_device(shapes, specs(shapes, config, asked), asked))
    params_bytes = sum(part.bytes_a_device for part in parts)
    itemsize = native.NUMPY_DTYPES[dtype].itemsize
    return {
        "model": args.model,
        "model_type": raw["model_type"],
        "dtype": dtype,
        "quantize": args.quantize,
        **{name: getattr(config, name) for name in SHOWN},
        "parameters": sum(part.parameters for part in parts),
        "active_parameters": costs.active_parameters(shapes, config),
        "mesh": dataclasses.asdict(asked),
        "whole_on_every_device": whole(config, asked.model),
        "parts": [part._asdict() for part in parts],
        "bytes_a_device": params_bytes,
        "key_value_bytes_a_token": {
            "model": costs.key_value_bytes(config, itemsize, 1),
            "device": costs.key_value_bytes(config, itemsize, asked.model),
        },
        "flops": {
            "linear_a_token": costs.linear_flops(shapes, config),
            "attention_a_token_at": {
                str(one.length): costs.attention_flops(config, one.length) for one in found
            },
            "unembedding_a_query": costs.unembedding_flops(config),
        },
        "batch_tokens": args.batch_tokens,
        "programs": [
            {
                **one._asdict(),
                "peak_bytes_a_device": params_bytes + one.working_bytes,
                "fits": None if memory is None else params_bytes + one.working_bytes <= memory,
            }
            for one in found
        ],
        "compiled_shards": shards,
        "compiled_for": f"{jax.devices()[0].platform} ({jax.devices()[0].device_kind})",
        "device_memory": memory,
        "would_fit": None
        if memory is None
        else _would_fit(translated, dtype, args.quantize, memory - working),
        **provenance.of_run({}),
    }


def _stored_dtype(file: Path, raw: dict[str, Any]) -> str:
    """What `auto` stands for."""
    if converted.is_converted(file.parent):
        return converted.read_facts(file.parent).dtype
    stored = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    for kind, dtype in MATRICES.items():
        if stored == kind:
            return dtype
    raise InputError(f"{file}: the weights' type is {stored!r}, which is not handled; give --dtype")


def _stored(
    config: DecoderConfig, dtype: str, quantize: str | None
) -> tuple[DecoderConfig, decoder.Params]:
    """The decoder and its parameters' shapes, as they are stored so."""
    if quantize is not None:
        config = dataclasses.replace(config, quantized=dtype)
    return config, shapes_of(config, native.NUMPY_DTYPES[dtype])


def _as_loaded(
    shapes: decoder.Params, config: DecoderConfig, where: Arrangement | None
) -> decoder.Params:
    """Shapes of the parameters as they lie on the devices."""
    place = None if where is None else where.placement(config)

    def one(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = None if place is None else place(keys_of(path), leaf.shape)
        return jax.ShapeDtypeStruct(leaf.shape, storage_dtype(leaf.dtype), sharding=sharding)

    return jax.tree_util.tree_map_with_path(one, shapes)


def _check(mesh: MeshShape, config: DecoderConfig) -> None:
    try:
        check(config, mesh.model)
    except ValueError as problem:
        raise InputError(f"--mesh {mesh}: {problem}") from None


def _batches(max_positions: int, args: argparse.Namespace) -> list[tuple[int, int]]:
    """Rows and row lengths of the batches to compile for."""
    if args.batch_tokens < SHORTEST_ROW:
        raise InputError(f"--batch-tokens {args.batch_tokens}: the shortest row is {SHORTEST_ROW}")
    lengths = row_lengths(max_positions)
    if args.all_shapes:
        return [shape for n in lengths for shape in batch_shapes(n, args.batch_tokens)]
    chosen = args.row_lengths
    if chosen is None:
        short = [n for n in lengths if n <= args.batch_tokens]
        chosen = short[0], short[len(short) // 2], short[-1]
    if strange := [n for n in chosen if n not in lengths]:
        raise InputError(
            f"--row-lengths {', '.join(map(str, strange))}: rows of this model have "
            f"{', '.join(map(str, lengths))} tokens"
        )
    return [batch_shapes(n, args.batch_tokens)[-1] for n in sorted(set(chosen))]


def _would_fit(
    config: DecoderConfig, dtype: str, quantize: str | None, room: int
) -> list[dict[str, Any]]:
    """For each way to store the weights, from this one down, the smallest `model` that fits.

    Args:
        room: bytes of a device that parameters can have.
    """
    ways = [(dtype, quantize), ("bfloat16", quantize), ("bfloat16", QUANTIZED[0])]
    out = []
    for way in dict.fromkeys(ways):
        stored, shapes = _stored(config, *way)
        sizes = (2**power for power in range(config.n_heads.bit_length()))
        fitting = (
            size
            for size in sizes
            if divides(config, size) and parameter_bytes(shapes, stored, MeshShape(1, size)) <= room
        )
        if (model := next(fitting, None)) is not None:
            out.append({"dtype": way[0], "quantize": way[1], "model": model})
    return out

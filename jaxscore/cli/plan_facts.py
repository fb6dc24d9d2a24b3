"""What `plan` says of a model: parameters, bytes, FLOPs, memory of compiled programs."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from jaxscore.cli import plan_programs, plan_target
from jaxscore.device import decoder
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import (
    bytes_a_device,
    check_divisible,
    divides,
    parameter_specs,
    replicated_counts,
)
from jaxscore.engine import provenance
from jaxscore.engine.devices import auto_mesh, parameter_bytes, parse_mesh
from jaxscore.engine.footprint import batch_shapes
from jaxscore.engine.targets import Target
from jaxscore.errors import InputError
from jaxscore.io.byte_sizes import parse_bytes
from jaxscore.models import costs, native
from jaxscore.models.choices import QUANTIZED, Dtype, Quantize
from jaxscore.models.config import accepted_keys
from jaxscore.models.weights import checkpoint, converted, quantization
from jaxscore.models.weights.params import shapes_of
from jaxscore.plan.row_batches import SHORTEST_ROW, row_lengths

MATRICES: dict[str, Dtype] = {
    "float64": "float32",
    "float32": "float32",
    "float16": "bfloat16",
    "bfloat16": "bfloat16",
}
SHOWN = "n_layers width n_heads n_kv_heads vocab_size max_positions".split()


def report(args: argparse.Namespace, file: Path) -> dict[str, Any]:
    """All facts, as the JSON file has them."""
    asked = parse_mesh(args.mesh or ("auto" if args.topology else str(MeshShape())))
    target = plan_target.chosen(args, asked)
    memory, n_devices = _machine(args, target, asked)
    written = checkpoint.read_config(file.parent)
    written, accepted = accepted_keys.accept(written, args.accept_config, str(file))
    scheme = quantization.read_scheme(file.parent, written)
    raw = quantization.plain_config(written)
    dtype: Dtype = args.dtype
    if args.dtype == "auto":
        dtype = "bfloat16" if scheme else _stored_dtype(file, raw)
    _, translated = native.translate(file.parent, raw)
    config, shapes = _stored(translated, dtype, args.quantize)
    if asked is not None:
        _check(asked, config)  # before anything is compiled
    batches = _batches(config.max_positions, args)
    compiler = plan_programs.Compiler(args, config, dtype, raw["model_type"], target)
    found = []
    if asked is None:
        assert memory is not None  # as --mesh auto asks for
        assert n_devices is not None
        if target is None:
            found = compiler.programs(MeshShape(), batches)
            working = max(one.working_bytes for one in found)
            asked = auto_mesh(shapes, config, n_devices, memory, working)
        else:
            asked = plan_target.as_a_run(shapes, config, n_devices, memory)
    if not found or compiler.shape(asked) != MeshShape():
        found = compiler.programs(asked, batches)
    working = max(one.working_bytes for one in found)
    parts = costs.parts(
        shapes, bytes_a_device(shapes, parameter_specs(shapes, config, asked), asked)
    )
    params_bytes = sum(part.bytes_a_device for part in parts)
    itemsize = native.NUMPY_DTYPES[dtype].itemsize
    return {
        "model": args.model,
        "model_type": raw["model_type"],
        "dtype": dtype,
        "quantize": args.quantize,
        **({"accepted_config": accepted} if accepted else {}),
        **{name: getattr(config, name) for name in SHOWN},
        "parameters": sum(part.parameters for part in parts),
        "active_parameters": costs.active_parameters(shapes, config),
        "mesh": dataclasses.asdict(asked),
        "whole_on_every_device": replicated_counts(config, asked.model),
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
        "programs": [plan_programs.facts(one, params_bytes, memory) for one in found],
        "compiled_shards": compiler.shape(asked).model,
        "compiled_for": compiler.described(),
        "device_memory": memory,
        "would_fit": None
        if memory is None
        else _would_fit(translated, dtype, args.quantize, memory - working),
        **({} if target is None else compiler.of_target(asked, found, params_bytes, memory)),
        **provenance.of_run({}),
    }


def _machine(
    args: argparse.Namespace, target: Target | None, asked: MeshShape | None
) -> tuple[int | None, int | None]:
    """Bytes of each device and the number of devices, as far as they are known.

    Raises:
        InputError: `--mesh auto` needs one that is not, or the mesh has another number.
    """
    memory = None if args.device_memory is None else parse_bytes(args.device_memory)
    n_devices = args.devices
    if target is not None:
        memory, n_devices = memory or target.memory_bytes, len(target.devices)
    if asked is None and (n_devices is None or memory is None):
        raise InputError("--mesh auto needs --devices and --device-memory; give both")
    if asked is not None and args.devices not in (None, asked.size):
        raise InputError(
            f"--mesh {asked} is of {asked.size} devices, --devices says {args.devices}; "
            "leave one of the two out"
        )
    return memory, n_devices


def _stored_dtype(file: Path, raw: dict[str, Any]) -> Dtype:
    """What `auto` stands for."""
    if checkpoint.is_converted(file.parent):
        return converted.read_facts(file.parent).dtype
    stored = raw.get("dtype") or raw.get("torch_dtype") or "float32"
    for kind, dtype in MATRICES.items():
        if stored == kind:
            return dtype
    raise InputError(f"{file}: the weights' type is {stored!r}, which is not handled; give --dtype")


def _stored(
    config: DecoderConfig, dtype: Dtype, quantize: Quantize | None
) -> tuple[DecoderConfig, decoder.Params]:
    """The decoder and its parameters' shapes, as they are stored so."""
    if quantize is not None:
        config = dataclasses.replace(config, quantized=dtype)
    return config, shapes_of(config, native.NUMPY_DTYPES[dtype])


def _check(mesh: MeshShape, config: DecoderConfig) -> None:
    try:
        check_divisible(config, mesh.model)
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
    config: DecoderConfig, dtype: Dtype, quantize: Quantize | None, room: int
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

"""Facts that `plan` reports: parameters, bytes, FLOPs, memory of compiled programs."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.errors import JaxRuntimeError

from jaxscore.cli import messages
from jaxscore.device import decoder, jax_settings
from jaxscore.device.decoder import Params
from jaxscore.device.decoder_config import RECURRENT, DecoderConfig
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import (
    DeviceMesh,
    bytes_a_device,
    check_divisible,
    divides,
    parameter_specs,
    replicated_counts,
)
from jaxscore.engine import provenance, targets
from jaxscore.engine.auto_mesh import (
    MeshEstimate,
    auto_mesh,
    mesh_estimates,
    rates_of,
)
from jaxscore.engine.devices import parse_mesh, process_bytes
from jaxscore.engine.estimates import Where, abstract_model, estimate_layer, estimate_vocabulary
from jaxscore.engine.footprint import Footprint, batch_shapes, measure, refused
from jaxscore.engine.targets import Target
from jaxscore.errors import InputError, parse_bytes
from jaxscore.models import costs, load, native
from jaxscore.models.model_types import QUANTIZED, Dtype, Quantize
from jaxscore.models.weights import converted
from jaxscore.models.weights.checkpoint import Checkpoint
from jaxscore.models.weights.params import shapes_of, stored_share
from jaxscore.models.weights.tensor_files import has_weights
from jaxscore.plan.row_batches import SHORTEST_ROW, row_lengths

MATRICES: dict[str, Dtype] = {
    "float64": "float32",
    "float32": "float32",
    "float16": "bfloat16",
    "bfloat16": "bfloat16",
}
MOST_SHARDS = 1024  # of the meshes that are looked at for what would fit
FOOTPRINT_FIELDS = ("temporary_bytes", "batch_bytes", "compile_seconds", "xla_flops")


@jax_settings.isolated()
def report(args: argparse.Namespace, source: Path) -> dict[str, Any]:
    """Compute the facts, with the keys of the JSON file."""
    # Over 60 lines: half of them are the keys of that file, in its order.
    mesh = parse_mesh(args.mesh or ("auto" if args.topology else str(MeshShape())))
    target = select_target(args, mesh)
    memory, n_devices = _machine(args, target, mesh)
    checkpoint = load.accept(Checkpoint.open(source), args.accept_config)
    raw = checkpoint.config
    # A run on this CPU, and not a plan for other devices.
    is_here = (memory, n_devices, mesh) == (None, None, MeshShape())
    is_here = is_here and target is None and jax.default_backend() == "cpu"
    dtype = _loaded_dtype(checkpoint, is_here=is_here) if args.dtype == "auto" else args.dtype
    family, translated = native.translate(source, raw)
    stored = args.quantize == "stored" and checkpoint.format != "converted"
    if stored:
        expected = getattr(checkpoint.scheme, "expected_form", None)
        by_config = expected is not None and not has_weights(source)
        tensors = None if by_config else checkpoint.tensors
        translated = native.with_storage(
            source, family, translated, tensors, dtype, "stored", expected
        )
    elif args.quantize == "stored":
        raise InputError(f"{source}: is converted; --quantize stored is for quantized checkpoints")
    config, shapes = _stored(translated, dtype, args.quantize)
    if mesh is not None:
        _check_divisible(mesh, config)  # before anything is compiled
    batches = _batches(config, args)
    compiler = Compiler(args, config, dtype, raw["model_type"], target)
    programs: list[Program] = []
    meshes: list[MeshEstimate] = []
    if mesh is None:
        assert memory is not None  # `_machine` requires both for --mesh auto
        assert n_devices is not None
        if target is None:
            programs = compiler.programs(MeshShape(), batches)
        mesh, meshes = _auto_mesh(config, shapes, batches, n_devices, memory, target, programs)
    if not programs or mesh.fsdp or compiler.shape(mesh) != MeshShape():
        programs = compiler.programs(mesh, batches)
    working = max(program.working_bytes for program in programs)
    parts = costs.parts(shapes, bytes_a_device(shapes, parameter_specs(shapes, config, mesh), mesh))
    params_bytes = sum(group.bytes_a_device for group in parts)
    itemsize = native.NUMPY_DTYPES[dtype].itemsize
    return {
        "model": args.model,
        "model_type": raw["model_type"],
        "dtype": dtype,
        "quantize": args.quantize,
        **({"stored_share": stored_share(shapes)} if stored else {}),
        **({"accepted_config": checkpoint.accepted} if checkpoint.accepted else {}),
        "n_layers": config.n_layers,
        "width": config.width,
        "n_heads": config.attention.n_heads,
        "n_kv_heads": config.attention.n_kv_heads,
        "vocab_size": config.vocab_size,
        "max_positions": config.max_positions,
        "parameters": sum(group.parameters for group in parts),
        "active_parameters": costs.active_parameters(shapes, config),
        "mesh": dataclasses.asdict(mesh),
        **({"meshes": [_describe_mesh(estimate) for estimate in meshes]} if meshes else {}),
        "whole_on_every_device": replicated_counts(config, mesh.model),
        "parts": [group._asdict() for group in parts],
        "bytes_a_device": params_bytes,
        "key_value_bytes_a_token": {
            "model": costs.key_value_bytes(config, itemsize, 1),
            "device": costs.key_value_bytes(config, itemsize, mesh.model),
        },
        **({} if config.recurrent is None else {"state_bytes_a_path": _states(config, mesh.model)}),
        "flops": _flops(config, shapes, [program.length for program in programs]),
        "batch_tokens": args.batch_tokens,
        "programs": [program.describe(params_bytes, memory) for program in programs],
        "compiled_shards": compiler.shape(mesh).model,
        "compiled_for": compiler.describe_device(),
        "device_memory": memory,
        **({"process_bytes": process_bytes()} if is_here else {}),
        "would_fit": _would_fit(
            translated,
            (dtype, args.quantize),
            memory,
            working,
            mesh,
            compiler.shape(mesh).model,
        ),
        **({} if target is None else compiler.of_target(mesh, programs, params_bytes, memory)),
        **provenance.of_run({}),
    }


def _states(config: DecoderConfig, shards: int) -> dict[str, int]:
    return {"model": costs.state_bytes(config, 1), "device": costs.state_bytes(config, shards)}


def _flops(config: DecoderConfig, shapes: Params, lengths: Sequence[int]) -> dict[str, Any]:
    """FLOPs per token and per query, see the command's description."""
    return {
        "linear_a_token": costs.linear_flops(shapes, config),
        "attention_a_token_at": {str(n): costs.attention_flops(config, n) for n in lengths},
        "unembedding_a_query": costs.unembedding_flops(config),
    }


def _machine(
    args: argparse.Namespace, target: Target | None, mesh: MeshShape | None
) -> tuple[int | None, int | None]:
    """Bytes per device and the number of devices; each is None if unknown.

    Raises:
        InputError: `--mesh auto` needs an unknown one, or the mesh has another number.
    """
    memory = None if args.device_memory is None else parse_bytes(args.device_memory)
    n_devices = args.devices
    if target is not None:
        memory, n_devices = memory or target.memory_bytes, len(target.devices)
    if mesh is None and (n_devices is None or memory is None):
        raise InputError("--mesh auto needs --devices and --device-memory; give both")
    if mesh is not None and args.devices not in (None, mesh.size):
        raise InputError(
            f"--mesh {mesh} is of {mesh.size} devices, --devices says {args.devices}; "
            "leave one of the two out"
        )
    return memory, n_devices


def _loaded_dtype(checkpoint: Checkpoint, *, is_here: bool) -> Dtype:
    """Return the dtype that `auto` stands for.

    Args:
        is_here: True for a run on this CPU.
    """
    if checkpoint.format == "converted":
        return converted.read_facts(checkpoint.path).dtype
    if checkpoint.scheme is not None:
        return "float32" if is_here else MATRICES[checkpoint.scheme.narrowest]
    config = checkpoint.config
    stored = config.get("dtype") or config.get("torch_dtype") or "float32"
    if not isinstance(stored, str) or stored not in MATRICES:
        raise InputError(
            f"{checkpoint.where}: the weights' type is {stored!r}, which is not "
            "handled; give --dtype"
        )
    return "float32" if is_here else MATRICES[stored]


def _stored(
    config: DecoderConfig, dtype: Dtype, quantize: Quantize | None
) -> tuple[DecoderConfig, decoder.Params]:
    """The decoder and its parameters' shapes in this storage."""
    if quantize == "int8":
        config = dataclasses.replace(config, quantized=dtype, stored=())
    return config, shapes_of(config, native.NUMPY_DTYPES[dtype])


def _check_divisible(mesh: MeshShape, config: DecoderConfig) -> None:
    try:
        check_divisible(config, mesh.model)
    except ValueError as problem:
        raise InputError(f"--mesh {mesh}: {problem}") from None


def _batches(config: DecoderConfig, args: argparse.Namespace) -> list[tuple[int, int]]:
    """Rows and row lengths of the batches to compile for."""
    if args.batch_tokens < SHORTEST_ROW:
        raise InputError(f"--batch-tokens {args.batch_tokens}: the shortest row is {SHORTEST_ROW}")
    lengths = row_lengths(config.max_positions)
    if args.all_shapes:
        is_recurrent = config.recurrent is not None
        return [
            shape
            for n in lengths
            for shape in batch_shapes(n, args.batch_tokens, recurrent=is_recurrent)
        ]
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
    config: DecoderConfig,
    own_way: tuple[Dtype, Quantize | None],
    memory: int | None,
    working: int,
    mesh: MeshShape,
    compiled_shards: int,
) -> list[dict[str, Any]] | None:
    """The smallest `model`, and the smallest `fsdp` without it, that fit, for each way to store.

    Args:
        own_way: dtype and quantization; smaller ones are looked at, too.
        memory: bytes per device; the result is None if it is unknown.
        working: bytes per device that parameters cannot have, in the programs of `mesh`, compiled
            for so many shards. Fewer shards need more, and are not looked at.
    """
    if memory is None:
        return None
    ways = [own_way, ("bfloat16", own_way[1]), ("bfloat16", QUANTIZED[0])]
    sizes = [2**power for power in range(MOST_SHARDS.bit_length())]
    out = []
    for dtype, quantize in dict.fromkeys(ways):
        stored, shapes = _stored(config, dtype, quantize)

        def fits(shape: MeshShape, stored: DecoderConfig = stored, shapes: Params = shapes) -> bool:
            needed = costs.parameter_bytes(shapes, stored, shape)
            if not mesh.fsdp:  # whose programs gather as much
                needed += costs.gathered_bytes(shapes, stored, shape)[1]
            return needed + working <= memory

        splits = [
            n
            for n in sizes
            if compiled_shards <= n <= stored.attention.n_heads and divides(stored, n)
        ]
        model = next((n for n in splits if fits(MeshShape(1, n))), None)
        fsdp = None
        if compiled_shards == 1 != model:  # one device is less than many
            fsdp = next((n for n in sizes[1:] if fits(MeshShape(n, 1, fsdp=True))), None)
        if model or fsdp:
            out.append({"dtype": dtype, "quantize": quantize, "model": model, "fsdp": fsdp})
    return out


class Program(NamedTuple):
    """The program of one batch.

    Attributes:
        working_bytes: memory in addition to the parameters.
        footprint: None if the compiler refused the program because it would not fit.
    """

    rows: int
    length: int
    working_bytes: int
    footprint: Footprint | None

    def describe(self, params_bytes: int, memory: int | None) -> dict[str, Any]:
        """Return an entry of `programs` in the JSON file; a refused program has only a peak."""
        peak = params_bytes + self.working_bytes
        fits = None if memory is None else peak <= memory
        return {
            "rows": self.rows,
            "length": self.length,
            **{name: getattr(self.footprint, name, None) for name in FOOTPRINT_FIELDS},
            "peak_bytes_a_device": peak,
            "fits": False if self.footprint is None else fits,
        }

    def describe_batch(self, params_bytes: int, memory: int | None) -> dict[str, Any]:
        """Return an entry of `batches` in the JSON file."""
        description = self.describe(params_bytes, memory)
        collectives = () if self.footprint is None else self.footprint.collectives
        return {
            **{name: description[name] for name in ("rows", "length", "temporary_bytes")},
            "peak_bytes": description["peak_bytes_a_device"],
            "fits": description["fits"],
            "collectives": [dataclasses.asdict(moved) for moved in collectives],
        }


def _auto_mesh(
    config: DecoderConfig,
    shapes: Params,
    batches: Sequence[tuple[int, int]],
    n_devices: int,
    memory: int,
    target: Target | None,
    alone: Sequence[Program],
) -> tuple[MeshShape, list[MeshEstimate]]:
    """The mesh that `--mesh auto` takes, and the estimates of all.

    Args:
        alone: programs of one device, if it is this machine's.
    """
    working = max((program.working_bytes for program in alone), default=None)
    rates = rates_of("" if target is None else target.devices[0].device_kind)
    least = max(rows * length for rows, length in batches)
    meshes = mesh_estimates(shapes, config, n_devices, memory, rates, working=working, least=least)
    return mesh_of_run(meshes, memory, working, or_last=target is not None), meshes


class Compiler:
    """Compiles the programs of one model for the devices of this machine, or for a target."""

    def __init__(
        self,
        args: argparse.Namespace,
        config: DecoderConfig,
        dtype: Dtype,
        model_type: str,
        target: Target | None,
    ) -> None:
        self.args, self.target = args, target
        self.config, self.dtype, self.model_type = config, dtype, model_type

    def _remark(self, text: str) -> None:
        messages.remark(self.args, text)

    def shape(self, mesh: MeshShape) -> MeshShape:
        """Return the mesh to compile for: one device if this machine has too few for all shards."""
        if self.target is not None:
            return mesh
        wanted = mesh if mesh.fsdp else MeshShape(1, mesh.model)  # shares of `data` are alike
        return wanted if wanted.size <= len(jax.devices()) else MeshShape()

    def describe_device(self) -> str:
        """Return the name of the devices."""
        device = jax.devices()[0] if self.target is None else self.target.devices[0]
        return f"{device.platform} ({device.device_kind})"

    def programs(self, mesh: MeshShape, batches: Sequence[tuple[int, int]]) -> list[Program]:
        """Compile the scorer's program for each batch (rows, row length)."""
        shape = self.shape(mesh)
        where = compile_devices(self.target, shape)
        model = abstract_model(self.config, self.dtype, self.model_type, where)
        if model.devices.replaced_kernels is not None:
            self._remark(f"GPU kernels replaced: {model.devices.replaced_kernels}")
        device = None if self.target is None else self.target.devices[0]
        stored = costs.parameter_bytes(model.params, self.config, shape)
        _, gathered = costs.gathered_bytes(model.params, self.config, mesh)
        more = gathered if shape.fsdp != mesh.fsdp else 0
        programs = []
        for rows, length in batches:
            self._remark(f"compiling {rows} x {length} tokens")
            try:
                footprint = measure(model, rows, length, device)
            except JaxRuntimeError as problem:
                if (named := refused(problem, rows, length)) is None:
                    raise
                self._remark("refused: it does not fit")
                programs.append(Program(rows, length, named.total_bytes - stored + more, None))
            else:
                self._remark(f"compiled in {footprint.compile_seconds:.1f} s")
                programs.append(Program(rows, length, footprint.working_bytes + more, footprint))
        return programs

    def of_target(
        self, mesh: MeshShape, programs: Sequence[Program], params_bytes: int, memory: int | None
    ) -> dict[str, Any]:
        """Return further facts of a target's compiler: collectives and estimates."""
        target = self.target
        assert target is not None
        layers, vocabulary = [], []
        if target.flops is not None:
            model = self.config, self.dtype, self.model_type
            where = compile_devices(target, mesh)
            of_layer = [self.config.kind_of(n) for n in range(self.config.n_layers)]
            kinds = [False] * (max(of_layer) >= 0) + [True] * (RECURRENT in of_layer)
            for program in programs:
                self._remark(f"compiling a layer of {program.rows} x {program.length} tokens")
                shape = program.rows, program.length
                for recurrent in kinds:
                    layers.append(
                        estimate_layer(*model, target, where, *shape, recurrent=recurrent)
                    )
            self._remark("compiling the LM head")
            vocabulary.append(estimate_vocabulary(*model, target, where, self.args.batch_tokens))
        return {
            "target": target.name,
            "compiler": {"name": target.compiler, "version": target.version},
            "batches": [program.describe_batch(params_bytes, memory) for program in programs],
            "layer": [dataclasses.asdict(estimate) for estimate in layers],
            "vocabulary": [dataclasses.asdict(estimate) for estimate in vocabulary],
        }


def select_target(args: argparse.Namespace, mesh: MeshShape | None) -> Target | None:
    """The devices that the flags name, or None for this machine's.

    Args:
        mesh: None for `auto`.

    Raises:
        InputError: no such devices, no compiler for them, or not as many as the mesh has.
    """
    if args.gpu_target is not None:
        n_devices = args.devices if mesh is None else mesh.size
        if n_devices is None:
            raise InputError(
                f"--gpu-target {args.gpu_target} with --mesh auto needs --devices; give it"
            )
        return targets.gpu(args.gpu_target, n_devices)
    if args.topology is None:
        return None
    target = targets.tpu(args.topology)
    n_devices = len(target.devices)
    if mesh is not None and mesh.size != n_devices:
        raise InputError(
            f"--mesh {mesh} is of {mesh.size} devices, and --topology {args.topology} has "
            f"{n_devices}; give a mesh of {n_devices}, or leave --mesh out"
        )
    if args.devices not in (None, n_devices):
        raise InputError(
            f"--devices says {args.devices}, and --topology {args.topology} has {n_devices}; "
            "leave --devices out"
        )
    return target


def compile_devices(target: Target | None, shape: MeshShape) -> Where:
    """Devices that programs of this mesh are compiled for: a mesh, or one device.

    See `Compiler.shape`.
    """
    if target is None:
        return None if shape.size == 1 else DeviceMesh(shape)
    return target.devices[0] if shape.size == 1 else DeviceMesh(shape, target.devices)


def mesh_of_run(
    meshes: list[MeshEstimate], memory: int, working: int | None, *, or_last: bool
) -> MeshShape:
    """The mesh that a run that scores would choose on these devices.

    Args:
        or_last: if nothing fits, take the last mesh, with `fsdp` and the largest `model`, so that
            the plan shows what is missing.
    """
    try:
        return auto_mesh(meshes, memory, working)
    except InputError:
        if not or_last:
            raise
        return meshes[-1].mesh


def _describe_mesh(estimate: MeshEstimate) -> dict[str, Any]:
    """An entry of `meshes` in the JSON file."""
    return {**estimate._asdict(), "mesh": dataclasses.asdict(estimate.mesh)}

"""The programs that `plan` has compiled, for this machine or for a target."""

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.errors import JaxRuntimeError

from jaxscore.cli import messages, plan_target
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine.devices import parameter_bytes
from jaxscore.engine.estimates import abstract_model, estimate_layer, estimate_vocabulary
from jaxscore.engine.footprint import Footprint, measure, refused
from jaxscore.engine.targets import Target
from jaxscore.models.choices import Dtype

SHOWN = ("temporary_bytes", "batch_bytes", "compile_seconds", "xla_flops")


class Program(NamedTuple):
    """What is known of one batch.

    Attributes:
        working_bytes: beside the parameters.
        footprint: None where the compiler refused the program, since it would not fit.
    """

    rows: int
    length: int
    working_bytes: int
    footprint: Footprint | None


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

    def shape(self, asked: MeshShape) -> MeshShape:
        """The mesh that programs are compiled for: of this machine's devices, where they are
        enough for all shards, and else one device."""
        if self.target is not None:
            return asked
        return MeshShape(1, asked.model if asked.model <= len(jax.devices()) else 1)

    def described(self) -> str:
        """The devices, for people."""
        device = jax.devices()[0] if self.target is None else self.target.devices[0]
        return f"{device.platform} ({device.device_kind})"

    def programs(self, asked: MeshShape, batches: Sequence[tuple[int, int]]) -> list[Program]:
        """The scorer's program for each batch, rows and row length."""
        shape = self.shape(asked)
        platform = None if self.target is None else self.target.platform
        where = plan_target.placed(self.target, shape)
        model = abstract_model(self.config, self.dtype, self.model_type, platform, where)
        device = None if self.target is None else self.target.devices[0]
        kept = parameter_bytes(model.params, self.config, shape)
        found = []
        for rows, length in batches:
            messages.remark(self.args, f"compiling {rows} x {length} tokens")
            try:
                one = measure(model, rows, length, device)
            except JaxRuntimeError as problem:
                if (named := refused(problem, rows, length)) is None:
                    raise
                messages.remark(self.args, "refused: it does not fit")
                found.append(Program(rows, length, named.total_bytes - kept, None))
            else:
                messages.remark(self.args, f"compiled in {one.compile_seconds:.1f} s")
                found.append(Program(rows, length, one.working_bytes, one))
        return found

    def of_target(
        self, asked: MeshShape, found: Sequence[Program], params_bytes: int, memory: int | None
    ) -> dict[str, Any]:
        """What the compiler of the target says besides, estimates among it."""
        target = self.target
        assert target is not None
        layers, vocabulary = [], []
        if target.flops is not None:
            model = self.config, self.dtype, self.model_type
            where = plan_target.placed(target, asked)
            layer = functools.partial(estimate_layer, *model, target, where)
            for one in found:
                messages.remark(self.args, f"compiling a layer of {one.rows} x {one.length} tokens")
                layers.append(layer(one.rows, one.length))
            messages.remark(self.args, "compiling the vocabulary pass")
            queries = self.args.batch_tokens
            vocabulary.append(estimate_vocabulary(*model, target, where, queries))
        return {
            "target": target.name,
            "compiler": {"name": target.compiler, "version": target.version},
            "batches": [batch(one, params_bytes, memory) for one in found],
            "layer": [dataclasses.asdict(one) for one in layers],
            "vocabulary": [dataclasses.asdict(one) for one in vocabulary],
        }


def facts(program: Program, params_bytes: int, memory: int | None) -> dict[str, Any]:
    """One of `programs` in the JSON file; of what was refused only the peak is known."""
    one, peak = program.footprint, params_bytes + program.working_bytes
    return {
        "rows": program.rows,
        "length": program.length,
        **{name: None if one is None else getattr(one, name) for name in SHOWN},
        "peak_bytes_a_device": peak,
        "fits": fits(program, peak, memory),
    }


def batch(program: Program, params_bytes: int, memory: int | None) -> dict[str, Any]:
    """One of `batches` in the JSON file."""
    one, peak = program.footprint, params_bytes + program.working_bytes
    return {
        "rows": program.rows,
        "length": program.length,
        "temporary_bytes": None if one is None else one.temporary_bytes,
        "peak_bytes": peak,
        "fits": fits(program, peak, memory),
        "collectives": [] if one is None else [dataclasses.asdict(x) for x in one.collectives],
    }


def fits(program: Program, peak: int, memory: int | None) -> bool | None:
    """Whether the device holds it; None where its memory is not known."""
    if program.footprint is None:
        return False
    return None if memory is None else peak <= memory

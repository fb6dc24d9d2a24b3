"""What `plan --topology` and `--gpu-target` compile for, and how its devices are laid out."""

import argparse

from jaxscore.device.decoder import Params
from jaxscore.device.decoder_config import DecoderConfig
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.device.sharding import DeviceMesh, divides
from jaxscore.engine import targets
from jaxscore.engine.devices import WORKING, auto_mesh
from jaxscore.engine.estimates import Where
from jaxscore.engine.targets import Target
from jaxscore.errors import InputError


def chosen(args: argparse.Namespace, asked: MeshShape | None) -> Target | None:
    """The devices that the flags name; None are those of this machine.

    Args:
        asked: the mesh; None is `auto`.

    Raises:
        InputError: no such devices, no compiler for them, or another number than the mesh has.
    """
    if args.gpu_target is not None:
        n_devices = args.devices if asked is None else asked.size
        if n_devices is None:
            raise InputError(
                f"--gpu-target {args.gpu_target} with --mesh auto needs --devices; give it"
            )
        return targets.gpu(args.gpu_target, n_devices)
    if args.topology is None:
        return None
    target = targets.tpu(args.topology)
    n_devices = len(target.devices)
    if asked is not None and asked.size != n_devices:
        raise InputError(
            f"--mesh {asked} is of {asked.size} devices, and --topology {args.topology} has "
            f"{n_devices}; give a mesh of {n_devices}, or leave --mesh out"
        )
    if args.devices not in (None, n_devices):
        raise InputError(
            f"--devices says {args.devices}, and --topology {args.topology} has {n_devices}; "
            "leave --devices out"
        )
    return target


def placed(target: Target | None, shape: MeshShape) -> Where:
    """Where programs of this mesh are compiled: a mesh, or one device that needs none.

    Of a machine's own devices those of one share of `data` are enough.
    """
    if target is None:
        return None if shape.model == 1 else DeviceMesh(MeshShape(1, shape.model))
    return target.devices[0] if shape.size == 1 else DeviceMesh(shape, target.devices)


def as_a_run(shapes: Params, config: DecoderConfig, n_devices: int, memory: int) -> MeshShape:
    """The mesh that a run on these devices would take, which compiles nothing before.

    Where nothing fits it is the one of the largest `model`, so that the plan can say by how much.

    Args:
        shapes: of the model's parameters.
        memory: bytes of each device.
    """
    try:
        return auto_mesh(shapes, config, n_devices, memory, int(WORKING * memory))
    except InputError:
        powers = (2**power for power in range(n_devices.bit_length()))
        model = max(n for n in powers if not n_devices % n and divides(config, n))
        return MeshShape(n_devices // model, model)

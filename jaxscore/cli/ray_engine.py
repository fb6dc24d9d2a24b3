"""`--engine ray`: Ray Data distributes the shards of a folder over actors that hold the model.

An actor runs the command on a shard as a process without an engine does, so files and manifests are
the same. Ray starts a dead actor again, and its shard continues from the journal.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxscore.cli import listing, messages, shards
from jaxscore.cli.shard_files import Shard, listings
from jaxscore.cli.shards import Outcome, Part, State
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine.defaults import AUTO
from jaxscore.errors import InputError, install_extra
from jaxscore.io import remote
from jaxscore.journal.files import JournalHeld

ADDRESS = "RAY_ADDRESS"
KINDS = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "tpu": "TPU"}  # --device -> Ray's resource
PATIENCE, PAUSE = 180.0, 5.0  # seconds: a lost process holds its journal for a while


def outcomes(
    args: argparse.Namespace, pending: Sequence[tuple[Shard, State]], dtype: str | None
) -> Iterator[Outcome]:
    """Score shards on a Ray cluster, in any order.

    Args:
        dtype: as of `Part`.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached or has no such devices.
    """
    try:
        import ray.data
    except ImportError as problem:
        raise InputError(f"--engine ray: {problem}; {install_extra('ray')}") from None
    if any(str(shard.source) == "-" for shard, _ in pending):
        raise InputError("--input -: standard input cannot be read by other processes; give a file")
    _connect(args)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = not args.quiet
        n_actors, resources = _pool(args, len(pending))
        rows = [{"shard": json.dumps(_portable(shard))} for shard, _ in pending]
        done = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            Actor,
            fn_constructor_args=(args.words, os.getcwd(), dtype),
            compute=ray.data.ActorPoolStrategy(size=n_actors, max_tasks_in_flight_per_actor=1),
            **resources,
        )
        for batch in done.iter_batches(batch_size=None, prefetch_batches=0):
            for text in batch["outcome"]:
                *outcome, said = json.loads(text)
                sys.stderr.write(said)
                yield Outcome(*outcome)
    finally:
        ray.shutdown()


def _connect(args: argparse.Namespace) -> None:
    import ray

    level = logging.ERROR if args.quiet else logging.WARNING
    logging.getLogger("ray.data").setLevel(level)
    own: dict[str, Any] = {}
    if (address := os.environ.get(ADDRESS)) is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of ours reports nothing
        n_cpus = max(os.cpu_count() or 1, (args.actors or 1) + 1)
        own = {"include_dashboard": False, "num_cpus": n_cpus}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=level, **own)
    except Exception as problem:  # of several unrelated kinds
        place = "a local cluster" if address is None else f"{ADDRESS} {remote.mask(address)}"
        raise InputError(f"--engine ray: {place} cannot be used ({problem})") from None


def _pool(args: argparse.Namespace, n_shards: int) -> tuple[int, dict[str, Any]]:
    """Number of actors, and what each takes of its node.

    Raises:
        InputError: the cluster has no such devices, and --actors does not say how many will come.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if getattr(args, "api_base", None) is not None or getattr(args, "device", None) is not None:
        kind = KINDS[getattr(args, "device", None) or "cpu"]
    else:
        kind = next((kind for kind in ("GPU", "TPU") if any(kind in node for node in nodes)), "CPU")
    mesh = getattr(args, "mesh", AUTO)
    n_devices = 1 if mesh == AUTO or kind == "CPU" else MeshShape.parse(mesh).size
    n_places = sum(
        1 if kind == "CPU" else int(node[kind]) // n_devices for node in nodes if kind in node
    )
    if not n_places and (args.actors is None or ADDRESS not in os.environ):
        raise InputError(
            f"--engine ray: no node has {n_devices} {kind} for an actor; give another --device or "
            "--mesh, or --actors N if the cluster grows"
        )
    n_actors = min(args.actors or n_places, n_shards)
    if kind != "CPU" and n_actors > n_places:
        messages.remark(args, f"--actors {n_actors}: there are devices for {n_places} now")
    resources: dict[str, dict[str, Any]] = {
        "CPU": {"num_cpus": 1},
        "GPU": {"num_gpus": n_devices, "num_cpus": 0},
        "TPU": {"resources": {"TPU": n_devices}, "num_cpus": 0},
    }
    return n_actors, resources[kind]


def _portable(shard: Shard) -> Mapping[str, Any]:
    """A shard in JSON; paths of addresses are local to a process."""
    assert shard.output is not None
    return {
        "source": remote.address_of(shard.source) or str(shard.source),
        "name": shard.name,
        "output": remote.address_of(shard.output) or str(shard.output),
        "identity": shard.identity,
    }


class Actor:
    """One process of the pool: the parsed command, and the model from the first shard on."""

    def __init__(self, words: Sequence[str], folder: str, dtype: str | None) -> None:
        self._words, self._folder = words, folder
        self._part = Part(dtype=dtype)
        self._args: argparse.Namespace | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Score the shard of a row; gives name, exit code, problem and messages as JSON."""
        facts = json.loads(row["shard"])
        code, problem, said = 2, None, io.StringIO()
        with contextlib.redirect_stderr(said):
            try:
                code = self._score(facts)
            except InputError as found:
                problem = remote.displayed(found)
            except (Exception, SystemExit) as found:
                traceback.print_exc()
                problem = f"{type(found).__name__}: {found}"
        return {"outcome": json.dumps([facts["name"], code, problem, said.getvalue()])}

    def _score(self, facts: Mapping[str, Any]) -> int:
        if self._args is None:
            os.chdir(self._folder)  # relative paths mean what they mean to the command
            name, *flags = self._words
            self._args = listing.parser(name).parse_args(flags)
            self._args.quiet = True  # bars of several actors would mix
        args = self._args
        places = {name: remote.stage(facts[name]) for name in ("source", "output")}
        shard = Shard(name=facts["name"], identity=facts["identity"], **places)
        if not listings(args.output):
            raise InputError(
                f"{remote.displayed(args.output)}: not found on {socket.gethostname()}; give a "
                "folder that all nodes share, or one in a store"
            )
        [state] = shards.states_of(args, [shard])
        if state.is_finished:  # by an actor that died before it could say so
            return int(state.has_failed)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return shards.score_shard(args, shard, self._part, is_outdated=state.is_outdated)
            except JournalHeld:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE)

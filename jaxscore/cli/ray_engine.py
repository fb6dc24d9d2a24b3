"""`--engine ray`: Ray Data distributes the shards of a folder over actors that hold the model.

An actor runs the command on a shard as a process without an engine does, so files and manifests are
the same. Ray starts a dead actor again, and its shard continues from the journal.
"""

import argparse
import collections
import contextlib
import functools
import importlib
import inspect
import io
import json
import logging
import os
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO, cast
from urllib.parse import urlsplit

from jaxscore.cli import app, messages, shards
from jaxscore.cli.shard_files import Shard, listings
from jaxscore.cli.shards import Outcome, ShardRun, State
from jaxscore.device.mesh_shape import MeshShape
from jaxscore.engine import AUTO
from jaxscore.errors import Held, InputError, install_extra
from jaxscore.io import processes, remote

ADDRESS = "RAY_ADDRESS"
KINDS = {"cpu": "CPU", "gpu": "GPU", "cuda": "GPU", "tpu": "TPU"}  # --device -> Ray's resource
PATIENCE, PAUSE = 180.0, 5.0  # seconds: a lost process holds its journal for a while
CONNECT = 10.0  # seconds; Ray itself would wait for minutes, and say nothing
LOSS = 30.0  # seconds without the head node
RETRIES = 4  # of a shard whose process was lost
LOST = (
    f"its process was lost {RETRIES + 1} times (memory, a crash, or its node); the same command "
    "goes on from the journal"
)
NO_OUTCOME = "Ray has lost it, its error is above; the same command goes on from the journal"


def outcomes(
    args: argparse.Namespace, pending: Sequence[tuple[Shard, State]], dtype: str | None
) -> Iterator[Outcome]:
    """Score shards on a Ray cluster, in any order.

    Args:
        dtype: see `ShardRun`.

    Raises:
        InputError: Ray is not installed, or the cluster cannot be reached, has no such devices, or
            fails.
    """
    try:
        importlib.import_module("ray.data")
    except ImportError as problem:
        raise InputError(f"--engine ray: {problem}; {install_extra('ray')}") from None
    if any(str(shard.source) == "-" for shard, _ in pending):
        raise InputError("--input -: standard input cannot be read by other processes; give a file")
    with _own_streams(args.quiet):
        _connect(args)
        with _watched_head(args):
            yield from _outcomes(args, pending, dtype)


def _outcomes(
    args: argparse.Namespace, pending: Sequence[tuple[Shard, State]], dtype: str | None
) -> Iterator[Outcome]:
    import ray.data

    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = not args.quiet
        context.max_errored_blocks = -1  # a lost shard does not end the others
        n_actors, device_type, resources = _pool(args, len(pending))
        counter = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Attempts).remote()
        begin = functools.partial(_begin, counter)
        rows = [{"shard": json.dumps(_portable(shard))} for shard, _ in pending]
        items = ray.data.from_items(rows, override_num_blocks=len(rows))
        done = items.map(
            Actor,
            fn_constructor_args=(args.words, os.getcwd(), dtype, device_type, begin),
            compute=ray.data.ActorPoolStrategy(size=n_actors, max_tasks_in_flight_per_actor=1),
            **_restarts(items.map, RETRIES + len(rows)),
            **resources,
        )
        lost = {shard.name for shard, _ in pending}
        for batch in done.iter_batches(batch_size=None, prefetch_batches=0):
            for text in batch["outcome"]:
                *outcome, said = json.loads(text)
                sys.stderr.write(said)
                lost.discard(outcome[0])
                yield Outcome(*outcome)
        for name in sorted(lost):
            yield Outcome(name, 2, NO_OUTCOME)
    except ray.exceptions.RayError as problem:
        reason = remote.mask(_lines(problem)[-1])
        raise InputError(
            f"--engine ray: {reason}; every node needs this version of jaxscore, the model and "
            "the files; finished shards stay, and the same command goes on"
        ) from None
    finally:
        with contextlib.redirect_stdout(io.StringIO()):  # what it has not repeated yet
            ray.shutdown()


def _restarts(method: Callable[..., Any], limit: int) -> dict[str, int]:
    """The option of Ray Data that bounds how often processes are started again, if it has one.

    It bounds processes that are lost before they begin a shard, which nothing counts. Ray 2.64 is
    announced to take no such options, and would then start them without end.
    """
    kinds = {parameter.kind for parameter in inspect.signature(method).parameters.values()}
    return {"max_restarts": limit} if inspect.Parameter.VAR_KEYWORD in kinds else {}


class _ByThread(io.TextIOBase):
    """Standard output of one thread; what others print goes elsewhere."""

    def __init__(self, own_stream: TextIO, other: TextIO | None) -> None:
        self._own_stream, self._other, self._thread = own_stream, other, threading.get_ident()

    def write(self, text: str) -> int:
        """Write to the stream of the thread that calls."""
        stream = self._own_stream if threading.get_ident() == self._thread else self._other
        return len(text) if stream is None else stream.write(text)

    def flush(self) -> None:
        """Flush the stream of the first thread."""
        self._own_stream.flush()


def _writes_to(stream: TextIO, descriptor: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stream.fileno() == descriptor
    return False


@contextlib.contextmanager
def _own_streams(quiet: bool) -> Iterator[None]:
    """Keep stdout for this command; with --quiet Ray, which writes itself, is silent.

    A thread of Ray prints which processes it lost, and its core writes to the descriptor of stderr.
    """
    with contextlib.ExitStack() as stack:
        if quiet:
            stderr = stack.enter_context(os.fdopen(os.dup(2), "w", buffering=1))
            if _writes_to(sys.stderr, 2):
                stack.enter_context(contextlib.redirect_stderr(stderr))
            nowhere = stack.enter_context(open(os.devnull, "w"))
            os.dup2(nowhere.fileno(), 2)
            stack.callback(os.dup2, stderr.fileno(), 2)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "`ray_remote_args`", DeprecationWarning)  # of `_restarts`
        other = None if quiet else sys.stderr
        stack.enter_context(contextlib.redirect_stdout(cast(TextIO, _ByThread(sys.stdout, other))))
        yield


@contextlib.contextmanager
def _watched_head(args: argparse.Namespace) -> Iterator[None]:
    """End this process if the head node is lost: Ray would wait, and then abort it."""
    import ray

    address = _address() or ""
    if "//" not in address:
        address = ray.get_runtime_context().gcs_address
    stop = threading.Event()

    def watch() -> None:
        lost = None
        while not stop.wait(PAUSE):
            try:
                _check_reachable(address)
            except InputError:
                lost = lost or time.monotonic()
                if time.monotonic() - lost > LOSS:
                    processes.exit_now(
                        2,
                        f"jaxscore {args.command}: error: --engine ray: the head node at "
                        f"{remote.mask(address)} was lost; finished shards stay, and the same "
                        "command goes on",
                    )
            else:
                lost = None

    thread = threading.Thread(target=watch, name="ray-head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


def _lines(problem: Exception) -> list[str]:
    return str(problem).strip().splitlines() or [type(problem).__name__]


def _address() -> str | None:
    return os.environ.get(ADDRESS) or None


def _check_reachable(address: str) -> None:
    """See that a process listens there, if an address names host and port.

    Raises:
        InputError: none does.
    """
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        if parts.hostname and parts.port:
            socket.create_connection((parts.hostname, parts.port), timeout=CONNECT).close()
    except (OSError, ValueError) as problem:
        raise InputError(
            f"--engine ray: {ADDRESS} {remote.mask(address)} cannot be reached ({problem}); give "
            "the address of a running cluster, or unset it for a local one"
        ) from None


def _connect(args: argparse.Namespace) -> None:
    import ray

    level = logging.ERROR if args.quiet else logging.WARNING
    logging.getLogger("ray.data").setLevel(level)
    options: dict[str, Any] = {}
    if (address := _address()) is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of ours reports nothing
        n_cpus = max(os.cpu_count() or 1, (args.actors or 1) + 1)
        options = {"include_dashboard": False, "num_cpus": n_cpus}
    else:
        _check_reachable(address)
    try:
        ray.init(address or "local", log_to_driver=False, logging_level=level, **options)
    except Exception as problem:  # of several unrelated kinds
        cluster = "a local cluster" if address is None else f"{ADDRESS} {remote.mask(address)}"
        reason = remote.mask(_lines(problem)[0])
        raise InputError(f"--engine ray: {cluster} cannot be used ({reason})") from None


def _pool(args: argparse.Namespace, n_shards: int) -> tuple[int, str, dict[str, Any]]:
    """Number of actors, their kind of device, and what each takes of its node.

    Raises:
        InputError: the cluster has no such devices, and --actors does not say how many will come.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if getattr(args, "api_base", None) is not None or getattr(args, "device", None) is not None:
        device_type = KINDS[getattr(args, "device", None) or "cpu"]
    else:
        device_type = next(
            (
                device_type
                for device_type in ("GPU", "TPU")
                if any(device_type in node for node in nodes)
            ),
            "CPU",
        )
    mesh = getattr(args, "mesh", AUTO)
    n_devices = 1 if mesh == AUTO or device_type == "CPU" else MeshShape.parse(mesh).size
    n_places = sum(
        1 if device_type == "CPU" else int(node[device_type]) // n_devices
        for node in nodes
        if device_type in node
    )
    if not n_places and (args.actors is None or _address() is None):
        raise InputError(
            f"--engine ray: no node has {n_devices} {device_type} for an actor; give another "
            "--device or --mesh, or --actors N if the cluster grows"
        )
    n_actors = min(args.actors or n_places, n_shards)
    if n_actors > n_places and (
        device_type != "CPU" or not n_places
    ):  # a node takes several on CPUs
        waiting = "" if n_places else "; waiting"
        messages.remark(args, f"--actors {n_actors}: there are places for {n_places} now{waiting}")
    resources: dict[str, dict[str, Any]] = {
        "CPU": {"num_cpus": 1},
        "GPU": {"num_gpus": n_devices, "num_cpus": 0},
        "TPU": {"resources": {"TPU": n_devices}, "num_cpus": 0},
    }
    return n_actors, device_type, resources[device_type]


def _portable(shard: Shard) -> Mapping[str, Any]:
    """A shard in JSON; paths of addresses are local to a process."""
    assert shard.output is not None
    return {
        "source": remote.address_of(shard.source) or str(shard.source),
        "name": shard.name,
        "output": remote.address_of(shard.output) or str(shard.output),
        "identity": shard.identity,
        "beside": shard.beside and (remote.address_of(shard.beside) or str(shard.beside)),
    }


class Attempts:
    """Counts how often each shard was begun, in a process that outlives the pool's.

    Ray's own limit of retries also counts refused connections to a node that was just lost.
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()

    def begin(self, name: str) -> int:
        """Count an attempt; returns its number, from 1."""
        self._counts[name] += 1
        return self._counts[name]


def _begin(counter: Any, name: str) -> int:
    import ray

    return int(ray.get(counter.begin.remote(name)))


class Actor:
    """One process of the pool: the parsed command, and the model from the first shard on."""

    def __init__(
        self,
        words: Sequence[str],
        folder: str,
        dtype: str | None,
        device_type: str,
        begin: Callable[[str], int],
    ) -> None:
        self._words, self._folder, self._device_type, self._begin = (
            words,
            folder,
            device_type,
            begin,
        )
        self._shard_run = ShardRun(dtype=dtype)
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
                said.write(remote.mask(traceback.format_exc()))
                problem = remote.mask(f"{type(found).__name__}: {found}")
        return {"outcome": json.dumps([facts["name"], code, problem, said.getvalue()])}

    def _score(self, facts: Mapping[str, Any]) -> int:
        if self._begin(facts["name"]) > RETRIES + 1:
            raise InputError(LOST)
        if self._args is None:
            os.chdir(self._folder)  # relative paths mean what they mean to the command
            name, *flags = self._words
            self._args = app.values(app.command(name), flags)
            self._args.quiet = True  # bars of several actors would mix
            if self._device_type != "CPU" and getattr(self._args, "device", "") is None:
                self._args.device = (
                    self._device_type.lower()
                )  # otherwise JAX may take the CPU in silence
        args = self._args
        names = [name for name in ("source", "output", "beside") if facts[name] is not None]
        places = {name: remote.stage(facts[name]) for name in names}
        shard = Shard(name=facts["name"], identity=facts["identity"], **places)
        if not listings(args.output):
            raise InputError(
                f"{remote.displayed(args.output)}: not found on {socket.gethostname()}; give a "
                "folder that all nodes share, or one in a store"
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            [state] = shards.states_of(args, [shard])
            if state.is_finished:  # by an actor that could not say so, or holds the journal
                return int(state.has_failed)
            try:
                return shards.score_shard(
                    args, shard, self._shard_run, is_outdated=state.is_outdated
                )
            except Held:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE)

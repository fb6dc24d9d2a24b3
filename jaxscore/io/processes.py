"""Several processes as one run: each has its devices, all make the same plan, the first writes.

They run the same commands on the same inputs and send each other only what programs on the
devices send (`jaxscore.engine.devices`), digests of what they are about to do, and what the first
one has found in its journal. So nothing has to be handed out, and what one process would write is
what any of them would; it is the first that does, and the others are silent.
"""

import contextlib
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import numpy as np

from jaxscore.errors import InputError

JOIN = 300  # seconds in which all have to come
HEARTBEAT = 60  # seconds without a sign of life after which a process counts as gone
SIGNS = ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "coordination", "heartbeat")
GRACE = 10  # seconds by which JAX, which ends a process without a word of ours, is later


class _Run:
    index, count = 0, 1


def first() -> bool:
    """Whether this process writes and speaks."""
    return _Run.index == 0


def index() -> int:
    """Of this process, from 0."""
    return _Run.index


def several() -> bool:
    return _Run.count > 1


def name() -> str:
    """For messages: nothing where there is one process."""
    return f" (process {_Run.index} of {_Run.count})" if several() else ""


def join(
    coordinator: str | None = None,
    n_processes: int | None = None,
    index: int | None = None,
    timeout: int = JOIN,
    tell: Callable[[str], None] = lambda text: None,
) -> None:
    """Become one of several processes; before JAX is asked for its devices.

    Args:
        coordinator: "host:port" of the first process, the same in each. None, as the other two,
            leaves it to JAX, which knows TPU VMs, Slurm, Open MPI and Kubernetes.
        n_processes: in all.
        index: of this one, from 0.
        timeout: seconds in which all have to come; this process ends itself with code 2 and a
            message where they do not.
        tell: takes a line for people.

    Raises:
        InputError: the three do not fit together, or JAX finds no cluster.
    """
    import jax  # here: `--help` needs none

    given = [value for value in (coordinator, n_processes, index) if value is not None]
    if given and len(given) < 3:
        raise InputError(
            "--distributed: --coordinator, --num-processes and --process-id belong together; give "
            "all three, or none on a TPU VM or under Slurm"
        )
    if n_processes is not None and index is not None and not 0 <= index < n_processes:
        raise InputError(
            f"--process-id {index} of --num-processes {n_processes}: expected 0 to "
            f"{n_processes - 1}, each once"
        )
    if coordinator is not None and not coordinator.rpartition(":")[2].isdigit():
        raise InputError(
            f"--coordinator {coordinator}: expected HOST:PORT, a free port of the first process"
        )
    who = f"process {index} of {n_processes}: " if given else ""
    tell(f"{who}waiting for the others{f' at {coordinator}' if given else ''}")

    def late() -> None:
        _end(
            2,
            f"jaxscore: error: {who}not all processes came within {timeout} s; see that each was "
            "started, with the same --coordinator and its own --process-id, and that the port "
            "can be reached",
        )

    timer = threading.Timer(timeout, late)
    timer.daemon = True
    timer.start()
    # JAX would take SIGTERM for a sign to save what it trains, and go on.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with _ending_at_once():
            jax.distributed.initialize(
                coordinator,
                n_processes,
                index,
                initialization_timeout=timeout + GRACE,
                heartbeat_timeout_seconds=HEARTBEAT,
            )
    except (ValueError, RuntimeError) as problem:
        raise InputError(
            f"--distributed: no run of several processes can be joined here ({problem}); give "
            "--coordinator HOST:PORT, --num-processes N and --process-id K"
        ) from None
    finally:
        timer.cancel()
    _Run.index, _Run.count = jax.process_index(), jax.process_count()


@contextlib.contextmanager
def _ending_at_once() -> Iterator[None]:
    """Ctrl-C ends this process: Python's own handler would wait until all have come."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def agree(what: str, digest: bytes) -> None:
    """See that all processes have come to the same point with the same.

    Args:
        what: for the message, as "flags".
        digest: of what has to be the same; of one length in all.

    Raises:
        InputError: some have another; in each process.
    """
    if not several():
        return
    from jax.experimental import multihost_utils

    mine = np.frombuffer(hashlib.sha256(what.encode() + digest).digest(), np.uint8)
    found = np.asarray(multihost_utils.process_allgather(mine)).reshape(_Run.count, -1)
    others = [k for k in range(_Run.count) if (found[k] != found[0]).any()]
    if others:
        raise InputError(
            f"processes {', '.join(map(str, others))} have other {what} than process 0: each "
            "needs the same command, the same version of jaxscore and the same files, those that "
            "an earlier run left behind included"
        )


def from_first(value: bytes) -> bytes:
    """What the first process gives here; the others' values are not looked at."""
    if not several():
        return value
    from jax.experimental import multihost_utils

    size = multihost_utils.broadcast_one_to_all(np.int32(len(value)))
    buffer = np.zeros(int(size), np.uint8)
    if first():
        buffer[:] = np.frombuffer(value, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()


def lost(problem: Exception) -> bool:
    """Whether this is how a program fails when another process is gone."""
    return several() and any(sign in str(problem) for sign in SIGNS)


def leave(code: int) -> int:
    """End this process's part of the run with this exit code.

    One that ends well waits for the others. One that does not ends at once, so that the others,
    which may wait for it on their devices, see that it is gone.
    """
    if not several():
        return code
    if code not in (0, 1):
        _end(code)
    import jax

    jax.distributed.shutdown()
    _Run.index, _Run.count = 0, 1
    return code


def _end(code: int, said: str = "") -> NoReturn:
    if said:
        print(said, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

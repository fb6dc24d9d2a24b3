"""Multi-process runs: every process has its devices and builds the same plan; the first writes.

All processes run the same command on the same inputs. They exchange only what programs on the
devices send (`jaxscore.engine.devices`), digests of the next step, and the entries that the first
process found in its journal. No work is distributed: any process could write the results, and the
first one does while the others stay silent.
"""

import contextlib
import ctypes
import hashlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from jaxscore.errors import InputError

JOIN = 300  # seconds until all processes must have joined
HEARTBEAT = 60  # seconds without a heartbeat after which a process counts as lost
SIGNS = ("Gloo", "NCCL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "coordination", "heartbeat")
GRACE = 10  # seconds that JAX, which would exit without our message, waits longer
LOST = 2  # exit code if another process is gone
PEER_LOSS = "another process of this run has ended"
PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends


class _Run:
    index, count = 0, 1
    note: int | None = None  # descriptor of the file for `note_journal`
    jax_process: int | None = None  # process that had started JAX's threads when it was forked


def is_first() -> bool:
    """Return True if this process writes files and messages."""
    return _Run.index == 0


def process_index() -> int:
    """Return the index of this process, from 0."""
    return _Run.index


def is_distributed() -> bool:
    """Return True if the run has more than one process."""
    return _Run.count > 1


def process_label() -> str:
    """Return a suffix for messages; empty in a single-process run."""
    return f" (process {_Run.index} of {_Run.count})" if is_distributed() else ""


def _note_jax() -> None:
    """Note, before a fork, that this process has started JAX's threads, which no child has."""
    bridge = sys.modules.get("jax._src.xla_bridge")  # JAX lacks a public name for this
    if bridge is not None and bridge.backends_are_initialized():
        _Run.jax_process = _Run.jax_process or os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_note_jax)


def check_not_forked() -> None:
    """Check that JAX works in this process.

    Call it before any lock is taken: another thread may have held the lock at the fork.

    Raises:
        InputError: the process was forked after its parent had used JAX, so it would hang.
    """
    if _Run.jax_process not in (None, os.getpid()):
        raise InputError(
            f"process {os.getpid()} was forked from process {_Run.jax_process} after JAX had been "
            "used there; JAX's threads do not exist in a forked process, so it would hang; start "
            'workers by spawn (multiprocessing.get_context("spawn"), multiprocessing_context='
            '"spawn" of a DataLoader), or before the first use of JAX'
        )


def join(
    coordinator: str | None = None,
    n_processes: int | None = None,
    index: int | None = None,
    timeout: int = JOIN,
    notify: Callable[[str], None] = lambda text: None,
) -> None:
    """Join a multi-process run; call it before JAX initializes its devices.

    Args:
        coordinator: "host:port" of the first process, the same in every process. If it and the
            next two are None, JAX detects TPU VMs, Slurm, Open MPI and Kubernetes.
        n_processes: number of processes in the run.
        index: index of this process, from 0.
        timeout: seconds until all processes must have joined; otherwise this process exits with
            code 2 and a message.
        notify: prints a line for the user.

    Raises:
        InputError: the three arguments are inconsistent, or JAX finds no cluster.
    """
    import jax  # deferred: `--help` does not need it

    is_manual = _check_cluster(coordinator, n_processes, index)
    label = f"process {index} of {n_processes}: " if is_manual else ""
    notify(f"{label}waiting for the others{f' at {coordinator}' if is_manual else ''}")
    message = (
        f"jaxscore: error: {label}not all processes came within {timeout} s; check that each was "
        "started, with the same --coordinator and its own --process-id, and that the port "
        "can be reached"
    )
    timer = threading.Timer(timeout, exit_now, (2, message))
    timer.daemon = True
    timer.start()
    # JAX would treat SIGTERM as a request to save a training checkpoint, and continue.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        with _default_sigint():
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
    note_journal(None)


def supervise(run: Callable[[], int], describe_end: Callable[[str, str, Path | None], str]) -> int:
    """Run one process of a run in a child process, which JAX may abort.

    JAX's threads call `abort` when the coordinator is gone or names a lost process, and the main
    thread may wait in native code for ever meanwhile, so this process cannot report the reason.

    Args:
        run: returns the exit code.
        describe_end: formats `process_label()`, the reason, and the journal or None.

    Returns:
        The child's exit code. If a signal ended it, after the message: `LOST` for SIGABRT in a run
        of several processes, otherwise 128 and the signal's number.
    """
    with tempfile.TemporaryFile() as note:
        sys.stdout.flush()
        sys.stderr.flush()
        parent, shares_group = os.getpid(), _is_in_foreground()
        # Signals wait until the parent has its handlers.
        passed_on = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
        child = os.fork()
        if not child:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _Run.note = note.fileno()
            return _exit_with_parent(parent, shares_group=shares_group) or run()
        _, status = _wait(child, mask, shares_group=shares_group)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        label, _, journal = os.pread(note.fileno(), 1 << 16, 0).decode().partition("\n")
    is_lost = -code == signal.SIGABRT and bool(label)
    why = PEER_LOSS if is_lost else f"ended by {signal.Signals(-code).name}"
    print(describe_end(label, why, Path(journal) if journal else None), file=sys.stderr)
    return LOST if is_lost else 128 - code


def _is_in_foreground() -> bool:
    """Return True if a stream is a terminal and this process is in its foreground group."""
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # no terminal, or not this session's
            return os.tcgetpgrp(stream) == os.getpgrp()
    return False


def _exit_with_parent(parent: int, *, shares_group: bool) -> int:
    """Let the end of the parent end this process, also by SIGKILL; returns 0 if the parent lives.

    Args:
        shares_group: stay in the parent's process group, which may use the terminal. Elsewhere the
            child has its own group, so that a signal for the parent's reaches it once.
    """
    if not shares_group:
        os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return 0 if os.getppid() == parent else LOST


def _wait(child: int, mask: set[Any], *, shares_group: bool) -> tuple[int, int]:
    """Wait for a child, and pass signals on to it that the terminal does not send to both.

    Args:
        mask: signals to block once the handlers are set.
    """

    def pass_on(number: int, _: Any) -> None:
        os.kill(child, number)

    of_terminal = signal.SIG_IGN if shares_group else pass_on
    handlers: dict[int, Any] = {
        signal.SIGINT: of_terminal,
        signal.SIGHUP: of_terminal,
        signal.SIGTERM: pass_on,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        return os.waitpid(child, 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def note_journal(path: Path | None) -> None:
    """Name this process and its journal to the process that supervises it."""
    if _Run.note is not None:
        os.ftruncate(_Run.note, 0)
        os.pwrite(_Run.note, f"{process_label()}\n{path or ''}".encode(), 0)


def _check_cluster(coordinator: str | None, n_processes: int | None, index: int | None) -> bool:
    """Check the arguments of `join`; return True if they are set."""
    if coordinator is None and n_processes is None and index is None:
        return False
    if coordinator is None or n_processes is None or index is None:
        raise InputError(
            "--distributed: --coordinator, --num-processes and --process-id belong together; give "
            "all three, or none on a TPU VM or under Slurm"
        )
    if not 0 <= index < n_processes:
        raise InputError(
            f"--process-id {index} of --num-processes {n_processes}: expected 0 to "
            f"{n_processes - 1}, each once"
        )
    if not coordinator.rpartition(":")[2].isdigit():
        raise InputError(
            f"--coordinator {coordinator}: expected HOST:PORT, a free port of the first process"
        )
    return True


@contextlib.contextmanager
def _default_sigint() -> Iterator[None]:
    """Let Ctrl-C end this process: Python's handler would wait until all have joined."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def verify_same(name: str, digest: bytes) -> None:
    """Check that all processes reached this point with the same value.

    Args:
        name: name of the compared values, for the message, such as "flags".
        digest: digest of the value, of the same length in every process.

    Raises:
        InputError: in every process, if the digests differ.
    """
    if not is_distributed():
        return
    local = np.frombuffer(hashlib.sha256(name.encode() + digest).digest(), np.uint8)
    digests = _gather(local)
    differing = [k for k in range(_Run.count) if (digests[k] != digests[0]).any()]
    if differing:
        raise InputError(
            f"processes {', '.join(map(str, differing))} have other {name} than process 0: each "
            "needs the same command, the same version of jaxscore and the same files, those that "
            "an earlier run left behind included"
        )


def those_without(condition: bool) -> list[int]:
    """Return the indices of the processes in which a condition is false; the same list in each."""
    return np.flatnonzero(~_gather(np.array([condition]))[:, 0]).tolist()


def _gather(array: np.ndarray) -> np.ndarray:
    """Stack an array of each process."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array)).reshape(_Run.count, -1)


def broadcast_from_first(value: bytes) -> bytes:
    """Return the first process's value in every process; other values are ignored."""
    if not is_distributed():
        return value
    from jax.experimental import multihost_utils

    size = multihost_utils.broadcast_one_to_all(np.int32(len(value)))
    buffer = np.zeros(int(size), np.uint8)
    if is_first():
        buffer[:] = np.frombuffer(value, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()


def is_peer_loss(problem: Exception) -> bool:
    """Return True if a program failed because another process ended."""
    return is_distributed() and any(sign in str(problem) for sign in SIGNS)


def leave(code: int) -> int:
    """End this process's part of the run with this exit code.

    A successful process waits for the others. A failing one exits at once, so that the others,
    which may be waiting for it on their devices, notice that it is gone.
    """
    if not is_distributed():
        return code
    if code not in (0, 1):
        exit_now(code)
    import jax

    try:
        jax.distributed.shutdown()
    except RuntimeError:  # this process has done its work
        exit_now(LOST, f"jaxscore{process_label()}: error: {PEER_LOSS}")
    _Run.index, _Run.count = 0, 1
    return code


def exit_now(code: int, message: str = "") -> NoReturn:
    """End this process without waiting for other processes or threads."""
    if message:
        print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

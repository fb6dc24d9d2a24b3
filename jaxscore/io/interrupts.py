"""Ctrl-C: the first press finishes in-flight batches, the second aborts.

In-flight batches are seconds of work that the journal can keep. Long work therefore polls
`interrupt_requested` between its steps, inside `finish_on_interrupt`; everywhere else Ctrl-C
raises KeyboardInterrupt as usual.

Python calls a signal handler in the main thread, between two bytecode instructions. While that
thread compiles a program, which takes up to minutes, another thread counts the presses.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import NoReturn, TypeVar

from jaxscore.errors import INTERRUPTED
from jaxscore.io import processes

NOTICE = "Finishing in-flight batches. Press Ctrl-C again to abort."
Item = TypeVar("Item")

PATIENCE = 5.0  # seconds that the main thread has to react to a second Ctrl-C


class _State:
    requested = False
    n_finishing = 0  # nested `finish_on_interrupt` blocks
    aborting = threading.Event()  # KeyboardInterrupt was raised: the run is closing its files
    clean_up: Callable[[], object]


@contextlib.contextmanager
def handle_interrupts(clean_up: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Install the SIGINT handler. No-op outside the main thread.

    Args:
        clean_up: removes temporary files before the process exits without closing them: on Ctrl-C
            during an import, on the third press, or if the main thread does not react to the
            second one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.requested, _State.n_finishing = False, 0
    _State.aborting.clear()
    _State.clean_up = clean_up
    previous = signal.signal(signal.SIGINT, _on_sigint)
    try:
        with _count_presses():
            yield
    finally:
        signal.signal(signal.SIGINT, previous)
        _State.requested, _State.n_finishing = False, 0


@contextlib.contextmanager
def finish_on_interrupt() -> Iterator[None]:
    """Mark a block that polls `interrupt_requested` and finishes its work on the first Ctrl-C."""
    _State.n_finishing += 1
    try:
        yield
    finally:
        _State.n_finishing -= 1


def interrupt_requested() -> bool:
    """Return True if the user pressed Ctrl-C and the run should end.

    In a multi-process run the first process decides: one that stopped alone would leave the
    others waiting for batches that it never sends.
    """
    return _State.requested and processes.is_first()


def until_interrupt(items: Iterable[Item]) -> Iterator[Item]:
    """Pass items through until an interrupt is requested.

    For inputs of the scoring pipeline, which then raises KeyboardInterrupt once in-flight batches
    are finished: a shorter input is never taken for a complete one.
    """
    for item in items:
        if interrupt_requested():
            return
        yield item


def interrupt_requested_anywhere() -> bool:
    """Return `interrupt_requested` of the first process, in every process.

    All processes call this at the same points of their work, so that they continue together until
    in-flight batches are finished.
    """
    return processes.broadcast_from_first(bytes([interrupt_requested()])) == bytes([True])


def ended_by_interrupt() -> bool:
    """Return True if KeyboardInterrupt was raised in the last `handle_interrupts` block.

    Other exceptions of such a run follow from it: a module whose import is interrupted may raise
    its own error.
    """
    return _State.aborting.is_set()


def _on_sigint(number: int, frame: FrameType | None) -> None:
    if _State.requested or not _State.n_finishing:
        if _is_importing(frame):  # native modules crash if their import is interrupted
            _exit_now()
        _State.aborting.set()
        raise KeyboardInterrupt
    _State.requested = True
    if processes.is_first():
        print(NOTICE, file=sys.stderr, flush=True)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _count_presses() -> Iterator[None]:
    """Exit for the main thread if it cannot react: it may be in native code for minutes."""
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)

    def count() -> None:
        n_presses = 0
        while n_presses < 3:
            receiver.settimeout(PATIENCE if n_presses == 2 else None)
            try:
                received = receiver.recv(64)
            except TimeoutError:
                if _State.aborting.is_set():
                    continue
                break
            if not received:  # the block has ended
                return
            n_presses += received.count(signal.SIGINT)
        _exit_now()

    thread = threading.Thread(target=count, name="jaxscore interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        sender.close()  # ends the thread
        thread.join()
        receiver.close()


def _exit_now() -> NoReturn:
    """Exit without unwinding. The journal keeps its entries."""
    with contextlib.suppress(Exception):
        _State.clean_up()
    if processes.is_first():
        with contextlib.suppress(OSError):
            os.write(2, b"jaxscore: interrupted; unfinished files are left as they were\n")
    os._exit(INTERRUPTED)

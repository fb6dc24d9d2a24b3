"""Ctrl-C: the first one lets the batches in flight finish, the second one ends at once.

What is on the device when a user stops a run is seconds of work that the journal can keep. So
long work asks `wished` between its steps, inside `finishing`; anywhere else Ctrl-C raises
KeyboardInterrupt as it always does.

Python calls a signal's handler in the main thread, between two of its own steps. While that thread
compiles a program, which takes up to minutes, a thread of ours counts the presses.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from jaxscore.errors import INTERRUPTED
from jaxscore.io import processes

NOTICE = "interrupted: what is in flight is being finished; once more ends at once"
PATIENCE = 5.0  # seconds that the main thread has to take up a second Ctrl-C


class _Wish:
    made = False
    n_finishing = 0  # pieces of work, one inside the other, that will see it
    ending = threading.Event()  # KeyboardInterrupt has been raised: the run is closing its files
    clean: Callable[[], object]


@contextlib.contextmanager
def listening(clean: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Install the SIGINT handler. No-op outside the main thread.

    Args:
        clean: removes temporary files, before the process ends without closing them: at Ctrl-C
            while a module is imported, at a third one, or when the main thread does not take up
            the second one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Wish.made, _Wish.n_finishing = False, 0
    _Wish.ending.clear()
    _Wish.clean = clean
    before = signal.signal(signal.SIGINT, _wish)
    try:
        with _counted():
            yield
    finally:
        signal.signal(signal.SIGINT, before)
        _Wish.made, _Wish.n_finishing = False, 0


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """The block asks `wished` often and ends by itself."""
    _Wish.n_finishing += 1
    try:
        yield
    finally:
        _Wish.n_finishing -= 1


def wished() -> bool:
    """Whether the user wants the run to end.

    Of several processes the first decides: one that stopped alone would leave the others waiting
    for batches that it never sends.
    """
    return _Wish.made and processes.first()


def wished_by_all() -> bool:
    """`wished`, the same in every process. All of them ask at the same points of their work, so
    that they can go on together until what is in flight is finished."""
    return processes.from_first(bytes([wished()])) == bytes([True])


def ended_by_user() -> bool:
    """Whether the last run that was `listening` has raised KeyboardInterrupt.

    What else such a run raises comes from that: a module whose import is interrupted may fail
    with an error of its own.
    """
    return _Wish.ending.is_set()


def _wish(number: int, frame: FrameType | None) -> None:
    if _Wish.made or not _Wish.n_finishing:
        if _imports(frame):  # native modules crash where their import is interrupted
            _leave()
        _Wish.ending.set()
        raise KeyboardInterrupt
    _Wish.made = True
    if processes.first():
        print(NOTICE, file=sys.stderr, flush=True)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _counted() -> Iterator[None]:
    """End the process where the main thread does not: it may be in native code for minutes."""
    ours, signals = socket.socketpair()
    signals.setblocking(False)
    before = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)

    def count() -> None:
        n_pressed = 0
        while n_pressed < 3:
            ours.settimeout(PATIENCE if n_pressed == 2 else None)
            try:
                received = ours.recv(64)
            except TimeoutError:
                if _Wish.ending.is_set():
                    continue
                break
            if not received:  # the block has ended
                return
            n_pressed += received.count(signal.SIGINT)
        _leave()

    thread = threading.Thread(target=count, name="jaxscore interrupts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        signals.close()  # which ends the thread
        thread.join()
        ours.close()


def _leave() -> NoReturn:
    """End the process where it stands. What is in the journal stays there."""
    with contextlib.suppress(Exception):
        _Wish.clean()
    if processes.first():
        with contextlib.suppress(OSError):
            os.write(2, b"jaxscore: interrupted; unfinished files are left as they were\n")
    os._exit(INTERRUPTED)

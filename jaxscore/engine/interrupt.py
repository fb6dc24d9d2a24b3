"""Ctrl-C: the first one lets the batches in flight finish, the second one ends at once.

What is on the device when a user stops a run is seconds of work that the journal can keep. So
long work asks `wished` between its steps, inside `finishing`; anywhere else Ctrl-C raises
KeyboardInterrupt as it always does.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from jaxscore.engine import processes

NOTICE = "interrupted: what is in flight is being finished; once more ends at once"


class _Wish:
    made = False
    n_finishing = 0  # pieces of work, one inside the other, that will see it


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Take Ctrl-C in this way; of no effect but in the main thread, which alone can be told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Wish.made, _Wish.n_finishing = False, 0
    before = signal.signal(signal.SIGINT, _wish)
    try:
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


def _wish(number: int, frame: FrameType | None) -> None:
    if _Wish.made or not _Wish.n_finishing:
        raise KeyboardInterrupt
    _Wish.made = True
    if processes.first():
        print(NOTICE, file=sys.stderr, flush=True)

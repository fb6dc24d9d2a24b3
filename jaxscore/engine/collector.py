"""Python's collector of cycles, while a run lasts: it looks seldom, and at what is new.

A window of requests is some hundred thousand objects without a cycle among them, beside as many of
JAX and transformers. With Python's defaults the collector walks through all of them for each
quarter that is added, and every thread of the run waits: 0.2 s in a run of 10,000 texts.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

SELDOM = (50_000, 20, 100)  # as `gc.set_threshold` takes them


class _Blocks:
    """The blocks of `calm` that have begun in this process and not ended."""

    lock = threading.Lock()
    n = 0
    before: tuple[int, int, int] = SELDOM
    set: tuple[int, int, int] = SELDOM  # as Python tells it: some releases have no third number
    passed_over = False


@contextlib.contextmanager
def calm() -> Iterator[None]:
    """Collect seldom until all such blocks have ended, in any order, and then as before."""
    with _Blocks.lock:
        if not _Blocks.n:
            _Blocks.before = gc.get_threshold()
            gc.set_threshold(*SELDOM)
            _Blocks.set = gc.get_threshold()
        _Blocks.n += 1
    try:
        yield
    finally:
        with _Blocks.lock:
            _Blocks.n -= 1
            if not _Blocks.n:
                if gc.get_threshold() == _Blocks.set:  # nobody has asked for another since
                    gc.set_threshold(*_Blocks.before)
                if _Blocks.passed_over:
                    gc.unfreeze()
                _Blocks.passed_over = False


def pass_over() -> None:
    """Never look at what exists now until all blocks of `calm` end: modules and a model stay.

    For a process that is ours: what its user has frozen is looked at again afterwards.
    """
    gc.freeze()
    _Blocks.passed_over = True

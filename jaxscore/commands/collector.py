"""Python's collector of cycles, in a process that is ours: it looks seldom, and at what is new.

A window of requests is some hundred thousand objects without a cycle among them, beside as many of
JAX and transformers. With Python's defaults the collector walks through all of them for each
quarter that is added, and every thread of the run waits.
"""

import contextlib
import gc
from collections.abc import Iterator

SELDOM = (50_000, 20, 100)  # as `gc.set_threshold` takes them


@contextlib.contextmanager
def calm() -> Iterator[None]:
    """Collect seldom in the block, and as before after it."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def pass_over() -> None:
    """Never look at what exists now until the block of `calm` ends: modules and a model stay."""
    gc.freeze()

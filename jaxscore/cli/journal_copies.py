"""Copies of a journal in the store of a remote output, for a worker that goes on elsewhere.

A journal is locked and written on the worker's own disk, which a preempted machine loses. A copy of
it lies beside the output while the output is not finished.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io import processes, remote
from jaxscore.io.atomic import temporary_folder

PERIOD = 60.0  # least seconds between two copies
SHARE = 20  # and least multiple of the last copy's seconds: each copies the whole file


@contextlib.contextmanager
def copied_journal(path: Path, loaded: Callable[[], Any]) -> Iterator[None]:
    """Fetch the copy of an earlier worker, and copy the journal while the block runs.

    Args:
        path: of the journal, in the local folder of the output's address.
        loaded: gives the scorer, or None while no model is loaded.

    Raises:
        InputError: the store does not answer.
    """
    if not processes.is_first():
        yield
        return
    remote.restore(path)
    stop = threading.Event()
    copies = _Copies(path, loaded)
    thread = threading.Thread(target=copies.run, args=(stop,), name="journal-copies", daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        stop.set()
        thread.join()
        copies.copy()  # the run ends early, and may go on elsewhere
        raise
    finally:
        stop.set()
        thread.join()


class _Copies:
    def __init__(self, path: Path, loaded: Callable[[], Any]) -> None:
        self._path, self._loaded = path, loaded
        self._n_copied = 0

    def run(self, stop: threading.Event) -> None:
        """Copy the journal from time to time."""
        pause = PERIOD
        while not stop.wait(pause):
            started = time.monotonic()
            self.copy()
            pause = max(PERIOD, SHARE * (time.monotonic() - started))

    def copy(self) -> None:
        """Copy the journal if it has grown; a store that does not answer ends no run."""
        scorer = self._loaded()
        journal = None if scorer is None else scorer.journal
        if journal is None or journal.path != self._path:
            return
        if (n_written := journal.n_written) == self._n_copied:
            return
        with (
            contextlib.suppress(InputError, OSError),
            temporary_folder(self._path.with_name("copy")) as folder,
        ):
            journal.copy(folder / self._path.name)
            remote.send(folder / self._path.name, self._path)
            self._n_copied = n_written

"""Uploads an output to its store: copies of its journal while it is computed, then all its files.

A journal is locked and written on the worker's disk, which a preempted machine loses. A copy of it
is next to the remote output until the output is finished, for a worker that continues elsewhere.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io import processes, remote
from jaxscore.io.atomic import temporary_folder
from jaxscore.io.manifest import add_identities

PERIOD = 60.0  # least seconds between two copies of a journal
SHARE = 20  # and least multiple of the last copy's seconds: each copies the whole file


def _stamp(path: Path) -> tuple[int, int]:
    """Return facts that change when a local file is replaced or written."""
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns


class Taken(InputError):
    """Another worker has written the output."""


class Upload:
    """Files of one output, from its local folder to its store.

    A file that was missing when the run began is only created, so that of two workers with the
    same output one is refused. Together with the order, manifest last, this makes the manifest
    true.
    """

    def __init__(self, output: Path, manifest: Path) -> None:
        """List the files that the store has.

        Args:
            output: the local path of an address.
            manifest: the path of the output's manifest.

        Raises:
            InputError: the store is read-only, or does not answer.
        """
        self._output, self._manifest = output, manifest
        remote.check_writable(output)
        remote.create_output_folder(output)
        self._before = {path: remote.identity(path) for path in (output, manifest)}
        self._stale = {path: _stamp(path) for path in self._files()}  # of a failed upload

    def finish(self) -> None:
        """Upload all files, and remove the local ones with their journal.

        The old manifest is removed first: it never describes the output of another run.

        Raises:
            Taken: another worker has written the output meanwhile.
            InputError: the store refuses.
        """
        if not processes.is_first():
            return
        for path in self._before:
            self._check_unchanged(path)
        if self._before[self._manifest] is not None:
            remote.remove(self._manifest)
            self._before[self._manifest] = None
        for path in sorted(self._files(), key=lambda path: path == self._manifest):
            if path == self._manifest:
                add_identities(path)
            if path in self._before or self._stale.get(path) != _stamp(path):
                self._put(path)
        shutil.rmtree(self._output.parent, ignore_errors=True)

    def _files(self) -> list[Path]:
        """Return the local files without the journal and unfinished files, by name."""
        folder = self._output.parent
        return [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and not any(
                name.startswith(".") and name != self._output.name
                for name in path.relative_to(folder).parts
            )
        ]

    def _check_unchanged(self, path: Path) -> None:
        before = self._before.get(path)
        if before is not None and remote.identity(path) != before:
            raise self._taken(path)

    def _put(self, path: Path) -> None:
        self._check_unchanged(path)
        is_new = path in self._before and self._before[path] is None
        n_tries = 0

        def mode() -> str:
            nonlocal n_tries
            n_tries += 1
            is_begun = n_tries > 1 and self._is_begun(path)
            return "create" if is_new and not is_begun else "overwrite"

        try:
            remote.send(path, path, mode)
        except FileExistsError:
            raise self._taken(path) from None
        except InputError as problem:
            raise InputError(
                f"{problem}; the results are in {path.parent} on this machine, and the same "
                "command goes on with them"
            ) from None

    def _is_begun(self, path: Path) -> bool:
        """Return True if the store has the file, or its beginning, from a try of this run.

        Raises:
            FileExistsError: another worker has written it between two tries.
        """
        before = self._before.get(path)
        if path not in self._before or (stored := remote.read_bytes(path)) is None:
            return False
        if path.read_bytes().startswith(stored):
            return True
        if before is None or remote.identity(path) != before:
            raise FileExistsError(str(path))
        return False

    def _taken(self, path: Path) -> Taken:
        return Taken(
            f"{remote.displayed(path)}: another worker wrote it while this one computed, and it is "
            "left as it is; the same command reports if it is finished"
        )


@contextlib.contextmanager
def copied_journal(
    path: Path, loaded: Callable[[], Any], add_rows: Callable[[Path, Path], None]
) -> Iterator[None]:
    """Fetch the copy of an earlier worker, and copy the journal while the block runs.

    Args:
        path: the journal, in the local folder of the output's address.
        loaded: returns the scorer, or None while no model is loaded.
        add_rows: adds the rows of the copy to the local journal, which a worker of this machine may
            have left before one of another machine made the copy.

    Raises:
        InputError: the store does not answer.
    """
    if not processes.is_first():
        yield
        return
    with remote.copy_beside(path) as copy, contextlib.suppress(InputError):
        if copy is not None:  # an unusable one is replaced; the run reports an unusable journal
            add_rows(path, copy)
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
        """Copy the journal if it has grown; ignore a store that does not answer."""
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

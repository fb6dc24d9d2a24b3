"""Files that a run reads: digests before the first read, and a check that they did not change.

A run reads most inputs more than once: to check them, to score them, to copy columns of a table. A
file that is replaced or written in between would give a mixture of both versions.
"""

import hashlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.manifest import file_digest
from jaxscore.io.remote import displayed

# Nanoseconds in which some file systems give two writes one time.
COARSEST_TIME = 2_000_000_000
# Bytes of a file that is hashed before it is read. A larger one may never end, as sparse files do,
# and reading refuses it; it is not written twice within the resolution of the clock.
MOST_HASHED_FIRST = 1 << 30


class _State(NamedTuple):
    """A file or folder at a time.

    Attributes:
        version: the size, inode and mtime of the file, or of all files of the folder.
        ctime_ns: the last change of content, name or mode; 0 for a folder.
        digest: the SHA-256 of the file; None for a folder and a file beyond `MOST_HASHED_FIRST`.
    """

    version: str
    ctime_ns: int
    digest: str | None


class InputFiles:
    """Files before a run reads them.

    Example:
        >>> files = InputFiles([path])
        >>> records = score(path)
        >>> files.check_unchanged()
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        """Hash the files; the state of a pipe or a missing file is None.

        Args:
            paths: local files and folders.
        """
        self._started = time.time_ns()
        self._states = {path: _state(path) for path in paths}
        # Digests of files hashed late, perhaps in a new version, so no check uses them.
        self._late_digests: dict[Path, str | None] = {}

    def digest(self, path: Path) -> str | None:
        """Return the SHA-256 of one of the files, or None if it has none.

        Call it after the file has been read: reading refuses an endless file.
        """
        state = self._states[path]
        if state is None or state.digest is not None:
            return None if state is None else state.digest
        if path not in self._late_digests:
            self._late_digests[path] = _digest(path)
        return self._late_digests[path]

    def check_unchanged(self) -> None:
        """Check that no file has changed.

        Raises:
            InputError: a file was replaced or written, so the results may mix both versions.
        """
        for path, before in self._states.items():
            if before is None:
                continue
            now = _version(path)
            # A write within the resolution of the clock leaves the times as they were.
            is_recent = self._started - before.ctime_ns < COARSEST_TIME
            if now is None or now[0] != before.version:
                is_same = False
            elif before.digest is None:
                is_same = now == before[:2]
            else:  # a new link or mode changes only the ctime
                is_same = (now == before[:2] and not is_recent) or _digest(path) == before.digest
            if not is_same:
                raise InputError(
                    f"{displayed(path)}: changed while this run read it; its results would be of "
                    "two versions and are not written, run the same command again"
                )


def _state(path: Path) -> _State | None:
    version = _version(path)
    if version is None:
        return None
    is_large = path.is_file() and path.stat().st_size > MOST_HASHED_FIRST
    return _State(*version, None if is_large else _digest(path))


def _version(path: Path) -> tuple[str, int] | None:
    """See `_State`."""
    try:
        if path.is_file():
            facts = path.stat()
            return f"{facts.st_size} {facts.st_ino} {facts.st_mtime_ns}", facts.st_ctime_ns
        if not path.is_dir():
            return None
        files = [
            [str(file), file.stat().st_size, file.stat().st_ino, file.stat().st_mtime_ns]
            for file in sorted(path.rglob("*"))
            if file.is_file()
        ]
    except OSError:  # reading it reports the reason
        return None
    return hashlib.sha256(json.dumps(files).encode()).hexdigest(), 0


def _digest(path: Path) -> str | None:
    try:
        return file_digest(path)
    except OSError:
        return None

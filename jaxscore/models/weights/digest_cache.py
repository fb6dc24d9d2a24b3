"""Digests of weight files that were read before, in the user's cache folder.

A file's entry is named by its device and inode and holds the version of the file that was read,
so that an entry is replaced when its file changes. An entry that is missing, damaged or cannot be
written costs the time to read the file again, and never a wrong digest.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from jaxscore.io.local_path import cache_folder

# Nanoseconds for which a file must have been left alone: a file system's clock has ticks (2 s on
# FAT, 4 ms on Linux), and two changes within one tick have the same time.
SETTLED = 2_000_000_000


class Version(NamedTuple):
    """What changes whenever a file's bytes do; the times are in nanoseconds."""

    device: int
    inode: int
    size: int
    mtime: int
    ctime: int


def version_of(path: Path) -> Version:
    """The version of the file that a path leads to."""
    facts = path.stat()
    return Version(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def remembered(version: Version) -> str | None:
    """The digest of this version of a file, hexadecimal, or None where no entry has it."""
    if (entry := _entry(version)) is None:
        return None
    try:
        lines = entry.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return None
    if len(lines) != 2 or lines != _lines(version, lines[0]):
        return None
    return lines[0]


def remember(version: Version, digest: str, read_at: int) -> None:
    """Keep a digest, if the file has been at rest for long enough.

    Args:
        digest: hexadecimal, of all bytes of the file.
        read_at: nanoseconds since the epoch, when `version` was looked up and before the file
            was read.
    """
    entry = _entry(version)
    if entry is None or read_at - version.ctime < SETTLED:
        return
    with contextlib.suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=entry.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write("".join(f"{line}\n" for line in _lines(version, digest)))
            os.replace(name, entry)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _entry(version: Version) -> Path | None:
    # On Windows the ctime is when a file was made, which tells nothing of later changes.
    folder = cache_folder("weights") if os.name == "posix" else None
    return None if folder is None else folder / f"{version.device:x}-{version.inode:x}"


def _lines(version: Version, digest: str) -> list[str]:
    """The digest, and a checksum over it and the version that it belongs to."""
    checked = hashlib.sha256(f"{tuple(version)} {digest}".encode()).hexdigest()
    return [digest, checked]

"""Files that appear whole or not at all, by temporary files and folders beside the output.

    .NAME.HOST.xxxxxxxx.tmp     HOST is a digest of the host's name and of Linux's boot id

A process locks its temporary file until the file has its final name. The lock ends with the
process, so a file whose lock is free was abandoned by a killed run, and the next run of the same
output removes it. On some shared file systems a host does not see the locks of others: only files
of this host are removed. Names of hosts repeat, and so do machine ids of equal images; boot ids do
not. So files from before a reboot stay, and so do those of a container with another host name.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from jaxscore.errors import InputError
from jaxscore.io import processes, streams
from jaxscore.io.local_path import refuse_planted_link
from jaxscore.io.streams import compressed_writer, compression_of

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing is removed
    fcntl = None  # type: ignore[assignment]

BUFFER = 1 << 20  # bytes; each write lets other threads run and then waits for them
WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
END = ".tmp"
LONGEST = 200  # most bytes of the output's name in it; most file systems allow 255 in all
BOOT = Path("/proc/sys/kernel/random/boot_id")
TRIES = 100  # of a new random name
_open: set[str] = set()  # this process's temporary files and folders


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 file that appears when the block succeeds, and never otherwise.

    A stream is written directly. A name that ends in .gz, .bz2, .xz or .zst is compressed.
    Open the file before the work starts: a path that is not writable is then refused at once. In a
    multi-process run only the first process writes.

    Raises:
        InputError: the folder cannot be created or written, or is full; `path` is a folder, a
            device that is no stream, or another user's link in a folder such as /tmp.
    """
    if not processes.is_first():
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    if streams.is_stream(path):
        with _explain_write_errors(path), streams.open_stream(path) as stream:
            yield stream
        return
    refuse_planted_link(path)
    path = Path(os.path.realpath(path))  # keep a link and replace its target
    with contextlib.ExitStack() as stack:
        try:
            if path.is_dir():
                raise InputError(f"{path}: found a folder, expected the name of a file to write")
            if path.exists() and not path.is_file():  # a file would replace /dev/null
                raise InputError(f"{path}: found a device or a socket, expected the name of a file")
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = stack.enter_context(temporary_file(path))
        except OSError as problem:
            in_the_way = isinstance(problem, FileExistsError)
            reason = f"{path.parent} is no folder" if in_the_way else problem.strerror
            raise InputError(
                f"{path}: cannot be written ({reason}); give a place that can"
            ) from None
        stack.enter_context(_explain_write_errors(path))
        if compression_of(path):
            with os.fdopen(handle, "wb", BUFFER) as raw:
                with compressed_writer(path, raw) as file:
                    yield file
                raw.flush()
                os.fsync(raw.fileno())
        else:
            with os.fdopen(handle, "w", BUFFER, encoding="utf-8", newline="\n") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        os.replace(name, path)


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno not in WRITE_ERRORS:
            raise
        raise InputError(
            f"{path}: cannot be written ({problem.strerror}); make room or give another place"
        ) from None


@contextlib.contextmanager
def temporary_file(path: Path) -> Iterator[tuple[int, str]]:
    """Create a temporary file beside an output.

    Removes it when the block ends, unless it was renamed. Removes abandoned files of the same
    output first.

    Yields:
        Its descriptor, which the caller closes, and its name.

    Raises:
        OSError: the folder is not writable.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with _temporary(path, lambda name: os.open(name, flags, 0o600)) as (handle, name):
        yield handle if fcntl is None else os.dup(handle), name


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Create a temporary folder beside an output that is a folder; see `temporary_file`."""

    def make(name: str) -> int:
        os.mkdir(name, 0o700)
        return -1 if fcntl is None else os.open(name, os.O_RDONLY)

    with _temporary(path, make) as (_, name):
        yield Path(name)


def remove_unfinished() -> None:
    """Remove this process's temporary files, before it exits at once."""
    for name in list(_open):
        with contextlib.suppress(OSError):
            _remove(name)


@contextlib.contextmanager
def _temporary(path: Path, make: Callable[[str], int]) -> Iterator[tuple[int, str]]:
    remove_abandoned(path)
    handle, name = _create_locked(path, make)
    _open.add(name)
    try:
        yield handle, name
    finally:
        with contextlib.suppress(OSError):
            _remove(name)
        _open.discard(name)
        if fcntl is not None:
            os.close(handle)  # releases the lock, last


def _create_locked(path: Path, make: Callable[[str], int]) -> tuple[int, str]:
    """Create a file or folder under a new name and lock it, if the system has locks."""
    for _ in range(TRIES):
        name = f"{_prefix(path)}{secrets.token_hex(4)}{END}"
        with contextlib.suppress(FileExistsError):
            handle = make(name)
            # Another run may have removed it as abandoned before we got the lock.
            if fcntl is None or (_lock(handle) is not False and _is_at(handle, name)):
                return handle, name
            os.close(handle)
    raise FileExistsError(f"no free name for a temporary file beside {path}")


def remove_abandoned(path: Path) -> None:
    """Remove this output's temporary files whose process has ended."""
    if fcntl is None:
        return
    prefix = re.escape(os.path.basename(_prefix(path)))
    ours = re.compile(f"{prefix}[0-9a-f]{{8}}{re.escape(END)}")
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        found += [entry.path for entry in entries if ours.fullmatch(entry.name)]
    for name in found:
        with contextlib.suppress(OSError):
            _remove_if_abandoned(name)


def _remove_if_abandoned(name: str) -> None:
    if name in _open:
        return
    # NFS locks only files open for writing, which a folder never is: there it stays.
    access = os.O_RDONLY if stat.S_ISDIR(os.lstat(name).st_mode) else os.O_RDWR
    handle = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if _lock(handle) and _is_at(handle, name):
            _remove(name)
    finally:
        os.close(handle)


def _prefix(path: Path) -> str:
    host = socket.gethostname().encode(errors="replace")
    with contextlib.suppress(OSError):
        host += BOOT.read_bytes()
    digest = hashlib.sha256(host).hexdigest()[:8]
    name = os.fsencode(path.name)
    if LONGEST < len(name) <= 255:  # a longer one is refused when the file is created
        name = name[:LONGEST]
    return str(path.parent / f".{os.fsdecode(name)}.{digest}.")


def _lock(handle: int) -> bool | None:
    """Try to take the lock; None if the file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(handle: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(name))
    except FileNotFoundError:
        return False


def _remove(name: str) -> None:
    if stat.S_ISDIR(os.lstat(name).st_mode):
        shutil.rmtree(name, ignore_errors=True)
    else:
        os.unlink(name)


class RunFile(NamedTuple):
    """One file of a run: `<stem><suffix>`, or `<stem>_2<suffix>` if that exists."""

    stem: str
    suffix: str
    text: str


def check_writable_folder(folder: Path) -> None:
    """Create the folder and check that it is writable, before the work starts.

    Raises:
        InputError: the folder is not writable.
    """
    if not processes.is_first():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        reason = "found a file" if isinstance(problem, FileExistsError) else problem.strerror
        raise InputError(
            f"{folder}: cannot be written ({reason}), expected a folder that can; "
            "give another with --output-dir"
        ) from None


def write_new_files(folder: Path, parts: Sequence[RunFile]) -> list[Path]:
    """Write all files or none, without overwriting.

    Two runs that end in the same second have the same names: the second one gets a number.

    Returns:
        Paths of the files, in order.

    Raises:
        InputError: the folder is not writable.
    """
    for attempt in itertools.count(1):
        count = f"_{attempt}" if attempt > 1 else ""
        paths = [folder / f"{part.stem}{count}{part.suffix}" for part in parts]
        if _reserve(paths):
            break
    try:
        for path, part in zip(paths, parts, strict=True):
            with atomic(path) as file:
                file.write(part.text)
    except BaseException:
        _remove_all(paths)
        raise
    return paths


def _reserve(paths: Sequence[Path]) -> bool:
    """Create all as empty files; if one exists, create none and return False."""
    if not processes.is_first():
        return True
    created: list[Path] = []
    for path in paths:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as problem:
            _remove_all(created)
            if isinstance(problem, FileExistsError):
                return False
            raise InputError(
                f"{path}: cannot be written ({problem.strerror}); give another place"
            ) from None
        created.append(path)
    return True


def _remove_all(paths: Sequence[Path]) -> None:
    for path in paths if processes.is_first() else ():
        with contextlib.suppress(OSError):
            path.unlink()

"""Files and folders that appear complete or not at all.

    .NAME.part     NAME while a run writes it, locked until it is complete

The lock ends with the process. So a killed run leaves at most this file, which the next run of the
same output removes, and of two runs of one output the second is refused. Where a file system lacks
locks, or hides those of other hosts, the later run removes the file of the earlier one, which is
refused when it ends: no two runs write to one file.
"""

import contextlib
import errno
import itertools
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from jaxscore.errors import Held, InputError
from jaxscore.io import processes, streams
from jaxscore.io.local_path import refuse_planted_link, shorten_name
from jaxscore.io.streams import text_writer

try:
    import fcntl
except ImportError:  # Windows: files that are open cannot be removed there, and folders stay
    fcntl = None  # type: ignore[assignment]

BUFFER = 1 << 20  # bytes; each write lets other threads run and then waits for them
WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
LONGEST = 240  # maximum bytes of the output's name in that of its unfinished file
TRIES, PAUSE = 20, 0.05  # attempts to lock, seconds between; most files are written at once
_open: set[str] = set()  # this process's unfinished files and folders


@contextlib.contextmanager
def atomic(path: Path, *, is_new: bool = False) -> Iterator[TextIO]:
    """Open a UTF-8 file that appears when the block succeeds, and never otherwise.

    A stream is written directly. A name that ends in .gz, .bz2, .xz or .zst is compressed.
    Open the file before the work starts: a path that is not writable is then refused at once. In a
    multi-process run only the first process writes.

    Args:
        is_new: if True, refuse to replace a file.

    Raises:
        Held: another run is writing the file.
        InputError: the folder cannot be created or written, or is full; `path` is a folder, a
            device that is not a stream, or another user's link in a folder such as /tmp.
        FileExistsError: `is_new`, and the file exists.
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
            partial, handle = stack.enter_context(_claimed(path, _create_file))
        except OSError as problem:
            in_the_way = isinstance(problem, FileExistsError)
            reason = f"{path.parent} is not a folder" if in_the_way else problem.strerror
            raise InputError(
                f"{path}: cannot be written ({reason}); give a path that can"
            ) from None
        if is_new and path.exists():
            raise FileExistsError(str(path))
        stack.enter_context(_explain_write_errors(path))
        with os.fdopen(handle if fcntl is None else os.dup(handle), "wb", BUFFER) as raw:
            with text_writer(path, raw) as file:
                yield file
            raw.flush()
            os.fsync(raw.fileno())
        if not _is_at(handle, partial):
            raise _held(path, partial)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(partial, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        os.replace(partial, path)


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno not in WRITE_ERRORS:
            raise
        raise InputError(
            f"{path}: cannot be written ({problem.strerror}); make room or give another path"
        ) from None


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Create a folder next to a folder that it will become, and remove it unless it was renamed.

    Raises:
        Held: another run is writing the folder, or left it where folders have no locks.
        OSError: the folder above it is not writable.
    """
    with _claimed(path, _create_folder) as (partial, _):
        yield Path(partial)


def remove_unfinished() -> None:
    """Remove this process's unfinished files, before it exits at once."""
    for name in list(_open):
        with contextlib.suppress(OSError):
            _remove(name)


def _create_file(name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    return os.open(name, flags, 0o600)


def _create_folder(name: str) -> int:
    os.mkdir(name, 0o700)
    try:
        return -1 if fcntl is None else os.open(name, os.O_RDONLY)
    except FileNotFoundError:  # another run has removed it as abandoned
        raise FileExistsError(name) from None


@contextlib.contextmanager
def _claimed(path: Path, create: Callable[[str], int]) -> Iterator[tuple[str, int]]:
    """Create and lock the unfinished file or folder of an output, and remove it if it remains.

    Yields:
        Its path, and a descriptor that has the lock until the block ends.
    """
    is_long = LONGEST < len(os.fsencode(path.name)) <= 255  # a longer name is refused below
    name = shorten_name(path.name, LONGEST) if is_long else path.name
    partial = str(path.with_name(f".{name}.part"))
    for _ in range(TRIES):
        with contextlib.suppress(FileExistsError):
            handle = create(partial)
            # Another run may have removed it as abandoned before this one got the lock.
            if fcntl is None or (_lock(handle) is not False and _is_at(handle, partial)):
                break
            os.close(handle)
        if not remove_abandoned(partial, is_folder=create is _create_folder):
            time.sleep(PAUSE)
    else:
        raise _held(path, partial)
    _open.add(partial)
    try:
        yield partial, handle
    finally:
        with contextlib.suppress(OSError):
            if _is_at(handle, partial):
                _remove(partial)
        _open.discard(partial)
        if fcntl is not None:
            os.close(handle)  # releases the lock, last


def _held(path: Path, partial: str) -> Held:
    return Held(
        f"{path}: another run is writing it; wait for that run, or give another name (without such "
        f"a run, remove {partial})"
    )


def remove_abandoned(partial: str, *, is_folder: bool) -> bool:
    """Remove an unfinished file or folder, and return False if a run may be writing it.

    A folder stays if the file system cannot lock it, as that of NFS.
    """
    try:
        if fcntl is None:
            if not is_folder:
                os.unlink(partial)
            return not is_folder
        # NFS locks only files open for writing, which a folder never is.
        access = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR
        handle = os.open(partial, access | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            is_free = _lock(handle) if is_folder else _lock(handle) is not False
            if is_free and _is_at(handle, partial):
                _remove(partial)
            return bool(is_free)
        finally:
            os.close(handle)
    except FileNotFoundError:
        return True
    except OSError:  # of another user, or not of a run
        return False


def _lock(handle: int) -> bool | None:
    """Try to take the lock; return None if the file system lacks locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(handle: int, name: str) -> bool:
    """Return True if a path is the file that is open; on Windows, nothing can replace it."""
    try:
        return fcntl is None or os.path.samestat(os.fstat(handle), os.lstat(name))
    except FileNotFoundError:
        return False


def _remove(name: str) -> None:
    if stat.S_ISDIR(os.lstat(name).st_mode):
        shutil.rmtree(name, ignore_errors=True)
    else:
        os.unlink(name)


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


def write_new_files(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write all files or none, without overwriting.

    Two runs that end in the same second have the same names: those of the second one get a number,
    as in `NAME_2.md`.

    Args:
        texts: name of a file -> its text.

    Returns:
        Paths of the files, in order.

    Raises:
        InputError: the folder is not writable.
    """
    for attempt in itertools.count(1):
        count = f"_{attempt}" if attempt > 1 else ""
        paths = [folder / f"{Path(name).stem}{count}{Path(name).suffix}" for name in texts]
        with contextlib.suppress(FileExistsError, Held), contextlib.ExitStack() as stack:
            files = [stack.enter_context(atomic(path, is_new=True)) for path in paths]
            for file, text in zip(files, texts.values(), strict=True):
                file.write(text)
                file.flush()  # a full disk is met before the first file appears
            return paths
    raise AssertionError("unreachable")

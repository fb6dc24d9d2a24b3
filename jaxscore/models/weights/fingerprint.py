"""Fingerprint of a model: a digest of all bytes that determine its scores.

The digest is SHA-256: processors have instructions for it (1.67 GB/s on one core with SHA-NI), and
collisions must be impossible, since two models with the same digest would share journal rows. A
file is cut into chunks that threads hash in parallel; its digest is the digest of the chunks'
digests.

In a run of several processes the first one computes the fingerprint. The others would read the
same bytes again, so they only compare an outline: sizes, headers and samples.

Digests of weight files are cached in the user's cache folder. An entry is named by the file's
device and inode and contains the version of the file that was read, so a changed file replaces
its entry. If an entry is missing, damaged, not writable or in a folder that others can write, the
file is read again; the digest is never wrong.
"""

import collections
import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.gguf_file import is_gguf, read_gguf
from jaxscore.io.local_path import cache_folder, create_cache_folder
from jaxscore.models.weights import tensor_files
from jaxscore.models.weights.filling import n_threads
from jaxscore.models.weights.folder import CONFIG, CONVERTED, CONVERTED_PARAMS, is_converted

FORMAT = 2  # increase with every change of the definition of a fingerprint
CHUNK = 16 << 20  # bytes; increase FORMAT with a change, since digests depend on it
PIECE = 1 << 20  # bytes that are read and hashed at a time; fits into a core's cache
HEAD, SAMPLES, SAMPLE = (
    1 << 20,
    16,
    1 << 16,
)  # of an outline: bytes, number of samples, bytes per sample
SMALL = 1 << 20  # bytes; hashing a smaller file is as fast as reading its cached digest
# Nanoseconds for which a file must have been unchanged to be cached. The clock of a file system has
# ticks (2 s on FAT, 4 ms on Linux), and two changes within one tick have the same time.
SETTLED = 2_000_000_000
CHANGED = "run again once the checkpoint is complete and at rest"


class Version(NamedTuple):
    """Attributes of a file that change whenever its bytes do; times are in nanoseconds."""

    device: int
    inode: int
    size: int
    mtime: int
    ctime: int


class _Stopped(Exception):
    """The digest is no longer needed."""


def fingerprint(
    folder: Path, adapter: Path | None = None, stop: threading.Event | None = None
) -> str:
    """Return a digest of a checkpoint's config and weights, and of an adapter's.

    It covers names relative to the folder and contents, not paths or times: a copy has the same
    fingerprint. The tokenizer is not included, since scores are requested by token ids.

    Args:
        folder: a Hugging Face checkpoint, or an output of `jaxscore convert`.
        adapter: a folder with a LoRA adapter.
        stop: an event that ends the work early with an exception.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: a file cannot be read, or changes while it is read.
    """
    files = _files(folder, adapter)
    versions = {path: _version_of(path) for path in files.values()}
    return _hash_files(files, versions, stop or threading.Event())


class Digests(NamedTuple):
    """Digests of a checkpoint.

    Attributes:
        digest: the fingerprint; empty in all processes except the first.
        outline: the digest of sizes, headers and samples; empty in a run of one process.
        versions: the versions of the files before they were read.
    """

    digest: str
    outline: str
    versions: dict[Path, Version]


@contextlib.contextmanager
def computed_beside(folder: Path, adapter: Path | None = None) -> Iterator[Callable[[], Digests]]:
    """Compute digests in threads while the block loads the same files.

    Each byte is then read from disk once. The context manager waits for the digests, unless the
    block fails.

    Yields:
        A function that returns the digests after the block.

    Raises:
        InputError: see `fingerprint`; or a file changed before the end of the block.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="fingerprint") as pool:
        try:
            digests = pool.submit(_digests_of_process, folder, adapter, stop)
            yield digests.result
        except BaseException:
            stop.set()
            raise
        for path, version in digests.result().versions.items():
            _check_same(path, version)


def _digests_of_process(folder: Path, adapter: Path | None, stop: threading.Event) -> Digests:
    """Compute the digests that this process needs."""
    files = _files(folder, adapter)
    versions = {path: _version_of(path) for path in files.values()}
    outline = _outline(files) if processes.is_distributed() else ""
    digest = _hash_files(files, versions, stop) if processes.is_first() else ""
    return Digests(digest, outline, versions)


def _files(folder: Path, adapter: Path | None) -> dict[tuple[str, str], Path]:
    """Return the weight files and configs of a model, by ("model" or "adapter", name)."""
    if is_gguf(folder):
        files = {("model", path.name): path for path in read_gguf(folder).files}
    else:
        if is_converted(folder):
            inside = (folder / CONVERTED_PARAMS).rglob("*")
            weights = [
                folder / CONVERTED,
                *sorted(path for path in inside if path.is_file()),
            ]
        else:
            weights, _ = tensor_files.weight_files(folder)
        paths = [folder / CONFIG, *weights]
        files = {("model", path.relative_to(folder).as_posix()): path for path in paths}
    if adapter is not None:
        from jaxscore.models.weights import lora

        files |= {("adapter", name): adapter / name for name in (lora.CONFIG, lora.WEIGHTS)}
    return files


def _hash_files(
    files: dict[tuple[str, str], Path], versions: dict[Path, Version], stop: threading.Event
) -> str:
    """Return the fingerprint of files that had these versions before.

    Cached digests of files are used.
    """
    read_at = time.time_ns()
    cached = {
        path: _cached_digest(version) if version.size > SMALL else None
        for path, version in versions.items()
    }
    chunks = [
        (path, start)
        for path, version in versions.items()
        if cached[path] is None
        for start in range(0, version.size, CHUNK)
    ]

    def chunk_digest(chunk: tuple[Path, int]) -> bytes:
        path, start = chunk
        return _chunk_digest(path, start, min(CHUNK, versions[path].size - start), stop)

    leaves: dict[Path, list[bytes]] = collections.defaultdict(list)
    with ThreadPoolExecutor(n_threads(), thread_name_prefix="fingerprint") as pool:
        for (path, _), digest in zip(chunks, pool.map(chunk_digest, chunks), strict=True):
            leaves[path].append(digest)
    digests = []
    for path, version in versions.items():
        if (file_digest := cached[path]) is None:
            _check_same(path, version)
            data = b"%d:" % version.size + b"".join(leaves[path])
            file_digest = hashlib.sha256(data).hexdigest()
            if version.size > SMALL:
                _cache_digest(version, file_digest, read_at)
        digests.append(file_digest)
    return hashlib.sha256(repr((FORMAT, list(files), digests)).encode()).hexdigest()


def _outline(files: dict[tuple[str, str], Path]) -> str:
    """Return a digest of each file's size, first `HEAD` bytes and `SAMPLES` samples.

    These 2 MB reveal another checkpoint or an update, but not damage between the samples.
    """
    digest = hashlib.sha256(repr(list(files)).encode())
    for path in files.values():
        size = _version_of(path).size
        digest.update(b"%d:" % size)
        starts = range(HEAD, size, max(SAMPLE, (size - HEAD) // SAMPLES)) if size > HEAD else ()
        for start, length in ((0, HEAD), *((start, SAMPLE) for start in starts)):
            n_bytes = min(length, size - start)
            digest.update(_chunk_digest(path, start, n_bytes, threading.Event()))
    return digest.hexdigest()


def _chunk_digest(path: Path, start: int, size: int, stop: threading.Event) -> bytes:
    """Return the digest of `size` bytes from `start`. Reading and hashing release the GIL."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(PIECE, size)))
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            while size:
                if stop.is_set():
                    raise _Stopped
                n_read = file.readinto(buffer[:size])
                if not n_read:
                    raise InputError(f"{path}: became shorter while it was read; {CHANGED}")
                digest.update(buffer[:n_read])
                size -= n_read
    except OSError as problem:
        raise _unreadable(path, problem) from None
    return digest.digest()


def _check_same(path: Path, version: Version) -> None:
    if _version_of(path) != version:
        raise InputError(f"{path}: changed while it was read; {CHANGED}")


def _version_of(path: Path) -> Version:
    try:
        facts = path.stat()
    except OSError as problem:
        raise _unreadable(path, problem) from None
    return Version(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _unreadable(path: Path, problem: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({problem.strerror or problem})")


def _cached_digest(version: Version) -> str | None:
    """Return the cached hexadecimal digest of this version of a file, or None."""
    if (entry := _entry(version)) is None:
        return None
    try:
        if not entry.exists():
            return None
        create_cache_folder("weights")  # refuses a folder that others can write
        lines = entry.read_text("ascii").splitlines()
    except (OSError, ValueError, InputError):
        return None
    if len(lines) != 2 or lines != _lines(version, lines[0]):
        return None
    return lines[0]


def _cache_digest(version: Version, digest: str, read_at: int) -> None:
    """Write a digest to the cache if the file has been unchanged for long enough.

    Args:
        digest: the hexadecimal digest of all bytes of the file.
        read_at: the time before `version` was read, in nanoseconds since the epoch.
    """
    entry = _entry(version)
    if entry is None or read_at - version.ctime < SETTLED:
        return
    with contextlib.suppress(OSError, InputError):
        create_cache_folder("weights")
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
    # On Windows the ctime is the creation time, which does not change later.
    folder = cache_folder("weights") if os.name == "posix" else None
    return None if folder is None else folder / f"{version.device:x}-{version.inode:x}"


def _lines(version: Version, digest: str) -> list[str]:
    """Return the lines of a cache entry: the digest, and a checksum of it and of the version."""
    checked = hashlib.sha256(f"{tuple(version)} {digest}".encode()).hexdigest()
    return [digest, checked]

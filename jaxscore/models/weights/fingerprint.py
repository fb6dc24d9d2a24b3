"""What tells one model from another: a digest of all bytes that decide its numbers.

SHA-256 because processors have instructions for it (1.67 GB/s on one core with SHA-NI), and
because two models with the same digest would share journal rows. A file is cut into chunks that
threads hash side by side, and the file's digest is that of its chunks' digests.
"""

import collections
import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from jaxscore.errors import InputError
from jaxscore.models.weights import checkpoint, converted, digest_cache, lora
from jaxscore.models.weights.digest_cache import Version
from jaxscore.models.weights.filling import n_threads

FORMAT = 2  # raised with every change of what a fingerprint is made of
CHUNK = 16 << 20  # bytes; another size gives other digests, so raise FORMAT with it
PIECE = 1 << 20  # bytes that are read and hashed at a time, small enough for a core's cache
SMALL = 1 << 20  # bytes of a file that is hashed as fast as its cached digest is found
CHANGED = "run again once the checkpoint is complete and at rest"


class _Stopped(Exception):
    """Nobody waits for the digest any more."""


def fingerprint(
    folder: Path, adapter: Path | None = None, stop: threading.Event | None = None
) -> str:
    """A digest of a checkpoint's config and weights, and of an adapter's.

    It covers names, below the folder, and contents, and neither places nor times: a copy has the
    same fingerprint. What makes tokens is no part of it, since scores are asked for by token ids.

    Args:
        folder: a Hugging Face checkpoint, or what `jaxscore convert` wrote.
        adapter: a folder with a LoRA adapter.
        stop: ends the work early when it is set; what is raised then is of no interest.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: a file cannot be read, or changes while it is read.
    """
    return _read(folder, adapter, stop or threading.Event()).digest


@contextlib.contextmanager
def computed_beside(folder: Path, adapter: Path | None = None) -> Iterator[Callable[[], str]]:
    """The fingerprint, computed by threads while the block loads the same files.

    Each byte then comes from the disk once. The block's end waits for the digest, unless the
    block fails.

    Yields:
        What gives the fingerprint, after the block.

    Raises:
        InputError: as `fingerprint`, or a file has changed by the block's end.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="fingerprint") as pool:
        try:
            found = pool.submit(_read, folder, adapter, stop)
            yield lambda: found.result().digest
        except BaseException:
            stop.set()
            raise
        for path, version in found.result().versions.items():
            _check_same(path, version)


class _Read(NamedTuple):
    digest: str
    versions: dict[Path, Version]  # of the files before they were read


def _read(folder: Path, adapter: Path | None, stop: threading.Event) -> _Read:
    files = {("model", path.relative_to(folder).as_posix()): path for path in _of_model(folder)}
    if adapter is not None:
        files |= {("adapter", name): adapter / name for name in (lora.CONFIG, lora.WEIGHTS)}
    read_at = time.time_ns()
    versions = [_version_of(path) for path in files.values()]
    digests = _digests(list(files.values()), versions, read_at, stop)
    whole = hashlib.sha256(repr((FORMAT, list(files), digests)).encode()).hexdigest()
    return _Read(whole, dict(zip(files.values(), versions, strict=True)))


def _of_model(folder: Path) -> list[Path]:
    """The config, then the files that `models.load` reads parameters from."""
    if converted.is_converted(folder):
        inside = (folder / converted.PARAMS).rglob("*")
        weights = [folder / converted.MARK, *sorted(path for path in inside if path.is_file())]
    else:
        weights = checkpoint.weight_files(folder)
    return [folder / "config.json", *weights]


def _digests(
    files: Sequence[Path], versions: Sequence[Version], read_at: int, stop: threading.Event
) -> list[str]:
    """Of each file, from the cache where it is known."""
    digests = [
        digest_cache.remembered(version) if version.size > SMALL else None for version in versions
    ]
    chunks = [
        (k, start)
        for k, version in enumerate(versions)
        if digests[k] is None
        for start in range(0, version.size, CHUNK)
    ]

    def leaf(chunk: tuple[int, int]) -> bytes:
        k, start = chunk
        return _chunk_digest(files[k], start, min(CHUNK, versions[k].size - start), stop)

    leaves: dict[int, list[bytes]] = collections.defaultdict(list)
    with ThreadPoolExecutor(n_threads(), thread_name_prefix="fingerprint") as pool:
        for (k, _), digest in zip(chunks, pool.map(leaf, chunks), strict=True):
            leaves[k].append(digest)
    return [
        known or _file_digest(path, version, leaves[k], read_at)
        for k, (path, version, known) in enumerate(zip(files, versions, digests, strict=True))
    ]


def _chunk_digest(path: Path, start: int, size: int, stop: threading.Event) -> bytes:
    """Of `size` bytes from `start`; Python's lock is free while they are read and hashed."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(PIECE, size)))
    with _explained(path), open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size:
            if stop.is_set():
                raise _Stopped
            n_read = file.readinto(buffer[:size])
            if not n_read:
                raise InputError(f"{path}: became shorter while it was read; {CHANGED}")
            digest.update(buffer[:n_read])
            size -= n_read
    return digest.digest()


def _file_digest(path: Path, version: Version, leaves: Sequence[bytes], read_at: int) -> str:
    """Of all chunks, and kept for the next run."""
    _check_same(path, version)
    digest = hashlib.sha256(b"%d:" % version.size + b"".join(leaves)).hexdigest()
    if version.size > SMALL:
        digest_cache.remember(version, digest, read_at)
    return digest


def _check_same(path: Path, version: Version) -> None:
    if _version_of(path) != version:
        raise InputError(f"{path}: changed while it was read; {CHANGED}")


def _version_of(path: Path) -> Version:
    with _explained(path):
        return digest_cache.version_of(path)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise InputError(f"{path}: cannot be read ({problem.strerror or problem})") from None

"""Opens users' files and streams.

Files whose names end in .gz, .bz2, .xz or .zst are compressed; every reader of text and tables
opens its file here, and `io.atomic` compresses what it writes. Outputs other than files are
standard output (`-`), devices and pipes such as /dev/stdout: a stream gets no manifest, report or
journal. If standard output carries the data, messages go to standard error.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from jaxscore.errors import InputError
from jaxscore.io import processes

NOWHERE = Path(os.devnull)  # the path of a file that is not written
STANDARD = {"-": 1, "/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


class _Data:
    stdout: TextIO | None = None  # before messages were redirected to standard error


def descriptor(path: Path) -> int | None:
    """Return the file descriptor that a path names, or None for the path of a file."""
    name = str(path)
    numbered = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", name)
    return int(numbered[1]) if numbered else STANDARD.get(name)


def is_stream(path: Path) -> bool:
    """Return True if an output is standard output, a descriptor, a character device or a pipe."""
    if descriptor(path) is not None:
        return True
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # writing to it reports the reason
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


@contextlib.contextmanager
def open_stream(path: Path) -> Iterator[TextIO]:
    """Open a stream for UTF-8 text, flushed when the block ends.

    Raises:
        InputError: the descriptor is closed, or the stream cannot be opened.
        BrokenPipeError: the reader has ended.
    """
    try:
        number = descriptor(path)
        if number == 1:
            stdout = _Data.stdout or sys.stdout
            if stdout is None:
                raise InputError(f"{path}: standard output is closed; give the name of a file")
            stdout.flush()
            number = stdout.fileno()
        target = path if number is None else os.dup(number)
        file = open(target, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
    except OSError as problem:
        raise InputError(f"{path}: cannot be written ({problem.strerror}); give a file") from None
    with file:
        yield file


@contextlib.contextmanager
def stdout_for_data(outputs: Iterable[Path]) -> Iterator[None]:
    """Redirect printing to standard error in the block, if an output is standard output.

    Raises:
        InputError: standard output is closed.
    """
    if not processes.is_first() or 1 not in map(descriptor, outputs):
        yield
        return
    if sys.stdout is None:
        raise InputError("--output is standard output, which is closed; give a file")
    _Data.stdout = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _Data.stdout = None


def refuse_stream(path: Path, flag: str) -> None:
    """Refuse a stream where a folder is required.

    Raises:
        InputError: `path` is a stream; the message names the flag.
    """
    if is_stream(path):
        raise InputError(
            f"{flag} {path}: found a stream, and this command writes several files; give a folder"
        )


ZSTD = ".zst"
ENDINGS = (".gz", ".bz2", ".xz", ZSTD)
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
CHUNK = 1 << 17  # bytes of a .zst file that are read at a time
DAMAGES = (EOFError, zlib.error, lzma.LZMAError)


def compression_of(path: Path) -> str:
    """The ending of a compressed file's name, or "" for any other file."""
    ending = path.suffix.lower()
    return ending if ending in ENDINGS else ""


def form_of(path: Path) -> str:
    """The ending that decides a file's form, in lower case: `.jsonl` of `x.jsonl.gz`."""
    return (path.with_suffix("") if compression_of(path) else path).suffix.lower()


def refuse_compressed(path: Path) -> None:
    """Refuse compression around a form that is compressed internally, and read in any order.

    Raises:
        InputError: `path` is a compressed Parquet file.
    """
    if compression := compression_of(path):
        raise InputError(
            f"{path}: found a Parquet file in {compression}, expected one that is compressed "
            f"internally; give it without {compression}"
        )


@contextlib.contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed by the ending of its name.

    Raises:
        OSError: it cannot be read, or is damaged.
        InputError: it is a .zst file, and no package reads it; a spreadsheet; or a device.
    """
    compression = compression_of(path)
    if form_of(path) in SPREADSHEETS:
        raise InputError(
            f"{path}: found a spreadsheet, expected text; save it as CSV UTF-8, and give the .csv"
        )
    with open(path, "rb") as raw:
        refuse_device(path, raw)
        if not compression:
            yield raw
            return
        with _reader(path, compression, raw) as file:
            try:
                yield file
            except DAMAGES as problem:
                raise OSError(f"damaged {compression} file ({problem})") from None


def refuse_device(path: Path, file: BinaryIO) -> None:
    """Refuse to read a device: /dev/zero never ends. A terminal and /dev/null do.

    Raises:
        InputError: `file` is open on one.
    """
    try:
        number = file.fileno()
    except OSError:  # not a file of the system
        return
    facts = os.fstat(number)
    is_device = stat.S_ISCHR(facts.st_mode) or stat.S_ISBLK(facts.st_mode)
    is_null = is_device and os.path.samestat(facts, os.stat(os.devnull))
    if is_device and not is_null and not os.isatty(number):
        raise InputError(f"{path}: found a device, expected a file or a pipe")


def _reader(path: Path, compression: str, raw: BinaryIO) -> Any:
    if compression == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if compression == ".bz2":
        return bz2.BZ2File(raw)
    if compression == ".xz":
        return lzma.LZMAFile(raw)
    return io.BufferedReader(_ZstdFile(_zstandard(path), raw), CHUNK)


@contextlib.contextmanager
def text_writer(path: Path, raw: BinaryIO) -> Iterator[TextIO]:
    """Open UTF-8 text over a file that is being written, compressed by the ending of its name.

    Equal texts give equal bytes: no name and no time is stored.

    Args:
        raw: stays open when the block ends.

    Raises:
        InputError: it is a .zst file, and no package writes it.
    """
    compression = compression_of(path)
    file: Any
    if not compression:
        text = io.TextIOWrapper(raw, "utf-8", newline="\n")
        try:
            yield text
        finally:
            text.detach()
        return
    if compression == ".gz":
        file = gzip.GzipFile("", "wb", 6, raw, mtime=0)
    elif compression == ".bz2":
        file = bz2.BZ2File(raw, "wb")
    elif compression == ".xz":
        file = lzma.LZMAFile(raw, "wb")  # noqa: SIM115
    else:
        file = _zstandard(path).ZstdCompressor().stream_writer(raw, closefd=False)
    with file, io.TextIOWrapper(io.BufferedWriter(file), "utf-8", newline="\n") as text:
        yield text


class _ZstdFile(io.RawIOBase):
    """The bytes of a .zst file. The package's own reader takes a cut file for a whole one."""

    def __init__(self, package: Any, raw: BinaryIO) -> None:
        self._package, self._raw = package, raw
        self._frame: Any = None  # decompresses the frame that has begun
        self._packed = self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and self._decompress():
            pass
        target = memoryview(buffer)
        n = min(len(target), len(self._ready))
        target[:n], self._ready = self._ready[:n], self._ready[n:]
        return n

    def _decompress(self) -> bool:
        """Decompress a chunk; False at the end of the file."""
        chunk = self._packed or self._raw.read(CHUNK)
        if not chunk:
            if self._frame is not None:
                raise EOFError("it ends within a frame")
            return False
        if self._frame is None:
            self._frame = self._package.ZstdDecompressor().decompressobj()
        try:
            self._ready = self._frame.decompress(chunk)
        except self._package.ZstdError as problem:
            raise OSError(f"damaged {ZSTD} file ({problem})") from None
        self._packed = b""
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
        return True


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise InputError(
            f"{path}: a {ZSTD} file needs the package zstandard, which is not installed; "
            "pip install zstandard, or compress it with gzip"
        ) from None
    return zstandard

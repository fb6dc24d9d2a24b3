"""Reads the metadata and the tensor table of GGUF files.

The format (docs/gguf.md of ggml): a header, metadata as typed key-value pairs, a table
of tensors, and their bytes, aligned. Versions 2 and 3 are read, little endian.

gguf-py's own `GGUFReader` makes a NumPy view of every string, which takes 9.5 CPU seconds for a
vocabulary of 262,144 tokens; this reader takes 0.2.
"""

import dataclasses
import functools
import math
import mmap
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.json_input import check_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9  # value types of metadata; the others are numbers:
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
MOST_AXES = 4
# Bounds of what is read before any tensor; the largest vocabularies (500,000 merges) take 30 MB.
MOST_HEAD = 1 << 27  # bytes
MOST_ENTRIES = 1 << 22  # of an array
MOST_TEXT = 1 << 24  # bytes of a string
MOST_NAME = 65_535  # bytes of a key or of a tensor's name, by the format
ALIGNMENT = 32  # of tensors, unless general.alignment says otherwise
FIRST_OF_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class TensorType(NamedTuple):
    """A storage type: its name, the weights in a block, and the bytes of a block."""

    name: str
    block: int
    n_bytes: int


TYPES = {  # by the id of ggml.h
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
}


class StoredTensor(NamedTuple):
    """A tensor as a file stores it.

    Attributes:
        shape: rows first, as in NumPy and PyTorch; the file has the reverse.
        data: its bytes, a view of the mapped file.
        where: its file.
    """

    shape: tuple[int, ...]
    type: TensorType
    data: np.ndarray
    where: Path


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """A model in one GGUF file, or in the files of a split.

    Attributes:
        path: the file that was named.
        files: all files, in order.
        metadata: the metadata of the first file. Arrays of numbers are NumPy arrays, others lists.
        tensors: the tensors by name.
    """

    path: Path
    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """`general.architecture`, the prefix of the model's keys.

        Raises:
            InputError: the metadata lacks it.
        """
        architecture = self.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise InputError(
                f"{self.path}: the metadata lacks general.architecture, expected a language model"
            )
        return architecture


def is_gguf(path: Path) -> bool:
    """Return True if a file begins like GGUF, under any name (Ollama's blobs have no ending)."""
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # not permitted; a name with a zero byte
        return False


def read_gguf(path: Path) -> GgufFile:
    """Read a GGUF file, or the files of a split by the name of the first one.

    Raises:
        InputError: a file is missing, cut off, damaged or of another version, or has a type of
            tensor that is not read.
    """
    file = _read_current(path)
    n_files = file.metadata.get("split.count", 1)
    if isinstance(n_files, int) and n_files == 1:
        return file
    name = FIRST_OF_SPLIT.fullmatch(path.name)
    if not isinstance(n_files, int) or not 1 <= n_files < 10**5 or name is None:
        raise InputError(
            f"{path}: split.count is {n_files!r}, expected 1, or a name such as "
            "NAME-00001-of-00003.gguf"
        )
    paths = [
        path.with_name(f"{name[1]}-{number:05d}-of-{n_files:05d}.gguf")
        for number in range(1, n_files + 1)
    ]
    if path != paths[0]:
        raise InputError(f"{path}: give the first file, {paths[0].name}")
    tensors = dict(file.tensors)
    for other in paths[1:]:
        if not other.exists():
            raise InputError(f"{other}: no such file; all {n_files} files of a split must be there")
        more = _read_current(other).tensors
        if both := sorted(tensors.keys() & more.keys()):
            raise InputError(f"{other}: tensor {both[0]} is also in {tensors[both[0]].where}")
        tensors |= more
    expected = file.metadata.get("split.tensors.count")
    if not isinstance(expected, int) or len(tensors) != expected:
        raise InputError(f"{path}: the {n_files} files have {len(tensors)} of {expected} tensors")
    return dataclasses.replace(file, files=tuple(paths), tensors=tensors)


def _read_current(path: Path) -> GgufFile:
    check_regular(path)
    try:
        status = path.stat()
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}") from None
    return _read_version(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


@functools.lru_cache(maxsize=16)  # loader, tokenizer and fingerprint all ask for the same files
def _read_version(path: Path, version: tuple[int, ...]) -> GgufFile:
    return _read_file(path)


def _read_file(path: Path) -> GgufFile:
    try:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"{path}: cannot be read ({reason})") from None
    reader = _Reader(path, mapped)
    metadata, table = reader.contents()
    return GgufFile(path, (path,), metadata, reader.views(metadata, table))


class _Entry(NamedTuple):
    """A row of the tensor table; the offset counts from the first tensor's byte."""

    shape: tuple[int, ...]
    type_id: int
    offset: int


class _Reader:
    """Reads one mapped file from its start.

    Every length is compared with the bytes that are left before anything of that length is made.
    A sparse file may be terabytes long, so lengths also have fixed bounds.
    """

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path, self._mapped, self._size, self._at = path, mapped, len(mapped), 0
        self._head = min(self._size, MOST_HEAD)

    def contents(self) -> tuple[dict[str, Any], dict[str, _Entry]]:
        """Return the metadata and the tensor table."""
        magic = bytes(self._mapped[: len(MAGIC)])
        if magic != MAGIC:
            raise InputError(f"{self._path}: begins with {magic!r}, expected {MAGIC!r}")
        self._at = len(MAGIC)
        version = self._number("I")
        if version not in VERSIONS:
            byte_order = " (big endian)" if version >= 1 << 16 else ""
            raise InputError(
                f"{self._path}: GGUF version {version}{byte_order}, expected 2 or 3, little endian"
            )
        n_tensors, n_keys = self._number("Q"), self._number("Q")
        self._check_room(n_tensors, 24, "tensors")
        self._check_room(n_keys, 13, "keys")
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._name()
            if key in metadata:
                raise self._damage(f"the key {key} is there twice")
            metadata[key] = self._value(self._number("I"), key)
        table: dict[str, _Entry] = {}
        for _ in range(n_tensors):
            name = self._name()
            if name in table:
                raise self._damage(f"the tensor {name} is there twice")
            n_axes = self._number("I")
            if not 1 <= n_axes <= MOST_AXES:
                raise self._damage(f"tensor {name} has {n_axes} axes, expected 1 to {MOST_AXES}")
            axes = [self._number("Q") for _ in range(n_axes)]
            table[name] = _Entry(tuple(reversed(axes)), self._number("I"), self._number("Q"))
        return metadata, table

    def views(
        self, metadata: Mapping[str, Any], table: Mapping[str, _Entry]
    ) -> dict[str, StoredTensor]:
        """Return views of the tensors' bytes, between which there is only padding."""
        align = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(align, int) or align < 8 or align & (align - 1):
            raise self._damage(f"general.alignment is {align!r}, expected a power of two from 8")

        def aligned(position: int) -> int:
            return -(-position // align) * align

        end = start = aligned(self._at)
        tensors: dict[str, StoredTensor] = {}
        for name, (shape, type_id, offset) in sorted(table.items(), key=lambda row: row[1].offset):
            if type_id not in TYPES:
                raise InputError(
                    f"{self._path}: tensor {name} has the unsupported ggml type {type_id}; "
                    f"expected one of {', '.join(supported.name for supported in TYPES.values())}"
                )
            tensor_type = TYPES[type_id]
            if shape[-1] % tensor_type.block or 0 in shape:
                raise self._damage(
                    f"tensor {name} has the shape {list(shape)}, and {tensor_type.name} has "
                    f"blocks of {tensor_type.block} weights in a row"
                )
            n_bytes = math.prod(shape) // tensor_type.block * tensor_type.n_bytes
            if start + offset != aligned(end):
                raise self._damage(
                    f"tensor {name} begins at byte {offset:,} of the tensors, expected "
                    f"{aligned(end) - start:,}, where the one before it ends"
                )
            end = start + offset + n_bytes
            if end > self._size:
                raise InputError(
                    f"{self._path}: ends before {name}; the file is cut off ({self._size:,} of at "
                    f"least {end:,} bytes)"
                )
            data = np.frombuffer(self._mapped, np.uint8, n_bytes, start + offset)
            tensors[name] = StoredTensor(shape, tensor_type, data, self._path)
        if self._size > aligned(end):
            raise self._damage(
                f"{self._size - end:,} bytes after the last tensor, which belong to none"
            )
        return {name: tensors[name] for name in table}

    def _value(self, value_type: int, key: str) -> Any:
        if value_type in NUMBERS:
            return self._number(NUMBERS[value_type])
        if value_type == STRING:
            return self._text()
        if value_type != ARRAY:
            raise self._damage(f"the key {key} has a value of type {value_type}")
        inner, n = self._number("I"), self._number("Q")
        if n > MOST_ENTRIES:
            raise self._damage(
                f"the key {key} has {n:,} entries, expected at most {MOST_ENTRIES:,}"
            )
        if inner in NUMBERS:
            dtype = np.dtype(NUMBERS[inner]).newbyteorder("<")
            self._check_room(n, dtype.itemsize, f"entries of {key}")
            values = np.frombuffer(self._mapped, dtype, n, self._at)
            self._at += n * dtype.itemsize
            return values
        if inner != STRING:
            entries = "arrays" if inner == ARRAY else f"values of type {inner}"
            raise self._damage(f"the key {key} is an array of {entries}, expected numbers or texts")
        self._check_room(n, 8, f"entries of {key}")
        return self._texts(n)

    def _texts(self, n: int) -> list[str]:
        """Read strings; a vocabulary has hundreds of thousands."""
        mapped, at, unpack = self._mapped, self._at, struct.Struct("<Q").unpack_from
        raw_texts = []
        try:
            for _ in range(n):
                (length,) = unpack(mapped, at)
                end = at + 8 + length
                if end > self._head:
                    raise self._cut_off()
                if length > MOST_TEXT:
                    raise self._damage(
                        f"a text of {length:,} bytes, expected at most {MOST_TEXT:,}"
                    )
                raw_texts.append(mapped[at + 8 : end])
                at = end
        except struct.error:
            raise self._cut_off() from None
        self._at = at
        return [text.decode("utf-8", "replace") for text in raw_texts]

    def _text(self) -> str:
        [text] = self._texts(1)
        return text

    def _name(self) -> str:
        text = self._text()
        if len(text) > MOST_NAME:
            raise self._damage(f"a name of {len(text):,} characters, expected {MOST_NAME:,}")
        return text

    def _number(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        if self._at + size > self._head:
            raise self._cut_off()
        (value,) = struct.unpack_from(f"<{code}", self._mapped, self._at)
        self._at += size
        return value

    def _check_room(self, n: int, least: int, entries: str) -> None:
        """Refuse a count whose smallest entries would not fit in the file."""
        if n * least > self._size - self._at:
            raise self._damage(
                f"{n:,} {entries}, for which {self._size - self._at:,} bytes are left"
            )
        if n * least > self._head - self._at:
            raise self._cut_off()

    def _cut_off(self) -> InputError:
        if self._head < self._size:
            return self._damage(
                f"its metadata and its table of tensors have more than {MOST_HEAD:,} bytes"
            )
        return InputError(
            f"{self._path}: ends within its metadata or its table of tensors; the file is cut off "
            f"({self._size:,} bytes); fetch it again"
        )

    def _damage(self, actual: str) -> InputError:
        return InputError(f"{self._path}: {actual}; the file is damaged; fetch it again")

"""The safetensors files of a checkpoint, memory-mapped."""

import dataclasses
import itertools
import json
import math
import mmap
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.json_input import check_regular
from jaxscore.models.weights.folder import read_json, refuse_gguf

if TYPE_CHECKING:
    from jaxscore.device.dots import Form  # which imports JAX

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "BOOL": np.dtype(np.bool_),
}
FLOATS = tuple(DTYPES[kind] for kind in ("F64", "F32", "F16", "BF16"))
EXPECTED = "expected F64, F32, F16 or BF16; give the checkpoint that is not quantized"
# Errors that a damaged header raises
DAMAGES = (
    UnicodeDecodeError, json.JSONDecodeError, RecursionError, AttributeError, KeyError, TypeError,
)  # fmt: skip
# Bytes. 100,000 tensors take 12 MB. The format allows 100 MB, of which JSON's lists make 2.6 GB.
MAX_HEADER = 1 << 25
MAX_OFFSET = (1 << 48) - 1  # and the largest length of an axis
MAX_AXES = 32  # of a tensor; a model's have at most four
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class LazyMapping(Mapping[str, Any]):
    """Mapping whose values are computed at each look-up and never cached."""

    def __init__(self, names: Collection[str], compute: Callable[[str], Any]) -> None:
        self._names, self._compute = names, compute

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._compute(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class StoredRows(NamedTuple):
    """Rows of a quantized matrix, or of each along a tensor's first axis, as a file stores them.

    Attributes:
        form: in which they can stay in blocks; None if they cannot.
        read: takes the name of a field of `device.dots.Blocks` and the index of the matrix, if
            there are several; returns what the field is made from, [rows, ...].
        convert: the field of some of these rows, in a form that holds theirs.
        decode: the weights of some rows, float32; None if only `Tensors.arrays` computes them.
        is_transposed: whether they are rows of the transposed matrix.
    """

    form: "Form | None"
    read: Callable[[str, int | None], np.ndarray]
    convert: Callable[[np.ndarray, str, "Form"], np.ndarray]
    decode: Callable[[np.ndarray], np.ndarray] | None = None
    is_transposed: bool = False


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Tensors of a checkpoint by name.

    Attributes:
        arrays: values; those of `changed` are computed at each look-up.
        where: file of each tensor.
        stored: read-only view of the mapped file, or an `outline` if the tensor is computed from
            several stored ones.
        changed: names whose values differ from the stored ones (an adapter is merged in, or they
            are stored quantized).
        idle: names of tensors that add nothing; a model may leave them unread.
        pieces: functions that compute one entry along the first axis (an expert) alone.
        rows: of matrices in blocks along their rows, whose values `arrays` computes.
    """

    arrays: Mapping[str, np.ndarray]
    where: Mapping[str, Path]
    stored: Mapping[str, np.ndarray]
    changed: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    pieces: Mapping[str, Callable[[int], np.ndarray]] = dataclasses.field(default_factory=dict)
    rows: Mapping[str, StoredRows] = dataclasses.field(default_factory=dict)

    def piece(self, name: str, index: int) -> np.ndarray:
        """`arrays[name][index]`, computed alone if possible."""
        return self.pieces[name](index) if name in self.pieces else self.arrays[name][index]

    def dtype_name(self) -> str:
        """Most frequent float type, by bytes: `--dtype auto` on accelerators."""
        sizes: dict[str, int] = {}
        for array in self.stored.values():
            if array.dtype in FLOATS:
                sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.nbytes
        return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def outline(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of this shape and dtype without bytes of its own."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def check_float(where: Path, name: str, array: np.ndarray) -> None:
    """Require a tensor to be stored as floats; quantized checkpoints have integers.

    Args:
        where: the tensor's file, or its folder.

    Raises:
        InputError: naming the tensor and what it is stored as.
    """
    if array.dtype not in FLOATS:
        [kind] = [kind for kind, dtype in DTYPES.items() if dtype == array.dtype]
        raise InputError(f"{where}: tensor {name} is stored as {kind}, {EXPECTED}")


def check_tied(folder: Path, embedding: Any, head: Any) -> None:
    """Require the stored unembedding of a tied model to equal its embedding.

    Args:
        embedding, head: NumPy arrays, or JAX arrays, which are compared on their devices.

    Raises:
        InputError: they differ.
    """
    if not embedding.__array_namespace__().array_equal(embedding, head):
        raise InputError(
            f"{folder}: tie_word_embeddings is true, and lm_head.weight is not the embedding; "
            "the config and the weights do not belong together"
        )


def joined(tensors: Tensors, target: str, parts: tuple[str, ...]) -> Tensors:
    """The tensors with those whose names end with `parts` replaced by their joined rows.

    Args:
        target: end of the joined tensors' names.
        parts: one with `{k}` is as many parts as there are, k counting from 0.

    Raises:
        InputError: tensors of integers, or of rows of different shapes.
    """
    first = parts[0].format(k=0)
    stems = [name.removesuffix(first) for name in tensors.stored if name.endswith(first)]
    found = {stem + target: list(_names_of(stem, parts, tensors)) for stem in stems}
    found = {name: of for name, of in found.items() if set(of) <= set(tensors.stored)}
    outlines = {}
    for name, of in found.items():
        for one in of:
            check_float(tensors.where[one], one, tensors.stored[one])
        rows = {tensors.stored[one].shape[1:] for one in of}
        if len(rows) > 1:
            raise InputError(f"{tensors.where[of[0]]}: {', '.join(of)} have rows of shapes {rows}")
        dtypes = {tensors.stored[one].dtype for one in of}
        dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
        shape = sum(len(tensors.stored[one]) for one in of), *rows.pop()
        outlines[name] = outline(shape, dtype)

    def compute(name: str) -> np.ndarray:
        if name not in found:
            return tensors.arrays[name]
        dtype = outlines[name].dtype
        rows = [tensors.arrays[one].astype(dtype) for one in found[name]]
        whole: np.ndarray = rows[0].__array_namespace__().concat(rows)  # of NumPy or JAX
        return whole

    stored = {**tensors.stored, **outlines}
    for one in itertools.chain(*found.values()):
        del stored[one]
    return dataclasses.replace(
        tensors,
        arrays=LazyMapping(frozenset(stored), compute),
        where={name: tensors.where[found.get(name, [name])[0]] for name in stored},
        stored=stored,
        changed=tensors.changed | set(found),
    )


def _names_of(stem: str, parts: tuple[str, ...], tensors: Tensors) -> Iterator[str]:
    for part in parts:
        if "{k}" not in part:
            yield stem + part
            continue
        numbered = (stem + part.format(k=k) for k in itertools.count())
        yield from itertools.takewhile(lambda name: name in tensors.stored, numbered)


def has_weights(folder: Path) -> bool:
    """Whether a folder has one of the files that `weight_files` needs."""
    return (folder / SINGLE).exists() or (folder / INDEX).exists()


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """`model.safetensors`, or the files of `model.safetensors.index.json` by name.

    Returns:
        The files, and the index's file name for each tensor or None without an index.

    Raises:
        InputError: neither file, or an index that is damaged or leads out of the folder.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.exists():
        return [single], None
    if index.exists():
        content = read_json(index)
        expected = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(expected, dict) or not expected:
            raise InputError(f"{index}: expected an object with a `weight_map`")
        if not all(isinstance(name, str) for name in expected.values()):
            raise InputError(f"{index}: `weight_map` has values that are no names of files")
        names = sorted(set(expected.values()))
        if outside := [name for name in names if Path(name).name != name or name == ".."]:
            raise InputError(f"{index}: files outside the folder: {outside[:5]}")
        return [folder / name for name in names], expected
    refuse_gguf(folder)
    found = sorted(path.name for path in folder.iterdir())
    hint = ""
    if any(name.endswith((".bin", ".pt", ".pth")) for name in found):
        hint = "; PyTorch pickles are not read: save with save_pretrained(safe_serialization)"
    raise InputError(
        f"{folder}: no model.safetensors and no model.safetensors.index.json "
        f"(it holds {', '.join(found[:8]) or 'nothing'}){hint}"
    )


def open_tensors(folder: Path) -> Tensors:
    """Map `model.safetensors`, or the files of `model.safetensors.index.json`.

    Raises:
        InputError: no such file, a missing shard, a damaged file, or a stored type that is not
            a plain float.
    """
    files, expected = weight_files(folder)
    arrays: dict[str, np.ndarray] = {}
    where: dict[str, Path] = {}
    for file in files:
        for name, array in map_file(file).items():
            if name in arrays:
                raise InputError(f"{file}: tensor {name} is also in {where[name]}")
            arrays[name], where[name] = array, file
    if expected is not None:
        found = {(name, path.name) for name, path in where.items()}
        listed = set(expected.items())
        if found != listed:
            raise InputError(
                f"{folder / INDEX}: it names {sorted(listed - found)[:5]}, which do not exist; "
                f"the shards have {sorted(found - listed)[:5]} instead"
            )
    return Tensors(arrays, where, arrays)


def map_file(path: Path) -> dict[str, np.ndarray]:
    """Views of one safetensors file.

    The format: eight bytes of header length, a JSON header of `{name: {dtype, shape,
    data_offsets}}`, and the tensors' bytes, little-endian and in C order. The library's own
    reader copies each tensor once more, which costs seven times the time.

    Raises:
        InputError: the file cannot be read, is damaged, or has types that are not handled.
    """
    check_regular(path)
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise InputError(f"{path}: {size} bytes, too short for safetensors; truncated?")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as problem:  # a name with a zero byte, or half a surrogate pair
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"{path}: {reason}; the checkpoint is incomplete") from None
    if hasattr(mmap, "MADV_SEQUENTIAL"):  # a longer read-ahead; not on every system
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    (length,) = struct.unpack("<Q", mapped[:8])
    if length > min(size - 8, MAX_HEADER):
        raise InputError(
            f"{path}: the header says {length} bytes, the file has {size}; it is truncated or no "
            "safetensors file; fetch it again"
        )
    at = 8 + length
    try:
        header = json.loads(mapped[8:at].decode("utf-8"))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        views = {name: _view(mapped, at, name, entry) for name, entry in entries.items()}
        _check_cover({name: entry["data_offsets"] for name, entry in entries.items()}, size - at)
    except DAMAGES as error:
        raise InputError(f"{path}: damaged safetensors header ({error})") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return views


def _check_cover(offsets: dict[str, list[int]], size: int) -> None:
    """Require the tensors to cover the data without holes or overlaps, as the format demands."""
    at = 0
    for name, (start, end) in sorted(offsets.items(), key=lambda item: item[1]):
        if start != at:
            raise ValueError(f"tensor {name} starts at byte {start} of the data, expected {at}")
        at = end
    if at != size:
        raise ValueError(f"{size - at} bytes after the last tensor, which belong to none")


def _view(mapped: mmap.mmap, base: int, name: str, entry: dict[str, Any]) -> np.ndarray:
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if kind not in DTYPES:
        raise ValueError(f"tensor {name} is stored as {kind}, which is not handled, {EXPECTED}")
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not lists or len(shape) > MAX_AXES:
        raise ValueError(f"tensor {name} has shape {shape} and offsets {offsets}")
    # Before they are multiplied: thousands of numbers of thousands of digits take hours.
    if not all(type(n) is int and 0 <= n <= MAX_OFFSET for n in (*shape, *offsets)):
        raise ValueError(f"tensor {name} has shape {shape} and offsets {offsets}")
    start, end = offsets
    count = math.prod(shape)
    if end - start != count * DTYPES[kind].itemsize:
        raise ValueError(f"tensor {name}: {end - start} bytes for shape {shape} of {kind}")
    if base + end > len(mapped):
        raise ValueError(
            f"tensor {name} ends at byte {base + end}, the file at {len(mapped)}: truncated; "
            "fetch it again"
        )
    return np.frombuffer(mapped, DTYPES[kind], count, base + start).reshape(shape)

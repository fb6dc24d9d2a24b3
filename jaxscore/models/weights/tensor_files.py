"""Safetensors files of a checkpoint, memory-mapped."""

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
FLOATS = tuple(DTYPES[name] for name in ("F64", "F32", "F16", "BF16"))
EXPECTED = "expected F64, F32, F16 or BF16; give the checkpoint that is not quantized"
# Errors that a damaged header raises
DAMAGES = (
    UnicodeDecodeError, json.JSONDecodeError, RecursionError, AttributeError, KeyError, TypeError,
)  # fmt: skip
# Bytes. 100,000 tensors take 12 MB. The format allows 100 MB, which can take 2.6 GB when parsed.
MAX_HEADER = 1 << 25
MAX_OFFSET = (1 << 48) - 1  # also the largest length of an axis
MAX_AXES = 32  # axes of a tensor; models have at most four
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
    """Stored rows of a quantized matrix, or of each matrix along a tensor's first axis.

    Attributes:
        form: the form in which the rows can stay in blocks; None if they cannot.
        read: a function of the name of a field of `device.dots.Blocks` and the index of the matrix
            (None for a single one). It returns the rows from which `convert` computes the field.
        convert: a function of rows, the field's name and the target form, which represents theirs
            exactly. It returns the field.
        decode: a function from rows to their weights, float32; None if only `Tensors.arrays`
            computes them.
        is_transposed: if True, these are rows of the transposed matrix.
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
        arrays: the values; those in `changed` are computed at each look-up.
        where: the file of each tensor.
        stored: a read-only view of the mapped file, or an `outline` if the tensor is computed from
            several stored ones.
        changed: the names of tensors whose values differ from the stored ones, because an adapter
            is merged in or they are quantized.
        idle: the names of tensors without effect, such as zero biases; they may stay unread.
        pieces: functions that compute a single entry along the first axis (an expert).
        rows: the stored rows of quantized matrices whose blocks are along rows.
    """

    arrays: Mapping[str, np.ndarray]
    where: Mapping[str, Path]
    stored: Mapping[str, np.ndarray]
    changed: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    pieces: Mapping[str, Callable[[int], np.ndarray]] = dataclasses.field(default_factory=dict)
    rows: Mapping[str, StoredRows] = dataclasses.field(default_factory=dict)

    def piece(self, name: str, index: int) -> np.ndarray:
        """Return `arrays[name][index]`, if possible without computing the whole array."""
        return self.pieces[name](index) if name in self.pieces else self.arrays[name][index]

    def dtype_name(self) -> str:
        """Return the float dtype of most bytes, which `--dtype auto` selects on accelerators."""
        sizes: dict[str, int] = {}
        for array in self.stored.values():
            if array.dtype in FLOATS:
                sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.nbytes
        return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def outline(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of this shape and dtype that allocates only one element."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def check_float(where: Path, name: str, array: np.ndarray) -> None:
    """Require a tensor to be stored as floats; quantized checkpoints have integers.

    Args:
        where: the tensor's file or folder.

    Raises:
        InputError: naming the tensor and its stored type.
    """
    if array.dtype not in FLOATS:
        [type_name] = [key for key, dtype in DTYPES.items() if dtype == array.dtype]
        raise InputError(f"{where}: tensor {name} is stored as {type_name}, {EXPECTED}")


def check_tied(folder: Path, embedding: Any, head: Any) -> None:
    """Require the stored unembedding of a tied model to equal its embedding.

    Args:
        embedding, head: NumPy arrays, or JAX arrays, which are compared on their devices.

    Raises:
        InputError: they differ.
    """
    if not embedding.__array_namespace__().array_equal(embedding, head):
        raise InputError(
            f"{folder}: tie_word_embeddings is true, but lm_head.weight is not the embedding; "
            "the config and the weights do not belong together"
        )


def joined(tensors: Tensors, target: str, parts: tuple[str, ...]) -> Tensors:
    """Return the tensors with those whose names end with `parts` concatenated along rows.

    Args:
        target: the suffix of the joined tensors' names.
        parts: the suffixes of the parts; one with `{k}` stands for all k from 0.

    Raises:
        InputError: parts are integers, or have rows of different shapes.
    """
    first = parts[0].format(k=0)
    stems = [name.removesuffix(first) for name in tensors.stored if name.endswith(first)]
    names = {stem + target: list(_part_names(stem, parts, tensors)) for stem in stems}
    names = {name: sources for name, sources in names.items() if set(sources) <= {*tensors.stored}}
    outlines = {}
    for name, sources in names.items():
        for source in sources:
            check_float(tensors.where[source], source, tensors.stored[source])
        rows = {tensors.stored[source].shape[1:] for source in sources}
        if len(rows) > 1:
            raise InputError(
                f"{tensors.where[sources[0]]}: {', '.join(sources)} have rows of shapes {rows}"
            )
        dtypes = {tensors.stored[source].dtype for source in sources}
        dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
        shape = sum(len(tensors.stored[source]) for source in sources), *rows.pop()
        outlines[name] = outline(shape, dtype)

    def compute(name: str) -> np.ndarray:
        if name not in names:
            return tensors.arrays[name]
        dtype = outlines[name].dtype
        rows = [tensors.arrays[source].astype(dtype) for source in names[name]]
        concatenated: np.ndarray = rows[0].__array_namespace__().concat(rows)  # NumPy or JAX
        return concatenated

    stored = {**tensors.stored, **outlines}
    for source in itertools.chain(*names.values()):
        del stored[source]
    return dataclasses.replace(
        tensors,
        arrays=LazyMapping(frozenset(stored), compute),
        where={name: tensors.where[names.get(name, [name])[0]] for name in stored},
        stored=stored,
        changed=tensors.changed | set(names),
    )


def _part_names(stem: str, parts: tuple[str, ...], tensors: Tensors) -> Iterator[str]:
    for suffix in parts:
        if "{k}" not in suffix:
            yield stem + suffix
            continue
        numbered = (stem + suffix.format(k=k) for k in itertools.count())
        yield from itertools.takewhile(lambda name: name in tensors.stored, numbered)


def has_weights(folder: Path) -> bool:
    """Return True if a folder has one of the files that `weight_files` needs."""
    return (folder / SINGLE).exists() or (folder / INDEX).exists()


def weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """Return the safetensors files of a folder: one file, or the shards of the index by name.

    Returns:
        The files, and the index's file name of each tensor, or None without an index.

    Raises:
        InputError: the files are missing, or the index is damaged or leads out of the folder.
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
            raise InputError(f"{index}: `weight_map` has values that are not file names")
        names = sorted(set(expected.values()))
        if outside := [name for name in names if Path(name).name != name or name == ".."]:
            raise InputError(f"{index}: files outside the folder: {outside[:5]}")
        return [folder / name for name in names], expected
    refuse_gguf(folder)
    names = sorted(path.name for path in folder.iterdir())
    hint = ""
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        hint = "; PyTorch pickles are not read: save with save_pretrained(safe_serialization)"
    raise InputError(
        f"{folder}: no model.safetensors and no model.safetensors.index.json "
        f"(it holds {', '.join(names[:8]) or 'nothing'}){hint}"
    )


def open_tensors(folder: Path) -> Tensors:
    """Map `model.safetensors`, or the files of `model.safetensors.index.json`.

    Raises:
        InputError: a file is missing or damaged, or a stored type is not supported.
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
        actual = {(name, path.name) for name, path in where.items()}
        listed = set(expected.items())
        if actual != listed:
            raise InputError(
                f"{folder / INDEX}: it names {sorted(listed - actual)[:5]}, which do not exist; "
                f"the shards have {sorted(actual - listed)[:5]} instead"
            )
    return Tensors(arrays, where, arrays)


def map_file(path: Path) -> dict[str, np.ndarray]:
    """Map a safetensors file and return views of its tensors.

    The format: eight bytes of header length, a JSON header of `{name: {dtype, shape,
    data_offsets}}`, and the tensors' bytes, little-endian and in C order. The reader of the
    safetensors library copies each tensor once more, which takes seven times as long.

    Raises:
        InputError: the file cannot be read, is damaged, or has unsupported types.
    """
    check_regular(path)
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise InputError(f"{path}: {size} bytes, too short for safetensors; truncated?")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as problem:  # the name has a zero byte or a lone surrogate
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"{path}: {reason}; the checkpoint is incomplete") from None
    if hasattr(mmap, "MADV_SEQUENTIAL"):  # a longer read-ahead; not on every system
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    (length,) = struct.unpack("<Q", mapped[:8])
    if length > min(size - 8, MAX_HEADER):
        raise InputError(
            f"{path}: the header says {length} bytes, the file has {size}; it is truncated or not "
            "a safetensors file; fetch it again"
        )
    start = 8 + length  # of the data
    try:
        header = json.loads(mapped[8:start].decode("utf-8"))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        views = {name: _view(mapped, start, name, entry) for name, entry in entries.items()}
        _check_cover({name: entry["data_offsets"] for name, entry in entries.items()}, size - start)
    except DAMAGES as error:
        raise InputError(f"{path}: damaged safetensors header ({error})") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return views


def _check_cover(offsets: dict[str, list[int]], size: int) -> None:
    """Require the tensors to cover the data without gaps or overlaps, as the format demands."""
    position = 0
    for name, (start, end) in sorted(offsets.items(), key=lambda item: item[1]):
        if start != position:
            raise ValueError(
                f"tensor {name} starts at byte {start} of the data, expected {position}"
            )
        position = end
    if position != size:
        raise ValueError(f"{size - position} bytes after the last tensor are unused")


def _view(mapped: mmap.mmap, base: int, name: str, entry: dict[str, Any]) -> np.ndarray:
    type_name, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if type_name not in DTYPES:
        raise ValueError(
            f"tensor {name} is stored as {type_name}, which is not handled, {EXPECTED}"
        )
    are_lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not are_lists or len(shape) > MAX_AXES:
        raise ValueError(f"tensor {name} has shape {shape} and offsets {offsets}")
    # Checked before they are multiplied: products of huge numbers take hours.
    if not all(type(n) is int and 0 <= n <= MAX_OFFSET for n in (*shape, *offsets)):
        raise ValueError(f"tensor {name} has shape {shape} and offsets {offsets}")
    start, end = offsets
    count = math.prod(shape)
    if end - start != count * DTYPES[type_name].itemsize:
        raise ValueError(f"tensor {name}: {end - start} bytes for shape {shape} of {type_name}")
    if base + end > len(mapped):
        raise ValueError(
            f"tensor {name} ends at byte {base + end}, the file at {len(mapped)}: truncated; "
            "fetch it again"
        )
    return np.frombuffer(mapped, DTYPES[type_name], count, base + start).reshape(shape)

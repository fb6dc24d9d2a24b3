"""A checkpoint on disk: its folder, its config and its tensors, memory-mapped."""

import dataclasses
import json
import math
import mmap
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxscore.errors import InputError

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U8": np.dtype(np.uint8),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "BOOL": np.dtype(np.bool_),
}
WEIGHTS = {"F64", "F32", "F16", "BF16"}
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit


def resolve(model: str, revision: str | None) -> Path:
    """The local folder of a checkpoint: itself, the embedded one, or a hub snapshot.

    Raises:
        InputError: no such folder and no such model on the hub or in its cache.
    """
    if model == "demo":
        return Path(__file__).parent.parent / "demo" / "model"
    folder = Path(model)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(
            f"model {model}: found a file, expected a folder with config.json and safetensors; "
            "give its folder"
        )
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise InputError(f"model {model}: no such folder")
    return _from_hub(model, revision)


def _from_hub(model: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                model,
                revision=revision,
                allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"],
            )
        )
    except Exception as problem:  # the hub's client raises many unrelated kinds
        reason = str(problem).strip().splitlines()[0]
        raise InputError(
            f"model {model}: no such folder here, and the hub gave none "
            f"({type(problem).__name__}: {reason}); check the name and the network, "
            "or give a local folder"
        ) from None


def read_json(path: Path) -> Any:
    """A JSON file of the checkpoint.

    Raises:
        InputError: missing, unreadable or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InputError(
            f"{path}: {problem.strerror}; expected a Hugging Face checkpoint folder with "
            f"{path.name}"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise InputError(f"{path}: not JSON ({problem}); the file is damaged") from None


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as written."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: expected an object with a string `model_type`")
    return config


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Tensors by name, each a read-only view of the mapped file."""

    arrays: dict[str, np.ndarray]
    where: dict[str, Path]

    def dtype_name(self) -> str:
        """The commonest floating type, by bytes: what `--dtype auto` means on accelerators."""
        sizes: dict[str, int] = {}
        for array in self.arrays.values():
            if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16:
                sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.nbytes
        return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def open_tensors(folder: Path) -> Tensors:
    """Map `model.safetensors`, or the files of `model.safetensors.index.json`.

    Raises:
        InputError: no such file, a missing shard, a damaged file, or a stored type that is not
            a plain float.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    expected: dict[str, str] | None = None
    if single.exists():
        files = [single]
    elif index.exists():
        content = read_json(index)
        expected = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(expected, dict) or not expected:
            raise InputError(f"{index}: expected an object with a `weight_map`")
        names = sorted({str(name) for name in expected.values()})
        if outside := [name for name in names if Path(name).name != name]:
            raise InputError(f"{index}: files outside the folder: {outside}")
        files = [folder / name for name in names]
    else:
        found = sorted(path.name for path in folder.iterdir())
        hint = ""
        if any(name.endswith((".bin", ".pt", ".pth")) for name in found):
            hint = "; PyTorch pickles are not read: save with save_pretrained(safe_serialization)"
        raise InputError(
            f"{folder}: no model.safetensors and no model.safetensors.index.json "
            f"(it holds {', '.join(found[:8]) or 'nothing'}){hint}"
        )
    arrays: dict[str, np.ndarray] = {}
    where: dict[str, Path] = {}
    for file in files:
        for name, array in _map_file(file).items():
            if name in arrays:
                raise InputError(f"{file}: tensor {name} is also in {where[name]}")
            arrays[name], where[name] = array, file
    if expected is not None and set(expected) != set(arrays):
        lacking = sorted(set(expected) - set(arrays))[:5]
        beyond = sorted(set(arrays) - set(expected))[:5]
        raise InputError(f"{index}: the shards lack {lacking} and have beyond it {beyond}")
    return Tensors(arrays, where)


def _map_file(path: Path) -> dict[str, np.ndarray]:
    """Views of one safetensors file.

    The format: eight bytes of header length, a JSON header of `{name: {dtype, shape,
    data_offsets}}`, and the tensors' bytes, little-endian and in C order. The library's own
    reader copies each tensor once more, which costs seven times the time.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            if size < 8:
                raise InputError(f"{path}: {size} bytes, too short for safetensors; truncated?")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}; the checkpoint is incomplete") from None
    (length,) = struct.unpack("<Q", mapped[:8])
    if length > min(size - 8, LARGEST_HEADER):
        raise InputError(
            f"{path}: the header says {length} bytes, the file has {size}; it is truncated or no "
            "safetensors file; fetch it again"
        )
    try:
        header = json.loads(mapped[8 : 8 + length].decode("utf-8"))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        views = {name: _view(mapped, 8 + length, name, entry) for name, entry in entries.items()}
    except (UnicodeDecodeError, json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged safetensors header ({error})") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return views


def _view(mapped: mmap.mmap, base: int, name: str, entry: dict[str, Any]) -> np.ndarray:
    kind, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if kind not in DTYPES:
        raise ValueError(f"tensor {name} is stored as {kind}, which is not handled")
    if not all(isinstance(n, int) and n >= 0 for n in (*shape, start, end)):
        raise ValueError(f"tensor {name} has shape {shape} and offsets {[start, end]}")
    count = math.prod(shape)
    if end - start != count * DTYPES[kind].itemsize:
        raise ValueError(f"tensor {name}: {end - start} bytes for shape {shape} of {kind}")
    if base + end > len(mapped):
        raise ValueError(
            f"tensor {name} ends at byte {base + end}, the file at {len(mapped)}: truncated; "
            "fetch it again"
        )
    return np.frombuffer(mapped, DTYPES[kind], count, base + start).reshape(shape)

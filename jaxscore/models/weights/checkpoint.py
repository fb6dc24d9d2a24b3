"""A checkpoint on disk: its folder, its config and its tensors, memory-mapped."""

import dataclasses
import json
import math
import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxscore.errors import InputError
from jaxscore.io import json_input
from jaxscore.io.json_input import check_regular
from jaxscore.io.local_path import check_local

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
# Of a hub repository; many hold the weights a second time under other names.
FILES = ["*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja"]
# what a header that is no header of this format ends in
DAMAGES = (
    UnicodeDecodeError, json.JSONDecodeError, RecursionError, AttributeError, KeyError, TypeError,
)  # fmt: skip
# Bytes. 100,000 tensors take 12 MB. The format allows 100 MB, of which JSON's lists make 2.6 GB.
LARGEST_HEADER = 1 << 25
MOST = (1 << 48) - 1  # of a shape, and of an offset
MOST_AXES = 32  # of a tensor; a model's have at most four
LARGEST = (1 << 31) - 1  # token id
GENERATION = "generation_config.json"
MODEL = "a local folder or a hub id such as NAME/NAME"
GGUF = ".gguf"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def resolve(
    model: str, revision: str | None, *, with_code: bool = False, cache_dir: Path | None = None
) -> Path:
    """The local folder of a checkpoint: itself, the embedded one, or a hub snapshot.

    Args:
        model: a folder, a hub id or "demo".
        revision: branch, tag or commit of a hub id.
        with_code: fetch the repository's Python files too, for a tokenizer that needs them.
        cache_dir: where snapshots of hub ids are kept; None is the hub's own place.

    Raises:
        InputError: no such folder and no such model on the hub or in its cache; an address.
    """
    check_local(model, MODEL)
    if revision is not None and (model == "demo" or Path(model).exists()):
        raise InputError(f"--revision {revision}: model {model} is local and has no revisions")
    if model == "demo":
        return Path(__file__).parents[2] / "demo" / "model"
    folder = Path(model)
    try:
        is_folder, is_there = folder.is_dir(), folder.exists()
    except (OSError, ValueError) as problem:  # too long, not permitted, a zero byte
        raise InputError(f"model {model[:80]}: not usable as a path ({problem})") from None
    if is_folder:
        return folder
    if is_there:
        if folder.suffix == GGUF:
            raise InputError(gguf_refusal(folder))
        raise InputError(
            f"model {model}: found a file, expected a folder with config.json and safetensors; "
            "give its folder"
        )
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise InputError(f"model {model}: no such folder")
    return _from_hub(model, revision, FILES + ["*.py"] * with_code, cache_dir)


def _from_hub(model: str, revision: str | None, files: list[str], cache_dir: Path | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(model, revision=revision, allow_patterns=files, cache_dir=cache_dir)
        )
    except Exception as problem:  # the hub's client raises many unrelated kinds
        if isinstance(problem, LocalEntryNotFoundError):
            offline = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else "no network"
            raise InputError(
                f"model {model}: no such folder, not in the hub's cache, and {offline}; check the "
                "name, or give a local folder"
            ) from None
        reason = (str(problem).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"model {model}: no such folder here, and the hub gave none "
            f"({type(problem).__name__}: {reason}); check the name and the network, "
            "or give a local folder"
        ) from None


def gguf_refusal(file: Path) -> str:
    """What to do with a GGUF file."""
    folder, name = str(file.parent), file.name
    return (
        f"{file}: GGUF is not read yet; transformers converts it to a folder OUT, which --model "
        f"then takes: AutoModelForCausalLM.from_pretrained({folder!r}, gguf_file={name!r})"
        ".save_pretrained(OUT), and AutoTokenizer in the same way (it needs the package gguf; "
        "transformers 5 wants quantization_config=GgufConfig(dequantize=True) for the model, too)"
    )


def refuse_gguf(folder: Path) -> None:
    """Raise if a folder that lacks something has a GGUF file.

    Raises:
        InputError: it has one; how to convert it.
    """
    for file in sorted(folder.glob(f"*{GGUF}")):
        raise InputError(gguf_refusal(file))


def read_json(path: Path) -> Any:
    """A JSON file of the checkpoint.

    Raises:
        InputError: missing, unreadable or not JSON.
    """
    check_regular(path)
    return json_input.read_json(path, f"a Hugging Face checkpoint folder with {path.name}")


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as written."""
    path = folder / "config.json"
    if not path.exists():
        refuse_gguf(folder)
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: expected an object with a string `model_type`")
    return config


def generation_config(folder: Path) -> dict[str, Any] | None:
    """`generation_config.json` as written; None where there is none.

    Raises:
        InputError: it is no JSON object.
    """
    path = folder / GENERATION
    if not path.exists():
        return None
    written = read_json(path)
    if not isinstance(written, dict):
        raise InputError(f"{path}: expected an object, found {type(written).__name__}")
    return written


def eos_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Ids that end a generated text: `generation_config.json`'s, else the config's; often none.

    Raises:
        InputError: an `eos_token_id` that is no id and no list of ids.
    """
    written = generation_config(folder) or {}
    said = "eos_token_id" in written
    where = folder / (GENERATION if said else "config.json")
    found = (written if said else config).get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(id) is int and 0 <= id <= LARGEST for id in ids):
        raise InputError(
            f"{where}: eos_token_id is {found!r}, expected a token id or a list of them"
        )
    return tuple(ids)


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Tensors by name.

    Attributes:
        arrays: their values; those of `changed` are computed whenever they are looked up.
        where: the file of each.
        stored: each as a read-only view of its mapped file, or as an outline, an array of its type
            and shape without its bytes, where it is computed from several stored ones.
        changed: names whose values are not the stored ones (an adapter is merged in, or they are
            stored quantized).
        idle: names of tensors that add nothing, so that a model without them may leave them unread.
        pieces: for names of which one entry along the first axis (an expert) is computed without
            the others, what gives it.
    """

    arrays: Mapping[str, np.ndarray]
    where: Mapping[str, Path]
    stored: Mapping[str, np.ndarray]
    changed: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    pieces: Mapping[str, Callable[[int], np.ndarray]] = dataclasses.field(default_factory=dict)

    def piece(self, name: str, index: int) -> np.ndarray:
        """`arrays[name][index]`, without the others where that can be."""
        return self.pieces[name](index) if name in self.pieces else self.arrays[name][index]

    def dtype_name(self) -> str:
        """The commonest floating type, by bytes: what `--dtype auto` means on accelerators."""
        sizes: dict[str, int] = {}
        for array in self.stored.values():
            if array.dtype in FLOATS:
                sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.nbytes
        return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def check_float(where: Path, name: str, array: np.ndarray) -> None:
    """Weights are floats; integers are what quantized checkpoints store.

    Args:
        where: the tensor's file, or its folder.

    Raises:
        InputError: naming the tensor and what it is stored as.
    """
    if array.dtype not in FLOATS:
        [kind] = [kind for kind, dtype in DTYPES.items() if dtype == array.dtype]
        raise InputError(f"{where}: tensor {name} is stored as {kind}, {EXPECTED}")


def check_tied(folder: Path, embedding: np.ndarray, head: np.ndarray) -> None:
    """A tied model may carry its unembedding a second time, but not another one.

    Raises:
        InputError: the two differ.
    """
    if not np.array_equal(embedding, head):
        raise InputError(
            f"{folder}: tie_word_embeddings is true, and lm_head.weight is not the embedding; "
            "the config and the weights do not belong together"
        )


def weight_files(folder: Path) -> list[Path]:
    """`model.safetensors`, or the files of `model.safetensors.index.json` by name.

    Raises:
        InputError: neither file, or an index that is damaged or leads out of the folder.
    """
    files, _ = _listed(folder)
    return files


def _listed(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The files, and the file's name for each tensor as the index has it; None without an index."""
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
    held = sorted(path.name for path in folder.iterdir())
    hint = ""
    if any(name.endswith((".bin", ".pt", ".pth")) for name in held):
        hint = "; PyTorch pickles are not read: save with save_pretrained(safe_serialization)"
    raise InputError(
        f"{folder}: no model.safetensors and no model.safetensors.index.json "
        f"(it holds {', '.join(held[:8]) or 'nothing'}){hint}"
    )


def open_tensors(folder: Path) -> Tensors:
    """Map `model.safetensors`, or the files of `model.safetensors.index.json`.

    Raises:
        InputError: no such file, a missing shard, a damaged file, or a stored type that is not
            a plain float.
    """
    files, expected = _listed(folder)
    arrays: dict[str, np.ndarray] = {}
    where: dict[str, Path] = {}
    for file in files:
        for name, array in map_file(file).items():
            if name in arrays:
                raise InputError(f"{file}: tensor {name} is also in {where[name]}")
            arrays[name], where[name] = array, file
    if expected is not None:
        found = {(name, path.name) for name, path in where.items()}
        wanted = set(expected.items())
        if found != wanted:
            raise InputError(
                f"{folder / INDEX}: it names {sorted(wanted - found)[:5]}, which do not exist; "
                f"the shards have {sorted(found - wanted)[:5]} instead"
            )
    return Tensors(arrays, where, arrays)


def map_file(path: Path) -> dict[str, np.ndarray]:
    """Views of one safetensors file.

    The format: eight bytes of header length, a JSON header of `{name: {dtype, shape,
    data_offsets}}`, and the tensors' bytes, little-endian and in C order. The library's own
    reader copies each tensor once more, which costs seven times the time.

    Raises:
        InputError: the file cannot be read, or is no whole safetensors file of plain types.
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
    if length > min(size - 8, LARGEST_HEADER):
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
    """The format has neither holes nor overlaps: a header that has them is of other bytes."""
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
    if not lists or len(shape) > MOST_AXES:
        raise ValueError(f"tensor {name} has shape {shape} and offsets {offsets}")
    # Before they are multiplied: thousands of numbers of thousands of digits take hours.
    if not all(type(n) is int and 0 <= n <= MOST for n in (*shape, *offsets)):
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

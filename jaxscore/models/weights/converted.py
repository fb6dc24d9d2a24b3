"""Folders that `jaxscore convert` writes: the parameter tree as an Orbax checkpoint.

    config.json, tokenizer files    copies of the original's, without quantization_config
    params/                         the tree of `init_params`, matrices in one dtype
    checksums.json                  checksums of each array, see `checksums`
    jaxscore.json                   the origin; written last, and identifies such a folder

The arrays need neither renaming nor transposition, and each process restores only its shards.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxscore.device.decoder import DecoderConfig, Params
from jaxscore.device.dots import to_storage
from jaxscore.device.sharding import keys_of
from jaxscore.errors import InputError
from jaxscore.io.atomic import temporary_folder
from jaxscore.io.gguf_file import is_gguf
from jaxscore.io.json_input import check_side_file
from jaxscore.models.model_types import Dtype
from jaxscore.models.weights import checksums, quantization
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.folder import CONFIG, CONVERTED, CONVERTED_PARAMS, FILES, read_json
from jaxscore.models.weights.params import Placement, shapes_of
from jaxscore.text import tokenizer_files
from jaxscore.text.tokenizer_files import load_tokenizer

CHECKSUMS = "checksums.json"
FORMAT, UNCHECKED = 2, 1  # format 1 lacks checksums and loads unchecked
CHUNK = 64 << 20  # bytes that a process reads at least of a parameter


@dataclasses.dataclass(frozen=True)
class Facts:
    """Origin of a converted checkpoint.

    Attributes:
        model_type: the config's model type.
        dtype: the dtype of matrices, "float32" or "bfloat16".
        source: the model as requested.
        revision: the model's commit, if known.
        lora: the adapter that is merged in, if any.
        jaxscore: the version of jaxscore that wrote the folder.
    """

    model_type: str
    dtype: Dtype
    source: str
    revision: str | None
    lora: str | None
    jaxscore: str


def read_facts(folder: Path) -> Facts:
    """Read the origin of a converted checkpoint.

    Raises:
        InputError: the file was not written by `save`, or has another format.
    """
    where = folder / CONVERTED
    written = read_json(where)
    names = {field.name for field in dataclasses.fields(Facts)}
    if not isinstance(written, dict) or written.get("format") not in (FORMAT, UNCHECKED):
        version = written.get("format") if isinstance(written, dict) else None
        raise InputError(
            f"{where}: format is {version!r}, expected {FORMAT}; convert the original again"
        )
    facts = {name: value for name, value in written.items() if name != "format"}
    if set(facts) != names or facts["dtype"] not in ("float32", "bfloat16"):
        raise InputError(
            f"{where}: expected {', '.join(sorted(names))} with dtype float32 or bfloat16, found "
            f"{written}; convert the original again"
        )
    return Facts(**facts)


def read_checksums(folder: Path) -> checksums.Checksums | None:
    """Read the checksums of the arrays; None for a folder of an older version.

    Raises:
        InputError: the file was not written by `save`.
    """
    where = folder / CHECKSUMS
    if not where.exists() and read_json(folder / CONVERTED).get("format") == UNCHECKED:
        return None
    values = read_json(where)
    is_valid = isinstance(values, dict) and all(
        isinstance(by_dtype, dict)
        and all(isinstance(parts, list) and parts for parts in by_dtype.values())
        for by_dtype in values.values()
    )
    if not is_valid:
        raise InputError(f"{where}: expected checksums of all arrays; convert the original again")
    return values


def check_absent(output: Path) -> None:
    """Refuse to overwrite existing files.

    Raises:
        InputError: a file, a folder that is not empty, or a path that cannot be written.
    """
    with _as_refusals(output):
        if output.is_symlink() or (output.exists() and not output.is_dir()):
            raise InputError(f"{output}: exists and is not a folder; give another name")
        if output.is_dir() and any(output.iterdir()):
            raise InputError(f"{output}: exists and is not empty; give another name, or empty it")
        output.parent.mkdir(parents=True, exist_ok=True)


def save(output: Path, source: Path, params: Params, facts: Facts, *, with_code: bool) -> None:
    """Write a folder atomically.

    Args:
        output: see `check_absent`.
        source: the original checkpoint, whose files other than weights are copied.
        params: the result of `load_params` on the CPU.
        with_code: if True, also copy Python files, which some tokenizers need.

    Raises:
        InputError: the folder cannot be written.
    """
    check_absent(output)
    with _as_refusals(output), temporary_folder(output) as temporary:
        if is_gguf(source):
            _write_json(temporary / CONFIG, read_config(source))
            _write_tokenizer(temporary, load_tokenizer(source))
        else:
            for pattern in FILES + ["*.py"] * with_code:
                for file in source.glob(pattern):
                    if ".safetensors" not in file.name and file.is_file():
                        check_side_file(file, source)
                        shutil.copyfile(file, temporary / file.name)
            # The parameters are not quantized
            config = read_config(temporary)
            if (plain := quantization.plain_config(config)) != config:
                _write_json(temporary / CONFIG, plain)
        saved = _save_params(temporary / CONVERTED_PARAMS, params)
        (temporary / CHECKSUMS).write_text(json.dumps(saved) + "\n", encoding="utf-8")
        _write_json(temporary / CONVERTED, {"format": FORMAT, **dataclasses.asdict(facts)})
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        if output.exists():
            output.rmdir()
        temporary.rename(output)


def _write_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Write the files of a tokenizer that was read from a GGUF file."""
    tokenizer.backend_tokenizer.save(str(folder / tokenizer_files.TRUTH))
    settings = {
        # With this key transformers uses tokenizer.json unchanged.
        "backend": "tokenizers",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **tokenizer.special_tokens_map,
    }
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    _write_json(folder / tokenizer_files.SETTINGS, settings)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _save_params(path: Path, params: Params) -> checksums.Checksums:
    """Write the arrays and return their checksums."""
    import orbax.checkpoint as ocp

    def plain(leaf: jax.Array) -> np.ndarray:
        """Return a NumPy view of the memory of a CPU device."""
        array = np.asarray(leaf)
        return array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array

    arrays = jax.tree.map(plain, params)
    chunks = jax.tree.map(lambda leaf: ocp.SaveArgs(chunk_byte_size=CHUNK), arrays)
    with _checkpointer() as checkpointer:
        checkpointer.save(path.absolute(), ocp.args.PyTreeSave(arrays, save_args=chunks))
    return checksums.of_params(arrays)


def has_unembedding(folder: Path) -> bool:
    """Return True if the parameters have an unembedding in addition to the embedding.

    Raises:
        InputError: the checkpoint is damaged.
    """
    path = (folder / CONVERTED_PARAMS).absolute()
    with _checkpointer() as checkpointer:
        try:
            return "weight" in checkpointer.metadata(path).item_metadata.tree.get("unembed", {})
        except Exception as problem:  # Orbax and TensorStore raise many unrelated kinds
            raise _damaged(path, problem) from None


def restore(
    folder: Path, config: DecoderConfig, dtype: np.dtype, placement: Placement, *, integers: bool
) -> Params:
    """Restore the parameter tree, matrices rounded to `dtype`; each process reads its shards.

    Args:
        integers: see `device.backends.Backend`.

    Raises:
        InputError: the checkpoint is damaged, by Orbax or a checksum, or does not match the config.
    """
    import orbax.checkpoint as ocp

    path = (folder / CONVERTED_PARAMS).absolute()
    with _checkpointer() as checkpointer:
        try:
            saved = checkpointer.metadata(path).item_metadata.tree
        except Exception as problem:  # Orbax and TensorStore raise many unrelated kinds
            raise _damaged(path, problem) from None
        target = shapes_of(config, dtype)
        _check_same(path, saved, target)
        target = jax.tree_util.tree_map_with_path(
            lambda at, leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=placement(keys_of(at), leaf.shape)
            ),
            target,
        )
        restore_args = ocp.checkpoint_utils.construct_restore_args(target)
        try:
            params = checkpointer.restore(
                path, ocp.args.PyTreeRestore(item=target, restore_args=restore_args)
            )
        except Exception as problem:
            raise _damaged(path, problem) from None
    if (expected := read_checksums(folder)) is None:
        print(
            f"{folder}: converted by an earlier version, without checksums; loaded unchecked, "
            "convert the original again",
            file=sys.stderr,
        )
    else:
        names, unchecked = checksums.damaged_and_unchecked(params, expected)
        if names:
            raise InputError(
                f"{path}: {len(names)} arrays differ from what was converted, such as "
                f"{names[0]}: wrong checksum; the files are damaged, convert the original again"
            )
        if unchecked:
            print(
                f"{path}: {len(unchecked)} arrays, such as {unchecked[0]}, are divided among "
                "processes, so that no process can check them; loaded unchecked",
                file=sys.stderr,
            )
    leaves, tree = jax.tree.flatten(params)
    del params
    for k, leaf in enumerate(leaves):  # one by one, so that no second copy of the model exists
        leaves[k] = to_storage(leaf, integers)
    return jax.tree.unflatten(tree, leaves)


def _checkpointer() -> Any:
    import orbax.checkpoint as ocp

    # Weights do not compress, and decompression would take as long as reading from disk.
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=False))


def _check_same(path: Path, saved: Any, target: Params) -> None:
    """Require equal names and shapes; `restore` converts dtypes."""

    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(at, simple=True, separator="."): x.shape for at, x in leaves}

    has, needs = shapes(saved), shapes(target)
    if has != needs:
        names = sorted(name for name in has | needs if has.get(name) != needs.get(name))
        listed = ", ".join(
            f"{name} has {has.get(name)}, expected {needs.get(name)}" for name in names[:5]
        )
        raise InputError(
            f"{path}: {len(names)} parameters do not match config.json: {listed}; "
            "convert the original again"
        )


def _damaged(path: Path, problem: Exception) -> InputError:
    reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
    return InputError(
        f"{path}: cannot be restored ({reason[:200]}); it is incomplete or damaged, convert the "
        "original again"
    )


@contextlib.contextmanager
def _as_refusals(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise InputError(
            f"{output}: cannot be written ({problem.strerror or problem}); give another path"
        ) from None

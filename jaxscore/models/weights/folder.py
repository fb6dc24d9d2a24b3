"""Checkpoint folders: resolution of names to local files, and the files' names."""

from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io import json_input
from jaxscore.io.gguf_file import FIRST_OF_SPLIT, is_gguf
from jaxscore.io.json_input import check_side_file
from jaxscore.io.local_path import check_local

# Files of a hub repository; many repositories have a second copy of the weights under other names
FILES = ["*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja"]
MODEL = "a local folder, a GGUF file or a hub id such as NAME/NAME"
CONFIG = "config.json"
CONVERTED = "jaxscore.json"  # identifies a converted checkpoint
CONVERTED_PARAMS = "params"  # folder of its parameters
GGUF = ".gguf"


def resolve(
    model: str, revision: str | None, *, with_code: bool = False, cache_dir: Path | None = None
) -> Path:
    """Return the local folder or GGUF file of a model, after a download if it is on the hub.

    Args:
        model: a folder, a GGUF file, a hub id, "demo", or a GGUF file of a hub repository
            (`ORG/NAME:FILE.gguf`, `ORG/NAME:Q4_K_M`).
        revision: the branch, tag or commit of a hub id.
        with_code: if True, also fetch the repository's Python files, which some tokenizers need.
        cache_dir: the folder for snapshots of hub ids; None for the hub's default.

    Raises:
        InputError: a URL, or neither a folder nor a model on the hub or in its cache.
    """
    check_local(model, MODEL)
    if revision is not None and (model == "demo" or Path(model).exists()):
        raise InputError(
            f"--revision {revision}: revisions are for hub ids, and model {model} is local"
        )
    if model == "demo":
        return Path(__file__).parents[2] / "demo" / "model"
    folder = Path(model)
    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except (OSError, ValueError) as problem:  # too long, not permitted, or with a zero byte
        raise InputError(f"model {model[:80]}: not usable as a path ({problem})") from None
    if is_folder or is_gguf(folder):
        return folder
    if exists:
        raise InputError(
            f"model {model}: found a file, expected a folder with config.json and safetensors, or "
            "a GGUF file; give its folder"
        )
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise InputError(f"model {model}: no such folder")
    name, _, gguf = model.partition(":")
    if gguf:
        return _gguf_from_hub(name, gguf, revision, cache_dir)
    return _from_hub(model, revision, FILES + ["*.py"] * with_code, cache_dir)


def _gguf_from_hub(name: str, file: str, revision: str | None, cache_dir: Path | None) -> Path:
    """Fetch a GGUF file of a hub repository, with the other files of its split.

    Args:
        file: the file's name, or a unique part of it, such as a quantization type.

    Raises:
        InputError: no file matches, or several do.
    """
    split = FIRST_OF_SPLIT.fullmatch(file)
    pattern = f"{split[1]}-*-of-{split[3]}{GGUF}" if split else f"*{file.removesuffix(GGUF)}*{GGUF}"
    folder = _from_hub(name, revision, [pattern], cache_dir)
    paths = sorted(folder.rglob(pattern))
    firsts = [path for path in paths if not (match := FIRST_OF_SPLIT.fullmatch(path.name))
              or int(match[2]) == 1]  # fmt: skip
    exact = [path for path in firsts if path.name == file]
    if len(exact or firsts) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise InputError(
            f"model {name}:{file}: expected the name of one GGUF file of the repository; those "
            f"that contain it are {names}"
        )
    return (exact or firsts)[0]


def _from_hub(model: str, revision: str | None, files: list[str], cache_dir: Path | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(model, revision=revision, allow_patterns=files, cache_dir=cache_dir)
        )
    except Exception as problem:  # the hub's client raises many unrelated types
        if isinstance(problem, LocalEntryNotFoundError):
            offline = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else "no network"
            raise InputError(
                f"model {model}: no such folder, not in the hub's cache, and {offline}; check the "
                "name, or give a local folder"
            ) from None
        reason = (str(problem).strip().splitlines() or ["no reason given"])[0]
        raise InputError(
            f"model {model}: no such folder, and the hub returned an error "
            f"({type(problem).__name__}: {reason}); check the name and the network, "
            "or give a local folder"
        ) from None


def refuse_gguf(folder: Path) -> None:
    """Refuse a folder of GGUF files, of which the user must name one.

    Raises:
        InputError: the folder has GGUF files; the message lists them.
    """
    if names := sorted(file.name for file in folder.glob(f"*{GGUF}")):
        raise InputError(
            f"{folder}: has only GGUF files; give one of them as the model: {', '.join(names)}"
        )


def read_json(path: Path) -> Any:
    """Read a JSON file of the checkpoint.

    Raises:
        InputError: the file is missing, unreadable, not JSON, or a link out of its folder.
    """
    check_side_file(path, path.parent)
    return json_input.read_json(path, f"a Hugging Face checkpoint folder with {path.name}")


def is_converted(folder: Path) -> bool:
    """Return True if a folder was written by `jaxscore convert`."""
    return (folder / CONVERTED).exists()


def config_path(folder: Path) -> Path:
    """Return the file with a model's config: `config.json`, or the GGUF file itself."""
    return folder if is_gguf(folder) else folder / CONFIG

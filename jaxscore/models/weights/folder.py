"""The folder of a checkpoint: from a name to local files, and the files that it has."""

from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io import json_input
from jaxscore.io.gguf_file import FIRST_OF_SPLIT, is_gguf
from jaxscore.io.json_input import check_side_file
from jaxscore.io.local_path import check_local

# Files of a hub repository; many repositories hold the weights a second time under other names
FILES = ["*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja"]
MODEL = "a local folder, a GGUF file or a hub id such as NAME/NAME"
CONFIG = "config.json"
CONVERTED = "jaxscore.json"  # file by which a converted checkpoint is recognised,
CONVERTED_PARAMS = "params"  # and the folder of its parameters
GGUF = ".gguf"


def resolve(
    model: str, revision: str | None, *, with_code: bool = False, cache_dir: Path | None = None
) -> Path:
    """The local folder of a checkpoint, or its GGUF file: itself, the embedded one, or the hub's.

    Args:
        model: a folder, a GGUF file, a hub id, "demo", or a GGUF file of a hub repository
            (`ORG/NAME:FILE.gguf`, `ORG/NAME:Q4_K_M`).
        revision: branch, tag or commit of a hub id.
        with_code: also fetch the repository's Python files, for a tokenizer that needs them.
        cache_dir: folder for snapshots of hub ids; None for the hub's default.

    Raises:
        InputError: neither a folder nor a model on the hub or in its cache; a URL.
    """
    check_local(model, MODEL)
    if revision is not None and (model == "demo" or Path(model).exists()):
        raise InputError(f"--revision {revision}: model {model} is local and has no revisions")
    if model == "demo":
        return Path(__file__).parents[2] / "demo" / "model"
    folder = Path(model)
    try:
        is_folder, exists = folder.is_dir(), folder.exists()
    except (OSError, ValueError) as problem:  # too long, not permitted, a zero byte
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
    """A GGUF file of a hub repository, fetched with the other files of its split.

    Args:
        file: its name, or a part of it, such as a type, that no other file's name contains.

    Raises:
        InputError: no file, or several.
    """
    split = FIRST_OF_SPLIT.fullmatch(file)
    pattern = f"{split[1]}-*-of-{split[3]}{GGUF}" if split else f"*{file.removesuffix(GGUF)}*{GGUF}"
    folder = _from_hub(name, revision, [pattern], cache_dir)
    found = sorted(folder.rglob(pattern))
    firsts = [path for path in found if not (part := FIRST_OF_SPLIT.fullmatch(path.name))
              or int(part[2]) == 1]  # fmt: skip
    exact = [path for path in firsts if path.name == file]
    if len(exact or firsts) != 1:
        names = ", ".join(path.name for path in found) or "none"
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


def refuse_gguf(folder: Path) -> None:
    """Refuse a folder that lacks files and has GGUF files: one has to be named.

    Raises:
        InputError: it has some; the message lists them.
    """
    if names := sorted(file.name for file in folder.glob(f"*{GGUF}")):
        raise InputError(
            f"{folder}: holds GGUF files alone; give one of them as the model: {', '.join(names)}"
        )


def read_json(path: Path) -> Any:
    """A JSON file of the checkpoint.

    Raises:
        InputError: missing, unreadable, not JSON, or a link out of its folder.
    """
    check_side_file(path, path.parent)
    return json_input.read_json(path, f"a Hugging Face checkpoint folder with {path.name}")


def is_converted(folder: Path) -> bool:
    """Whether a folder was written by `jaxscore convert`."""
    return (folder / CONVERTED).exists()


def config_path(folder: Path) -> Path:
    """The file that has a model's config: `config.json`, or a GGUF file itself."""
    return folder if is_gguf(folder) else folder / CONFIG

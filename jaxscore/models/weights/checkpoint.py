"""The folder of a checkpoint and its `config.json`."""

from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io import json_input
from jaxscore.io.json_input import check_regular
from jaxscore.io.local_path import check_local

# Files of a hub repository; many repositories hold the weights a second time under other names
FILES = ["*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja"]
MODEL = "a local folder or a hub id such as NAME/NAME"
CONFIG = "config.json"
CONVERTED = "jaxscore.json"  # file by which a converted checkpoint is recognised,
CONVERTED_PARAMS = "params"  # and the folder of its parameters
GGUF = ".gguf"


def resolve(
    model: str, revision: str | None, *, with_code: bool = False, cache_dir: Path | None = None
) -> Path:
    """The local folder of a checkpoint: itself, the embedded one, or a hub snapshot.

    Args:
        model: a folder, a hub id or "demo".
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
    if is_folder:
        return folder
    if exists:
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
    """Message that says how to convert a GGUF file."""
    folder, name = str(file.parent), file.name
    return (
        f"{file}: GGUF is not read yet; transformers converts it to a folder OUT, which --model "
        f"then takes: AutoModelForCausalLM.from_pretrained({folder!r}, gguf_file={name!r})"
        ".save_pretrained(OUT), and AutoTokenizer in the same way (it needs the package gguf; "
        "transformers 5 wants quantization_config=GgufConfig(dequantize=True) for the model, too)"
    )


def refuse_gguf(folder: Path) -> None:
    """Refuse a folder that lacks files and has a GGUF file.

    Raises:
        InputError: it has one; the message says how to convert it.
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


def is_converted(folder: Path) -> bool:
    """Whether a folder was written by `jaxscore convert`."""
    return (folder / CONVERTED).exists()


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as written."""
    path = folder / CONFIG
    if not path.exists():
        refuse_gguf(folder)
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: expected an object with a string `model_type`")
    return config

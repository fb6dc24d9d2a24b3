"""The folder of a checkpoint and its `config.json`."""

import dataclasses
import json
from collections.abc import Callable, Mapping
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


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` as written, or what it would be for a GGUF file."""
    path = config_path(folder)
    if path == folder:
        from jaxscore.models.weights import gguf

        return gguf.read_config(folder)
    if not path.exists():
        refuse_gguf(folder)
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{path}: expected an object with a string `model_type`")
    return config


FILE = "generation_config.json"
MAX_ID = (1 << 31) - 1  # of a token
MAX_REAL = 1e30  # below the largest float32


@dataclasses.dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults of a checkpoint, as transformers' `generate` would apply them.

    jaxscore reports them and applies none: a `GenerationRequest` states its own.

    Attributes:
        do_sample: sample instead of greedy decoding. The values below apply to sampling only,
            except for `repetition_penalty`.
        temperature, top_k, top_p: of sampling; a top_k of 0 keeps all tokens.
        repetition_penalty: of greedy and sampled text.
        unhandled: entries by name that change the text and that jaxscore does not implement.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    unhandled: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def unhandled_greedy(self) -> dict[str, Any]:
        """Entries of `unhandled` that also change greedy text."""
        return {name: value for name, value in self.unhandled.items() if name not in SAMPLING}


def raw_config(config: Any) -> dict[str, Any]:
    """A config as config.json has it.

    Args:
        config: that, an object of transformers, or the folder or hub id of a checkpoint.

    Raises:
        InputError: anything else.
    """
    if isinstance(config, str | Path):
        return read_config(resolve(str(config), None))
    if isinstance(config, Mapping):
        return dict(config)
    if not hasattr(config, "to_json_string"):
        raise InputError(
            f"config is {type(config).__name__}, expected what config.json contains, a config of "
            "transformers, or the folder or hub id of a checkpoint"
        )
    found: dict[str, Any] = json.loads(config.to_json_string())
    return found


def _number(value: Any) -> bool:
    return type(value) in (int, float) and -MAX_REAL < value < MAX_REAL


# Entries that a `GenerationRequest` has, with a test of the values that it accepts
COMPUTED: dict[str, Callable[[Any], bool]] = {
    "do_sample": lambda value: type(value) is bool,
    "temperature": lambda value: _number(value) and value > 0,
    "top_k": lambda value: type(value) is int and value >= 0,
    "top_p": lambda value: _number(value) and 0 < value <= 1,
    "repetition_penalty": lambda value: _number(value) and value > 0,
}

# Entries of sampled text, and other entries of any text -> values beside None that change nothing
SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (),
    "top_k": (),
    "top_p": (),
    "min_p": (0,),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
ANY_TEXT: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "max_time": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "sequence_bias": ({}, []),
    "stop_strings": ([], ""),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": (),
}


def read_generation_config(
    folder: Path, config: Mapping[str, Any]
) -> tuple[tuple[int, ...], GenerationDefaults]:
    """EOS ids and sampling defaults of a checkpoint.

    Each comes from `generation_config.json` if it has them, otherwise from the config.

    Args:
        config: the text model's.

    Raises:
        InputError: the file is not a JSON object, or an `eos_token_id` is not an id or a list of
            ids.
    """
    path = folder / FILE
    written = read_json(path) if path.exists() else None
    if not isinstance(written, dict | None):
        raise InputError(f"{path}: expected an object, found {type(written).__name__}")
    if written is None or "eos_token_id" not in written:
        ends = _eos_ids(config, config_path(folder))
    else:
        ends = _eos_ids(written, path)
    return ends, _defaults(config if written is None else written)


def _eos_ids(config: Mapping[str, Any], where: Path) -> tuple[int, ...]:
    found = config.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(id) is int and 0 <= id <= MAX_ID for id in ids):
        raise InputError(
            f"{where}: eos_token_id is {found!r}, expected a token id or a list of them"
        )
    return tuple(ids)


def _defaults(config: Mapping[str, Any]) -> GenerationDefaults:
    given = {name: value for name, value in config.items() if value is not None}
    values = {name: given[name] for name in COMPUTED if name in given}
    valid = {name: value for name, value in values.items() if COMPUTED[name](value)}
    neutral = SAMPLING | ANY_TEXT
    unhandled = {
        name: value
        for name, value in given.items()
        if (name in neutral and name not in COMPUTED and value not in neutral[name])
        or (name in values and name not in valid)
    }
    return GenerationDefaults(**valid, unhandled=unhandled)

"""A checkpoint's tokenizer, and what it puts before a text."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from jaxscore.errors import InputError
from jaxscore.text import tokenizer_files
from jaxscore.text.bounded_tokenizer import panics_named, special_tokens_around
from jaxscore.text.transformers_log import errors_only

# Classes whose tokenizer transformers 4.57 and 5.x make alike from a vocabulary without
# tokenizer.json, which old checkpoints have not.
FROM_VOCABULARY = {"BertTokenizer": ("vocab.txt",), "GPT2Tokenizer": ("vocab.json", "merges.txt")}


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The checkpoint's fast tokenizer.

    Raises:
        InputError: no tokenizer there, or only a slow one, which has no offsets; one that brings
            code without `trust_remote_code`; or files that contradict each other.
    """
    advice = "; expected tokenizer.json beside the model"
    with panics_named(f"{folder}: no usable tokenizer", advice, InputError):
        settings = tokenizer_files.read_settings(folder)
        brings_code = tokenizer_files.brings_code(folder, settings)
        if brings_code and not trust_remote_code:
            raise InputError(
                f"{folder}: its tokenizer brings code of its own (auto_map); read it, then give "
                "--trust-remote-code to run it"
            )
        name = tokenizer_files.class_name(folder, settings)
        if (folder / tokenizer_files.TRUTH).exists() and not brings_code:
            with errors_only():
                return tokenizer_files.read(folder)
        files = FROM_VOCABULARY.get(name, (tokenizer_files.TRUTH,))
        missing = [file for file in files if not (folder / file).is_file()]
        if missing and not brings_code:
            raise InputError(
                f"{folder}: no usable tokenizer ({', '.join(missing)} missing, "
                f"{name or 'no class'} named); expected tokenizer.json beside the "
                "model, which save_pretrained of transformers' AutoTokenizer writes where the "
                "class has a fast tokenizer"
            )
        return _made_by_transformers(folder, trust_remote_code=brings_code)


def _made_by_transformers(folder: Path, *, trust_remote_code: bool) -> Any:
    """What transformers' class makes of its own files.

    Raises:
        InputError: a tokenizer without offsets.
    """
    from transformers import AutoTokenizer

    with errors_only():
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), use_fast=True, trust_remote_code=trust_remote_code
        )
    if not tokenizer.is_fast:
        raise InputError(
            f"{folder}: {type(tokenizer).__name__} is a slow tokenizer, which gives no offsets; "
            "save it with a tokenizer.json (convert_slow_tokenizer)"
        )
    return tokenizer


def special_prefix(tokenizer: Any) -> list[int]:
    """Ids that the tokenizer puts before a text, found on one that it knows."""

    def encode(probe: str, special_tokens: bool) -> list[int]:
        with panics_named(f"{tokenizer.name_or_path}: the tokenizer cannot read {probe!r}"):
            ids: list[int] = tokenizer(probe, add_special_tokens=special_tokens)["input_ids"]
        return ids

    found = special_tokens_around(encode)
    if found is None:
        raise InputError(
            f"{type(tokenizer).__name__}: cannot tell which special tokens it puts before a text; "
            "is tokenizer.json the one of this model?"
        )
    return found[0]


def own_backend(tokenizer: Any) -> Tokenizer:
    """What encodes, as a copy that neither cuts nor pads.

    A call of the tokenizer with `truncation=True` or `padding=True`, also in another thread, sets
    this on its backend for everybody. The copy shares what is large: vocabulary and merges.
    """
    given = tokenizer.backend_tokenizer
    backend = Tokenizer(given.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(given, name)
        if part is not None:
            setattr(backend, name, part)
    added = given.get_added_tokens_decoder()
    backend.add_tokens([added[id] for id in sorted(added)])
    assert backend.get_added_tokens_decoder() == added
    # Special tokens in a text are read as letters. A call sets the given backend's flag by this.
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    return backend

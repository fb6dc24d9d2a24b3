"""A checkpoint's tokenizer, what it puts before a text, and how two tokenizers differ."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from jaxscore.errors import InputError
from jaxscore.io.gguf_file import is_gguf
from jaxscore.text import tokenizer_files
from jaxscore.text.bounded_tokenizer import panics_as_errors, special_tokens_around
from jaxscore.text.checkpoint_tokenizer import CheckpointTokenizer, errors_only

# Classes whose tokenizer transformers 4.57 and 5.x build identically from a vocabulary; old
# checkpoints have no tokenizer.json.
FROM_VOCABULARY = {"BertTokenizer": ("vocab.txt",), "GPT2Tokenizer": ("vocab.json", "merges.txt")}
# Parts of tokenizer.json that change no id. The post-processor does, but only its prefix is used.
NOT_OF_IDS = frozenset({"version", "truncation", "padding", "post_processor", "decoder"})
MATCHING_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized")


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Load the checkpoint's fast tokenizer.

    Raises:
        InputError: the folder has no tokenizer, or only a slow one, which has no offsets; the
            tokenizer brings code and `trust_remote_code` is False; or its files contradict each
            other.
    """
    if is_gguf(folder):
        with panics_as_errors(f"{folder}: no usable tokenizer", "", InputError):
            return tokenizer_files.read_gguf(folder)
    advice = "; expected tokenizer.json beside the model"
    with panics_as_errors(f"{folder}: no usable tokenizer", advice, InputError):
        settings = tokenizer_files.read_settings(folder)
        brings_code = tokenizer_files.brings_code(folder, settings)
        if brings_code and not trust_remote_code:
            raise InputError(
                f"{folder}: its tokenizer brings code of its own (auto_map); read it, then give "
                "--trust-remote-code to run it"
            )
        name = tokenizer_files.class_name(folder, settings)
        if (folder / tokenizer_files.TRUTH).exists() and not brings_code:
            return tokenizer_files.read_tokenizer(folder)
        files = FROM_VOCABULARY.get(name, (tokenizer_files.TRUTH,))
        missing = [file for file in files if not (folder / file).is_file()]
        if missing and not brings_code:
            raise InputError(
                f"{folder}: no usable tokenizer ({', '.join(missing)} missing, "
                f"{name or 'no class'} named); expected tokenizer.json beside the "
                "model, which save_pretrained of transformers' AutoTokenizer writes where the "
                "class has a fast tokenizer"
            )
        from transformers import AutoTokenizer

        with errors_only():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder), use_fast=True, trust_remote_code=brings_code
            )
        if not tokenizer.is_fast:
            raise InputError(
                f"{folder}: {type(tokenizer).__name__} is a slow tokenizer, which gives no "
                "offsets; save it with a tokenizer.json (convert_slow_tokenizer)"
            )
        return tokenizer


def special_prefix(tokenizer: Any) -> list[int]:
    """Ids that the tokenizer puts before every text, found by encoding a short one."""

    def encode(probe: str, special_tokens: bool) -> list[int]:
        with panics_as_errors(f"{tokenizer.name_or_path}: the tokenizer cannot read {probe!r}"):
            if isinstance(tokenizer, CheckpointTokenizer):
                backend = tokenizer.backend_tokenizer
                return list(backend.encode(probe, add_special_tokens=special_tokens).ids)
            ids: list[int] = tokenizer(probe, add_special_tokens=special_tokens)["input_ids"]
        return ids

    found = special_tokens_around(encode)
    if found is None:
        raise InputError(
            f"{type(tokenizer).__name__}: which special tokens it puts before a text is not clear; "
            "is tokenizer.json the one of this model?"
        )
    return found[0]


def copy_backend(tokenizer: Any) -> Tokenizer:
    """Copy the tokenizer's backend, without truncation and padding.

    A call of the tokenizer with `truncation=True` or `padding=True`, also in another thread, sets
    both on its backend for every user. The copy shares the large parts: vocabulary and merges.
    """
    source = tokenizer.backend_tokenizer
    backend = Tokenizer(source.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        part = getattr(source, name)
        if part is not None:
            setattr(backend, name, part)
    added = source.get_added_tokens_decoder()
    backend.add_tokens([added[id] for id in sorted(added)])
    assert backend.get_added_tokens_decoder() == added
    # Whether special tokens in a text are read as letters; each call sets it on the source.
    backend.encode_special_tokens = bool(tokenizer.split_special_tokens)
    return backend


def tokenizer_difference(first: Any, second: Any) -> str | None:
    """Describe what differs between two tokenizers, or None if no id can differ.

    Compares the tokenizers' parts. Two that are written differently and still give the same ids
    count as different.
    """
    ours: dict[str, Any] = json.loads(first.backend_tokenizer.to_str())
    theirs: dict[str, Any] = json.loads(second.backend_tokenizer.to_str())
    vocabulary, other = _vocabulary(ours), _vocabulary(theirs)
    if vocabulary != other:
        n = sum(other.get(token) != id for token, id in vocabulary.items())
        n += sum(token not in vocabulary for token in other)
        return f"{n} tokens of their vocabularies differ, {_first_difference(vocabulary, other)}"
    if (added := _added_tokens(ours)) != (others := _added_tokens(theirs)):
        ids = sorted(id for id in {*added, *others} if added.get(id) != others.get(id))
        return f"{len(ids)} of their added tokens differ, the first one with id {ids[0]}"
    for name in sorted({*ours, *theirs} - NOT_OF_IDS - {"added_tokens"}):
        if ours.get(name) != theirs.get(name):
            return f"their {name.replace('_', ' ')} differs"
    if first.split_special_tokens != second.split_special_tokens:
        return "one reads special tokens in a text as letters (split_special_tokens)"
    prefixes = special_prefix(first), special_prefix(second)
    if prefixes[0] != prefixes[1]:
        return f"before a text one puts the ids {prefixes[0]} and the other {prefixes[1]}"
    return None


def _vocabulary(parts: Mapping[str, Any]) -> dict[str, int]:
    """Token -> id, without added tokens."""
    vocabulary = (parts.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, Mapping):
        return dict(vocabulary)
    return {token: id for id, (token, *_) in enumerate(vocabulary)}  # a unigram model's


def _added_tokens(parts: Mapping[str, Any]) -> dict[int, tuple[Any, ...]]:
    """Id -> the flags that decide where an added token matches a text."""
    tokens = parts.get("added_tokens") or []
    return {token["id"]: tuple(token.get(flag) for flag in MATCHING_FLAGS) for token in tokens}


def _first_difference(ours: Mapping[str, int], theirs: Mapping[str, int]) -> str:
    """The lowest id that stands for different tokens."""
    names = [{id: token for token, id in ids.items()} for ids in (ours, theirs)]
    id = min(id for id in {*names[0], *names[1]} if names[0].get(id) != names[1].get(id))
    found = [f"{name[id]!r}" if id in name else "nothing" for name in names]
    return f"the first one is id {id}, {found[0]} in one and {found[1]} in the other"

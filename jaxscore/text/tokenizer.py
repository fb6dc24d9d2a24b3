"""A checkpoint's tokenizer, and what it puts before a text."""

from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.text.transformers_log import errors_only


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The checkpoint's fast tokenizer.

    Raises:
        InputError: no tokenizer there, or only a slow one, which has no offsets.
    """
    from transformers import AutoTokenizer

    try:
        with errors_only():
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder), use_fast=True, trust_remote_code=trust_remote_code
            )
    except Exception as problem:  # each tokenizer class fails in its own way
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise InputError(
            f"{folder}: no usable tokenizer ({reason[0]}); expected tokenizer.json beside the model"
        ) from None
    if not tokenizer.is_fast:
        raise InputError(
            f"{folder}: {type(tokenizer).__name__} is a slow tokenizer, which gives no offsets; "
            "save it with a tokenizer.json (convert_slow_tokenizer)"
        )
    return tokenizer


def special_prefix(tokenizer: Any) -> list[int]:
    """Ids that the tokenizer puts before a text, found on one that it knows."""
    for probe in ("a", "0", "e", ".", " "):
        bare = tokenizer(probe, add_special_tokens=False)["input_ids"]
        full = tokenizer(probe, add_special_tokens=True)["input_ids"]
        for k in range(len(full) - len(bare) + 1):
            if bare and full[k : k + len(bare)] == bare:
                return full[:k]
    raise InputError(
        f"{type(tokenizer).__name__}: cannot tell which special tokens it puts before a text; "
        "is tokenizer.json the one of this model?"
    )

"""How each value of `model_args` is read: it comes as a Python object or as text."""

import json
import os
import re
from collections.abc import Callable
from typing import Any

from jaxscore.errors import InputError
from jaxscore.lm import LM
from jaxscore.models.choices import DTYPES, IMPLEMENTATIONS, QUANTIZED
from jaxscore.plan.row_batches import SHORTEST_ROW

# The command line of lm-evaluation-harness gives these where its user gives nothing.
UNSAID = {"batch_size": 1, "device": "cuda:0"}


class ArgumentError(InputError, TypeError):
    """A name that `model_args` does not know, or a value that it does not take."""


def wrong(name: str, value: Any, expected: str) -> ArgumentError:
    return ArgumentError(f"model_args: {name} is {value!r}, expected {expected}")


def _text(name: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # a name that reads as a number
    raise wrong(name, value, "a text")


def _place(name: str, value: Any) -> str | None:
    return _text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _pretrained(name: str, value: Any) -> Any:
    if isinstance(value, LM) and value.capabilities.is_local:
        return value
    try:
        return _place(name, value)
    except ArgumentError:
        found = type(value).__name__
        raise wrong(name, found, "a folder, a hub id, demo or a Scorer") from None


def _one_of(*choices: str) -> Callable[[str, Any], str | None]:
    def one_of(name: str, value: Any) -> str | None:
        if value not in (None, *choices):
            raise wrong(name, value, f"one of {', '.join(choices)}")
        found: str | None = value
        return found

    return one_of


def flag(name: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise wrong(name, value, "true or false")


def _whole(least: int) -> Callable[[str, Any], int | None]:
    def whole(name: str, value: Any) -> int | None:
        if value is None:
            return None
        written = str(value)
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,18}", written):
            raise wrong(name, value, "a whole number")
        if int(written) < least:
            raise wrong(name, value, f"at least {least}")
        return int(written)

    return whole


def _revision(name: str, value: Any) -> str | None:
    """hf's default is "main", which a folder does not have."""
    found = _text(name, value)
    return None if found == "main" else found


def _dtype(name: str, value: Any) -> str | None:
    if value is None:
        return None
    found = str(value).removeprefix("torch.")
    found = {"float": "float32"}.get(found, found)
    if found in ("float16", "half"):
        raise wrong(name, value, "bfloat16 or float32: float16 overflows in some models")
    if found not in DTYPES:
        raise wrong(name, value, f"one of {', '.join(DTYPES)}")
    return found


def _device(name: str, value: Any) -> str | None:
    if value is None or value == UNSAID["device"]:
        return None
    kind, colon, number = str(value).partition(":")
    if kind not in ("cpu", "cuda", "gpu", "tpu"):
        raise wrong(name, value, "cpu, gpu, cuda or tpu, as JAX has them")
    if colon and number != "0":
        raise wrong(
            name, value, f"{kind}; CUDA_VISIBLE_DEVICES chooses among several, and mesh takes all"
        )
    return kind


def _template_args(name: str, value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise wrong(name, value, "a JSON object") from None
    if value is not None and not isinstance(value, dict):
        raise wrong(name, value, "an object")
    return value


def _token(name: str, value: Any) -> str | int | None:
    if isinstance(value, str) and value.isdigit():
        return int(value)
    if value is None or (isinstance(value, str) and value) or type(value) is int:
        return value
    raise wrong(name, value, "the text or the id of a token")


def _batch_tokens(name: str, value: Any) -> int | str | None:
    return value if value == "auto" else _whole(SHORTEST_ROW)(name, value)


def _keys(name: str, value: Any) -> tuple[str, ...] | None:
    """Several are a list, or one text with `+` between them: a comma ends an argument of hf's."""
    if value is None:
        return None
    found = value.split("+") if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(
        isinstance(one, str) and one for one in found
    ):
        raise wrong(name, value, "keys of the config, such as KEY or KEY+OTHER")
    return tuple(found)


READERS: dict[str, Callable[[str, Any], Any]] = {
    "pretrained": _pretrained,
    "tokenizer": _place,
    "revision": _revision,
    "trust_remote_code": flag,
    "dtype": _dtype,
    "device": _device,
    "max_length": _whole(1),
    "max_gen_toks": _whole(1),
    "add_bos_token": flag,
    "prefix_token_id": _whole(0),
    "chat_template_args": _template_args,
    "enable_thinking": flag,
    "think_end_token": _token,
    "peft": _place,
    "quantize": _one_of(*QUANTIZED),
    "mesh": _text,
    "batch_tokens": _batch_tokens,
    "journal": _place,
    "reproducible": flag,
    "implementation": _one_of(*IMPLEMENTATIONS),
    "accept_config": _keys,
    "cache_dir": _place,
    "details": _place,
    "audit_noise": _whole(0),
}

# Those that only requests of lm-evaluation-harness ask for
OF_LM_EVAL = frozenset(
    "audit_noise chat_template_args details enable_thinking max_gen_toks prefix_token_id "
    "think_end_token".split()
)

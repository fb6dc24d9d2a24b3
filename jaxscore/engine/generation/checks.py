"""Checks of generation requests: error messages for those that cannot be generated."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxscore.errors import is_valid_unicode
from jaxscore.models.model import Model
from jaxscore.text.decoder import PIECE
from jaxscore.types.requests import GenerationRequest

INTEGER, NUMBER = int | np.integer, int | float | np.integer | np.floating


def check_types(request: Any) -> str | None:
    """Describe a field of a wrong type or a prompt that no tokenizer can read, or return None."""
    if not isinstance(request, GenerationRequest):
        return f"it is of type {type(request).__name__}, expected a GenerationRequest or a string"
    r = request
    expected = {
        "prompt": (r.prompt, str | Sequence | np.ndarray, "a string or token ids"),
        "max_new_tokens": (r.max_new_tokens, INTEGER, "a whole number"),
        "temperature": (r.temperature, NUMBER, "a number"),
        "top_p": (r.top_p, NUMBER, "a number"),
        "stop": (r.stop, tuple | list, "a tuple of strings"),
        "seed": (r.seed, INTEGER, "a whole number"),
        "top_k": (r.top_k, INTEGER, "a whole number"),
        "repetition_penalty": (r.repetition_penalty, NUMBER, "a number"),
        "eos_ids": (r.eos_ids, tuple | list | None, "a tuple of token ids, or None"),
    }
    for name, (value, kind, words) in expected.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            return f"its {name} is of type {type(value).__name__}, expected {words}"
    if not all(isinstance(stop, str) for stop in r.stop):
        return "its stop strings are not all strings"
    if isinstance(r.prompt, str) and not is_valid_unicode(r.prompt):
        return "its prompt has half a surrogate pair, which is no character"
    return None


def check_request(request: GenerationRequest, ids: np.ndarray, model: Model) -> str | None:
    """Describe why a well-typed request cannot be generated, or return None.

    Args:
        ids: the prompt's token ids, all in the model's vocabulary.
    """
    if not len(ids):
        return "its prompt has no tokens, so nothing comes after it"
    if n_free_positions(ids, model) < 1:
        return (
            f"its prompt has {len(ids)} tokens, the model takes {model.max_positions} "
            "positions, which leaves none to write in; shorten it"
        )
    return (
        _check_sampling(request, model)
        or _check_ends(request, model)
        or _check_rotary(request, ids, model)
    )


def n_free_positions(ids: np.ndarray, model: Model) -> int:
    """Tokens that may follow a prompt; with our own cache the last one needs no position."""
    return model.max_positions - len(ids) + (model.cached is not None)


def _check_sampling(r: GenerationRequest, model: Model) -> str | None:
    bad_temperature = not 0 <= r.temperature < math.inf  # true for NaN
    if r.max_new_tokens < 1 or bad_temperature or not 0 < r.top_p <= 1:
        return (
            f"max_new_tokens {r.max_new_tokens}, temperature {r.temperature} and top_p "
            f"{r.top_p}: expected at least 1, at least 0 and finite, and above 0 up to 1"
        )
    if r.top_k < 0 or not 0 < r.repetition_penalty < math.inf:
        return (
            f"top_k {r.top_k} and repetition_penalty {r.repetition_penalty}: expected at least 0, "
            "and above 0 and finite"
        )
    if model.cached is None and (r.top_k or r.repetition_penalty != 1):
        return (
            f"top_k {r.top_k} and repetition_penalty {r.repetition_penalty} are not computed with "
            "transformers' Flax classes; leave them out, or give --model-impl native"
        )
    return None


def _check_ends(r: GenerationRequest, model: Model) -> str | None:
    if "" in r.stop:
        return "a stop string is empty, so the text would end before it begins"
    if any(PIECE in stop for stop in r.stop):
        return (
            "a stop string has U+FFFD, which stands for bytes that are no whole character yet; "
            "leave it out"
        )
    vocab_size = model.vocab_size
    if wrong := [
        id
        for id in r.eos_ids or ()
        if not isinstance(id, INTEGER) or isinstance(id, bool) or not 0 <= id < vocab_size
    ]:
        return f"its eos_ids have {wrong[0]!r}, expected token ids from 0 to {vocab_size - 1}"
    return None


def _check_rotary(r: GenerationRequest, ids: np.ndarray, model: Model) -> str | None:
    longer, n_new = model.longer, min(r.max_new_tokens, n_free_positions(ids, model))
    if longer is not None and len(ids) <= longer[0] < len(ids) + n_new - 1:
        return (
            f"its prompt of {len(ids)} tokens and {n_new} new ones go beyond the "
            f"{longer[0]} up to which this model has other rotary frequencies; ask for at "
            f"most {longer[0] - len(ids) + 1} new tokens"
        )
    return None

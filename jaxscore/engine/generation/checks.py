"""Which requests for text cannot be written, and why."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxscore.io.printable import is_valid_unicode
from jaxscore.models.model import Model
from jaxscore.text.decoder import PIECE
from jaxscore.types.requests import GenerationRequest

WHOLE, NUMBER = int | np.integer, int | float | np.integer | np.floating


def unreadable(request: Any) -> str | None:
    """Which field of a request has a wrong type, or a prompt that no tokenizer can read."""
    if not isinstance(request, GenerationRequest):
        return f"it is of type {type(request).__name__}, expected a GenerationRequest or a string"
    r = request
    expected = {
        "prompt": (r.prompt, str | Sequence | np.ndarray, "a string or token ids"),
        "max_new_tokens": (r.max_new_tokens, WHOLE, "a whole number"),
        "temperature": (r.temperature, NUMBER, "a number"),
        "top_p": (r.top_p, NUMBER, "a number"),
        "stop": (r.stop, tuple | list, "a tuple of strings"),
        "seed": (r.seed, WHOLE, "a whole number"),
        "top_k": (r.top_k, WHOLE, "a whole number"),
        "repetition_penalty": (r.repetition_penalty, NUMBER, "a number"),
        "eos_ids": (r.eos_ids, tuple | list | None, "a tuple of token ids, or None"),
    }
    for name, (value, kind, words) in expected.items():
        if not isinstance(value, kind) or isinstance(value, bool):
            return f"its {name} is of type {type(value).__name__}, expected {words}"
    if not all(isinstance(one, str) for one in r.stop):
        return "its stop strings are not all strings"
    if isinstance(r.prompt, str) and not is_valid_unicode(r.prompt):
        return "its prompt has half a surrogate pair, which is no character"
    return None


def complaint(request: GenerationRequest, ids: np.ndarray, model: Model) -> str | None:
    """Why a request that can be read cannot be written.

    Args:
        ids: of its prompt, all in the model's vocabulary.
    """
    if not len(ids):
        return "its prompt has no tokens, so nothing comes after it"
    if room(ids, model) < 1:
        return (
            f"its prompt has {len(ids)} tokens, the model takes {model.max_positions} "
            "positions, which leaves none to write in; shorten it"
        )
    return _sampling(request, model) or _ends(request, model) or _rotary(request, ids, model)


def room(ids: np.ndarray, model: Model) -> int:
    """Tokens that may follow; the last one is never fed, which only our own cache knows."""
    return model.max_positions - len(ids) + (model.cached is not None)


def _sampling(r: GenerationRequest, model: Model) -> str | None:
    hot = not 0 <= r.temperature < math.inf  # which NaN is too
    if r.max_new_tokens < 1 or hot or not 0 < r.top_p <= 1:
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


def _ends(r: GenerationRequest, model: Model) -> str | None:
    if "" in r.stop:
        return "a stop string is empty, so the text would end before it begins"
    if any(PIECE in stop for stop in r.stop):
        return (
            "a stop string has U+FFFD, which stands for bytes that are no whole character yet; "
            "leave it out"
        )
    most = model.vocab_size
    if wrong := [
        id
        for id in r.eos_ids or ()
        if not isinstance(id, WHOLE) or isinstance(id, bool) or not 0 <= id < most
    ]:
        return f"its eos_ids have {wrong[0]!r}, expected token ids from 0 to {most - 1}"
    return None


def _rotary(r: GenerationRequest, ids: np.ndarray, model: Model) -> str | None:
    longer, n_new = model.longer, min(r.max_new_tokens, room(ids, model))
    if longer is not None and len(ids) <= longer[0] < len(ids) + n_new - 1:
        return (
            f"its prompt of {len(ids)} tokens and {n_new} new ones go beyond the "
            f"{longer[0]} up to which this model has other rotary frequencies; ask for at "
            f"most {longer[0] - len(ids) + 1} new tokens"
        )
    return None

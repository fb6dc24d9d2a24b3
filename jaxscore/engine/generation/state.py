"""Checks of generation requests; state of texts: tokens on the host, a slot on the device."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.device import generate
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.generate import GenerationState, NewRequests
from jaxscore.device.sampling import Sampling
from jaxscore.errors import is_valid_unicode
from jaxscore.models.model import Model
from jaxscore.plan.requests import GeneratedTokens, TokenRequest
from jaxscore.text.bounded_tokenizer import TextError
from jaxscore.text.decoder import PIECE, StopSearch, TokenBytes
from jaxscore.types.requests import GenerationRequest

NOT_FINITE = "the model gave logits that are not finite; check the weights, or use float32"
ABANDONED = "abandoned"

# Arguments and result of `device.generate.start`: state, sampling settings, EOS ids.
DecodeArrays = tuple[GenerationState, Sampling, Any]


@dataclasses.dataclass
class TextState:
    """State of one text during generation.

    Attributes:
        token_ids: the ids generated so far, without the EOS.
        text: the decoded text; empty until the text has finished.
        finish_reason: "eos", "stop" or "length"; None until the text has finished.
        eos_id: the EOS that finished the text, or None.
        watch: function of the ids so far and a flag, True if the text has finished; returns True
            to continue.
    """

    request: TokenRequest
    token_ids: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    eos_id: int | None = None
    error: str | None = None
    watch: Callable[[list[int], bool], bool] | None = None
    _search: StopSearch | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def append(self, ids: np.ndarray, token_bytes: TokenBytes) -> None:
        """Append tokens up to the one that finishes the text; set `error` if decoding fails."""
        try:
            self._append(ids, token_bytes)
        except TextError as error:
            self.error = str(error)

    def _append(self, ids: np.ndarray, token_bytes: TokenBytes) -> None:
        search = self._search = self._search or StopSearch(self.request.stop, token_bytes.raw)
        for token_id in ids.tolist():
            if token_id == generate.NONFINITE:
                self.error = NOT_FINITE
                return
            if token_id in self.request.eos_ids:
                self.finish_reason, self.eos_id = "eos", token_id
                break
            self.token_ids.append(token_id)
            if search.ends_with(token_id):
                self.finish_reason = "stop"
                break
            if len(self.token_ids) == self.request.n_new:
                self.finish_reason = "length"
                break
        self._decode(token_bytes)

    def notify_watcher(self) -> None:
        """Call `watch`; if it returns False, set the error `ABANDONED`."""
        continues = self.watch is None or self.watch(self.token_ids, self.finished)
        if not continues and not self.finished:
            self.error = ABANDONED

    def restore(self, journaled: GeneratedTokens, token_bytes: TokenBytes) -> None:
        """Finish as in an earlier run, unless the tokenizer now decodes the ids differently."""
        ids = journaled.ids.tolist()
        try:
            stops_before_last = self._has_stop(token_bytes.join_all(ids[:-1]))
            stops = self._has_stop(token_bytes.join_all(ids))
            if not stops_before_last and stops == (journaled.finish == "stop"):
                self.token_ids, self.eos_id = ids, journaled.eos_id
                self.finish_reason = journaled.finish
                self._decode(token_bytes)
        except TextError as error:
            self.error = str(error)

    def _has_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.request.stop)

    def _decode(self, token_bytes: TokenBytes) -> None:
        if self.finish_reason == "stop":
            self.text = token_bytes.text_before(self.token_ids, self.request.stop)
        elif self.finish_reason is not None:
            self.text = token_bytes.join(self.token_ids)


class SamplingFeatures(NamedTuple):
    """Properties of all requests of a slot table that select its programs.

    Attributes:
        greedy: True if all requests are greedy.
        cut: True if a sampling request has a `top_k`, or a `top_p` below 1.
        penalties: True if a request has a repetition penalty.
        n_eos: maximum number of EOS ids of a request, rounded up to a power of two so that few
            shapes compile.
    """

    greedy: bool
    cut: bool
    penalties: bool
    n_eos: int


def sampling_features(requests: Sequence[TokenRequest]) -> SamplingFeatures:
    n_eos = max(len(request.eos_ids) for request in requests)
    sampled = [request for request in requests if request.temperature > 0]
    return SamplingFeatures(
        greedy=not sampled,
        cut=any(request.top_k or request.top_p < 1 for request in sampled),
        penalties=any(request.repetition_penalty != 1 for request in requests),
        n_eos=1 << max(0, n_eos - 1).bit_length(),
    )


def empty_rows(
    cache: KVCache,
    rows: int,
    features: SamplingFeatures,
    vocab_size: int,
    put: Callable[[Any], Any],
) -> DecodeArrays:
    """Create the decoding state of an empty slot table, in which all rows are done.

    Args:
        cache: the cache, on the devices.
        put: copies host arrays to the devices.
    """
    unused = starting_rows([], rows, rows, features, vocab_size, put)
    done, drawn = put((np.ones(rows, bool), np.zeros(rows, np.int32)))
    state = GenerationState(cache, unused.token, done, unused.left, drawn, unused.seen)
    return state, unused.sampling, unused.eos


def starting_rows(
    started: Sequence[tuple[int, int, int, TokenRequest]],
    width: int,
    rows: int,
    features: SamplingFeatures,
    vocab_size: int,
    put: Callable[[Any], Any],
) -> NewRequests:
    """Create the device arrays for requests that start.

    Args:
        started: row, number of cached prompt tokens, index of the prefilled state, and request of
            each text.
        width: length of the arrays, which are padded with the row index `rows`.
        rows: number of rows of the cache.
        put: copies host arrays to the devices.
    """

    def padded(values: Iterable[Any], fill: Any, dtype: Any) -> Any:
        entries = [*values]
        return put(np.array([*entries, *[fill] * (width - len(entries))], dtype))

    requests = [request for *_, request in started]
    eos = np.full((width, features.n_eos), -1, np.int32)
    seen = np.zeros((width, vocab_size), bool) if features.penalties else None
    for k, request in enumerate(requests):
        eos[k, : len(request.eos_ids)] = request.eos_ids
        if seen is not None:
            seen[k, request.ids] = True
    return NewRequests(
        slot=padded((row for row, *_ in started), rows, np.int32),
        length=padded((length for _, length, *_ in started), 0, np.int32),
        states_at=padded((index for *_, index, _ in started), 0, np.int32),
        token=padded((request.ids[-1] for request in requests), 0, np.int32),
        left=padded((request.n_new for request in requests), 0, np.int32),
        seen=put(seen),
        sampling=Sampling(
            padded((request.temperature for request in requests), 0.0, np.float32),
            padded((request.top_p for request in requests), 1.0, np.float32),
            padded((request.top_k for request in requests), 0, np.int32),
            padded((request.repetition_penalty for request in requests), 1.0, np.float32),
            padded((request.seed for request in requests), 0, np.uint32),
        ),
        eos=put(eos),
    )


INTEGER, NUMBER = int | np.integer, int | float | np.integer | np.floating


def check_types(request: Any) -> str | None:
    """Describe a field of a wrong type or a prompt of invalid Unicode; return None if valid."""
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
    for name, (value, types, description) in expected.items():
        if not isinstance(value, types) or isinstance(value, bool):
            return f"its {name} is of type {type(value).__name__}, expected {description}"
    if not all(isinstance(stop, str) for stop in r.stop):
        return "its stop strings are not all strings"
    if isinstance(r.prompt, str) and not is_valid_unicode(r.prompt):
        return "its prompt contains a lone surrogate (invalid Unicode)"
    return None


def check_request(request: GenerationRequest, ids: np.ndarray, model: Model) -> str | None:
    """Describe why a well-typed request cannot be generated; return None if it can.

    Args:
        ids: the prompt's token ids, all in the model's vocabulary.
    """
    if not len(ids):
        return "its prompt contains no tokens, expected at least one"
    if n_free_positions(ids, model) < 1:
        return (
            f"its prompt has {len(ids)} tokens, the model takes {model.max_positions} "
            "positions, which leaves no position for new tokens; shorten it"
        )
    return (
        _check_sampling(request, model)
        or _check_ends(request, model)
        or _check_rotary(request, ids, model)
    )


def n_free_positions(ids: np.ndarray, model: Model) -> int:
    """Return the number of tokens that may follow a prompt, by the model's positions.

    With a native cache, the last token is not read and does not need a position.
    """
    return model.max_positions - len(ids) + (model.functions.cached is not None)


def most_new_tokens(ids: np.ndarray, model: Model) -> int:
    """Return the largest number of tokens that the model can generate after a prompt.

    Keys and values of the cache belong to one set of rotary frequencies, so a text ends before the
    length at which LongRoPE's frequencies change. Its last token is not read.
    """
    n_free = n_free_positions(ids, model)
    if model.longer is None or len(ids) > model.longer[0]:
        return n_free
    return min(n_free, model.longer[0] - len(ids) + 1)


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
    if model.functions.cached is None and (r.top_k or r.repetition_penalty != 1):
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
            "a stop string contains U+FFFD, which represents the bytes of an incomplete character; "
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
    n_new, limit = min(r.max_new_tokens, n_free_positions(ids, model)), most_new_tokens(ids, model)
    if model.longer is not None and n_new > limit:
        return (
            f"its prompt of {len(ids)} tokens and {n_new} new ones exceed {model.longer[0]}, the "
            f"length at which this model's rotary frequencies change; request at most {limit} new "
            "tokens"
        )
    return None

"""A text while it is written: its tokens so far, and whether it has ended."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.device import generate
from jaxscore.device.attention.kv_cache import KVCache
from jaxscore.device.generate import GenerationState, NewRequests
from jaxscore.device.sampling import Sampling
from jaxscore.plan.requests import GeneratedTokens, TokenRequest
from jaxscore.text.bounded_tokenizer import TextError
from jaxscore.text.decoder import StopSearch, TextDecoder

NOT_FINITE = "the model gave logits that are not finite; check the weights, or use float32"
ABANDONED = "abandoned"


@dataclasses.dataclass
class Writing:
    """A text that is being written: what was asked for, and what is written so far.

    Attributes:
        text: empty until the text has ended.
        finish: "eos", "stop" or "length"; None until then.
        eos_id: what ended it where `finish` is "eos".
        watch: is told the ids so far and whether they are all, and says whether to go on.
    """

    request: TokenRequest
    written: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish: str | None = None
    eos_id: int | None = None
    error: str | None = None
    watch: Callable[[list[int], bool], bool] | None = None
    _search: StopSearch | None = None

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None

    def take(self, ids: np.ndarray, decoder: TextDecoder) -> None:
        """Add tokens up to the one that ends the text; one that cannot be decoded has an error."""
        try:
            self._take(ids, decoder)
        except TextError as problem:
            self.error = str(problem)

    def _take(self, ids: np.ndarray, decoder: TextDecoder) -> None:
        search = self._search = self._search or StopSearch(self.request.stop, decoder.shown)
        for id in ids.tolist():
            if id == generate.NONFINITE:
                self.error = NOT_FINITE
                return
            if id in self.request.eos_ids:
                self.finish, self.eos_id = "eos", id
                break
            self.written.append(id)
            if search.ends_with(id):
                self.finish = "stop"
                break
            if len(self.written) == self.request.n_new:
                self.finish = "length"
                break
        self._end(decoder)

    def look(self) -> None:
        """Let the one who watches see what is written; a text that nobody wants has ended."""
        wanted = self.watch is None or self.watch(self.written, self.ended)
        if not wanted and not self.ended:
            self.error = ABANDONED

    def restore(self, kept: GeneratedTokens, decoder: TextDecoder) -> None:
        """End as an earlier run did, unless the tokenizer has since come to read it otherwise."""
        ids = kept.ids.tolist()
        try:
            before, whole = (self._holds_stop(decoder.shown(some)) for some in (ids[:-1], ids))
            if not before and whole == (kept.finish == "stop"):
                self.written, self.finish, self.eos_id = ids, kept.finish, kept.eos_id
                self._end(decoder)
        except TextError as problem:
            self.error = str(problem)

    def _holds_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.request.stop)

    def _end(self, decoder: TextDecoder) -> None:
        if self.finish == "stop":
            self.text = decoder.text_before(self.written, self.request.stop)
        elif self.finish is not None:
            self.text = decoder.text(self.written)


DecodeArrays = tuple[GenerationState, Sampling, Any]  # what `generate.begin` takes and gives


class SamplingFeatures(NamedTuple):
    """What of all requests of a lane decides its programs.

    Attributes:
        greedy: none of them samples.
        cut: some that sample have a `top_k`, or a `top_p` below 1.
        penalties: some have a repetition penalty.
        n_eos: most ids that end a text, a power of two: few shapes to compile.
    """

    greedy: bool
    cut: bool
    penalties: bool
    n_eos: int


def sampling_features(asked: Sequence[TokenRequest]) -> SamplingFeatures:
    most = max(len(one.eos_ids) for one in asked)
    drawn = [one for one in asked if one.temperature > 0]
    return SamplingFeatures(
        not drawn,
        any(one.top_k or one.top_p < 1 for one in drawn),
        any(one.repetition_penalty != 1 for one in asked),
        1 << max(0, most - 1).bit_length(),
    )


def empty_rows(
    cache: KVCache, rows: int, facts: SamplingFeatures, vocab_size: int, put: Callable[[Any], Any]
) -> DecodeArrays:
    """What is decoded before any request has begun: all rows are done.

    Args:
        cache: on the devices.
        put: arrays of the host on the devices.
    """
    none = starting_rows([], rows, rows, facts, vocab_size, put)
    done, drawn = put((np.ones(rows, bool), np.zeros(rows, np.int32)))
    return (
        GenerationState(cache, none.token, done, none.left, drawn, none.seen),
        none.sampling,
        none.eos,
    )


def starting_rows(
    some: Sequence[tuple[int, int, TokenRequest]],
    width: int,
    rows: int,
    facts: SamplingFeatures,
    vocab_size: int,
    put: Callable[[Any], Any],
) -> NewRequests:
    """Requests that begin: (row, tokens of its prompt in the cache, request).

    Args:
        width: of the arrays; those beyond the requests are of no row.
        rows: of the cache.
        put: arrays of the host on the devices.
    """

    def of(values: Iterable[Any], fill: Any, dtype: Any) -> Any:
        given = [*values]
        return put(np.array([*given, *[fill] * (width - len(given))], dtype))

    asked = [request for *_, request in some]
    eos = np.full((width, facts.n_eos), -1, np.int32)
    seen = np.zeros((width, vocab_size), bool) if facts.penalties else None
    for k, one in enumerate(asked):
        eos[k, : len(one.eos_ids)] = one.eos_ids
        if seen is not None:
            seen[k, one.ids] = True
    return NewRequests(
        row=of((row for row, *_ in some), rows, np.int32),
        length=of((length for _, length, _ in some), 0, np.int32),
        token=of((one.ids[-1] for one in asked), 0, np.int32),
        left=of((one.n_new for one in asked), 0, np.int32),
        seen=put(seen),
        sampling=Sampling(
            of((one.temperature for one in asked), 0.0, np.float32),
            of((one.top_p for one in asked), 1.0, np.float32),
            of((one.top_k for one in asked), 0, np.int32),
            of((one.repetition_penalty for one in asked), 1.0, np.float32),
            of((one.seed for one in asked), 0, np.uint32),
        ),
        eos=put(eos),
    )

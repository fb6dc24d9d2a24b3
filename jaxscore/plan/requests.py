"""Requests in token ids, their results, and checks of requests before planning."""

import dataclasses
import functools
import hashlib
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError

NO_CHOICES = np.zeros(0, np.int32)
NO_TOP_ID, NO_TOP_LOGPROB = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
# Measures that depend on the scored token; all others depend on its position alone.
PER_TARGET_MEASURES = frozenset({"rank", "reference_logprob"})
MASS = "mass_"  # start of the name of a class's log-probability among the measures
NO_MEASURES: Mapping[str, np.ndarray] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids of one request, with the tokens to score.

    Attributes:
        ids: int32 [n], context and continuation.
        start: index of the continuation's first token, 0 to n. The token at index 0 has no
            preceding token and is never scored.
        choices: int32 [c], ids that are each scored as the next token after all of `ids`; no token
            of `ids` is then scored. Empty for a continuation.
        positions: int64 [k], ascending indices of the continuation's tokens if it has gaps, the
            first one `start`; None for all tokens from `start` on. Ids after the last one are
            dropped before planning, see `trimmed`.

    Raises:
        ValueError: `ids` is empty although there are `choices`, or their `start` is not n.
    """

    ids: np.ndarray
    start: int
    choices: np.ndarray = dataclasses.field(default_factory=lambda: NO_CHOICES)
    positions: np.ndarray | None = None

    def __post_init__(self) -> None:
        if len(self.choices) and not 0 < len(self.ids) == self.start:
            raise ValueError(
                f"start is {self.start} of {len(self.ids)} ids, expected the number of ids, at "
                "least 1, with choices"
            )

    @classmethod
    def at(cls, ids: np.ndarray, positions: np.ndarray) -> "TokenSequence":
        """Return the sequence that scores the tokens at some positions.

        Ids after the last one are dropped, since no score depends on them.

        Args:
            positions: int64 [k], ascending; at least one.
        """
        start, stop = int(positions[0]), int(positions[-1]) + 1
        has_gaps = len(positions) < stop - start
        return cls(ids[:stop], start, positions=positions if has_gaps else None)

    def trimmed(self) -> "TokenSequence":
        """Return the sequence without ids after the last scored one."""
        return self if self.positions is None else self.at(self.ids, self.positions)

    @property
    def input_ids(self) -> np.ndarray:
        """The ids that the model reads: all but a continuation's last token, which is predicted."""
        return self.ids if len(self.choices) else self.ids[:-1]

    @property
    def first_scored(self) -> int:
        """Index of the first scored token."""
        return max(self.start, 1)

    @property
    def continuation(self) -> np.ndarray:
        """The ids of the continuation, including a first one that is not scored."""
        return self.ids[self.start :] if self.positions is None else self.ids[self.positions]

    @property
    def targets(self) -> np.ndarray:
        """The ids that are scored."""
        if len(self.choices):
            return self.choices
        return self.continuation[self.first_scored - self.start :]

    @property
    def n_scored(self) -> int:
        return len(self.targets)

    @property
    def n_input_tokens(self) -> int:
        """Number of tokens of the request, including choices."""
        return len(self.ids) + len(self.choices)

    def digest(self, key: bytes = b"") -> bytes:
        """Return the key of the request in a journal: a digest of all fields.

        Args:
            key: `ScoreOptions.key` of the run.
        """
        header = struct.pack("<qq", self.start, len(self.choices))
        digest = hashlib.blake2b(header, digest_size=20, key=key)
        digest.update(np.ascontiguousarray(self.ids, "<i4").tobytes())
        digest.update(np.ascontiguousarray(self.choices, "<i4").tobytes())
        if self.positions is not None:
            digest.update(np.ascontiguousarray(self.positions, "<i8").tobytes() + b"positions")
        return digest.digest()


@dataclasses.dataclass(frozen=True, eq=False)
class TokenClasses:
    """Classes of token ids whose probability is computed at each scored token.

    Attributes:
        names: the name of each class.
        mask: bool [n, V], True for the ids of a class.
    """

    names: tuple[str, ...]
    mask: np.ndarray

    @classmethod
    def of(cls, ids_by_name: Mapping[str, Iterable[int]], vocab_size: int) -> "TokenClasses":
        """Create the classes; an id that a class has twice counts once.

        Args:
            ids_by_name: name -> token ids, at least one.
            vocab_size: V.

        Raises:
            ValueError: a class is empty, or an id is not an integer from 0 to V - 1.
        """
        mask = np.zeros((len(ids_by_name), vocab_size), bool)
        for row, (name, values) in zip(mask, ids_by_name.items(), strict=True):
            ids = np.array([*values])
            if not ids.size:
                raise ValueError(f"class {name} is empty, expected at least one id")
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise ValueError(f"class {name} has {ids.tolist()[:5]}, expected token ids")
            if outside := ids[(ids < 0) | (ids >= vocab_size)].tolist():
                raise ValueError(
                    f"class {name} has id {outside[0]}, expected 0 to {vocab_size - 1}: the model "
                    f"has a vocabulary of {vocab_size}"
                )
            row[ids] = True
        return cls(tuple(ids_by_name), mask)

    @functools.cached_property
    def digest(self) -> bytes:
        """A digest of the ids of all classes, in order."""
        packed = np.packbits(self.mask, axis=1)
        return hashlib.blake2b(struct.pack("<qq", *self.mask.shape) + packed.tobytes()).digest()


class ScoreOptions(NamedTuple):
    """Scores that a run computes for each token in addition to the base scores.

    Attributes:
        top: number of most probable tokens, see `SequenceScores`.
        measures: names of further measures, in the order of the model's program.
        classes: classes of tokens whose probability is computed, or None.
    """

    top: int = 0
    measures: tuple[str, ...] = ()
    classes: TokenClasses | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names in `SequenceScores.measures`."""
        names = () if self.classes is None else self.classes.names
        return *self.measures, *(f"{MASS}{name}" for name in names)

    def name(self) -> str:
        """Return a description for messages; empty for the base scores."""
        top = [f"top {self.top}"] if self.top else []
        classes = [] if self.classes is None else [f"{len(self.classes.names)} classes"]
        return " ".join([*top, *self.measures, *classes])

    def identity(self) -> bytes:
        """Return all that affects the scores, for digests; empty for the base scores."""
        return self.name().encode() + (b"" if self.classes is None else self.classes.digest)

    def key(self) -> bytes:
        """Return the key for the digests of sequences; empty for the base scores."""
        identity = self.identity()
        return hashlib.blake2b(identity, digest_size=32).digest() if identity else b""


BASE_SCORES = ScoreOptions()


class SequenceScores(NamedTuple):
    """Scores of a `TokenSequence`: float32 nats and bool, each [n_scored].

    Attributes:
        top_id, top_logprob: int32 and float32 [n_scored, k], the k most probable tokens at the
            position of each scored token and their log-probabilities, by descending probability;
            equal logits by ascending id. k is the run's `top`. All choices have the same row. If a
            token is `greedy`, its `logprob` equals the first value of its row bit for bit. The
            log-probability of probability 0 is minus infinity.
        measures: name of each requested measure -> float32 [n_scored]; `mass_NAME` is the
            log-probability of the class NAME.
    """

    logprob: np.ndarray
    entropy: np.ndarray
    self_certainty: np.ndarray
    greedy: np.ndarray
    top_id: np.ndarray = NO_TOP_ID
    top_logprob: np.ndarray = NO_TOP_LOGPROB
    measures: Mapping[str, np.ndarray] = NO_MEASURES


class TokenRequest(NamedTuple):
    """A prompt to continue. With the model, it determines the generated text.

    Attributes:
        ids: int32 [n], the prompt.
        n_new: maximum number of tokens to generate.
        temperature, top_p, stop, top_k, repetition_penalty: see `GenerationRequest`.
        seed: the seed of the random draws, 0 to 2^32 - 1.
        eos_ids: tokens that finish the text.
    """

    ids: np.ndarray
    n_new: int
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    eos_ids: tuple[int, ...]
    top_k: int = 0
    repetition_penalty: float = 1.0

    def digest(self) -> bytes:
        """Return the key of the request in a journal: a digest of all fields and list lengths."""
        sizes = len(self.ids), len(self.eos_ids), len(self.stop)
        digest = hashlib.blake2b(struct.pack("<3q", *sizes), digest_size=20)
        digest.update(struct.pack("<qddq", self.n_new, self.temperature, self.top_p, self.seed))
        digest.update(struct.pack("<qd", self.top_k, self.repetition_penalty))
        digest.update(np.ascontiguousarray(self.ids, "<i4").tobytes())
        digest.update(np.array(self.eos_ids, "<i8").tobytes())
        for stop in self.stop:
            text = stop.encode("utf-8", "surrogatepass")
            digest.update(struct.pack("<q", len(text)) + text)
        return digest.digest()


class GeneratedTokens(NamedTuple):
    """Finished generated text.

    Attributes:
        ids: int32 [n], without the EOS token.
        finish: "eos", "stop" or "length".
        eos_id: the EOS token that finished the text, or None.
    """

    ids: np.ndarray
    finish: str
    eos_id: int | None = None


class WindowSpan(NamedTuple):
    """A window of a text, in indices of its ids.

    Attributes:
        begin, end: bounds of the window's ids; the model reads all but the last one.
        first: the first scored id; the window scores all ids from here on.
    """

    begin: int
    first: int
    end: int


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """Rule by which a text that is longer than a model's context is cut into windows.

        max_length 4, stride 2        index   0 1 2 3 4 5 6 7 8
        window 1                              r s s s s           r is read, s is scored; the
        window 2                                  r r r s s       last token of a window is
        window 3                                      r r r s s   scored and not read

    With a stride of `max_length` the windows overlap by one token, and the last one has the
    longest possible context, as in lm-evaluation-harness' `loglikelihood_rolling`. A smaller stride
    gives every token more context, at proportionally higher cost.

    Attributes:
        max_length: maximum number of tokens that a window reads.
        stride: maximum number of tokens that a window scores, 1 to `max_length`. The first window
            scores up to `max_length`.
        bos: ids in place of the first ones that each later window reads; empty for those of the
            text.
        half: score the second half of each whole chunk of `max_length` tokens alone, as llama.cpp's
            `llama-perplexity` does.

    Raises:
        InputError: the stride is longer than a window, or a window is shorter than `bos`.
    """

    max_length: int
    stride: int
    bos: tuple[int, ...] = ()
    half: bool = False

    def __post_init__(self) -> None:
        if self.stride > self.max_length:
            raise InputError(
                f"stride is {self.stride}, and a window reads {self.max_length} tokens, so that "
                f"some would have no window; give at most {self.max_length}"
            )
        if self.max_length < len(self.bos):
            raise InputError(
                f"max_length is {self.max_length}, and the {len(self.bos)} tokens that begin each "
                f"window do not fit; give at least {len(self.bos)}"
            )

    def spans(self, n: int, start: int) -> Iterator[WindowSpan]:
        """Yield the windows that score the continuation of a text, each token once.

        They are those of the whole text, context included, without windows that score nothing.

        Args:
            n: number of ids of the text.
            start: index of the continuation's first token. The token at index 0 is never scored.
        """
        first, size, n_special = max(start, 1), self.max_length, len(self.bos)
        if self.half:
            for begin in range(0, n - size + 1, size):
                scored = max(begin + max(size // 2 + 1, n_special), first)
                if scored < begin + size:
                    yield WindowSpan(begin, scored, begin + size)
            return
        stride = min(self.stride, size - max(n_special, 1) + 1)  # ids of `bos` are not scored
        position, end = 1, min(n, size + 1)
        while position < end:
            if end > first:
                yield WindowSpan(max(0, end - 1 - size), max(position, first), end)
            position, end = end, min(n, end + stride)

    def window(self, ids: np.ndarray, span: WindowSpan) -> TokenSequence:
        """Return the sequence of a window of a text's ids."""
        read = ids[span.begin : span.end]
        if self.bos and span.begin:
            read = np.concatenate([np.array(self.bos, ids.dtype), read[len(self.bos) :]])
        return TokenSequence(read, span.first - span.begin)


class WindowedText(Sequence[TokenSequence]):
    """The windows of a text, each built when it is read, since they share most of their ids.

    If nothing of a text is scored, it is one empty sequence.

    Attributes:
        ids: int32 [n], context and continuation.
        start: index of the continuation's first token.
        positions: see `TokenSequence`.
        spans: int64 [n_windows, 3], see `WindowSpan`; without windows that lack a position.
        n_windows: number of windows that score something.
    """

    def __init__(
        self,
        ids: np.ndarray,
        start: int,
        windows: TextWindows,
        positions: np.ndarray | None = None,
    ) -> None:
        """Cut a text into windows."""
        self.ids, self.start, self.positions, self._windows = ids, start, positions, windows
        numbers = itertools.chain.from_iterable(windows.spans(len(ids), start))
        self.spans = np.fromiter(numbers, np.int64).reshape(-1, 3)
        if positions is not None:
            first, end = np.searchsorted(positions, self.spans[:, 1:].T)
            self.spans = self.spans[first < end]
        self.n_windows = len(self.spans)
        if not self.n_windows:
            self.spans = np.full((1, 3), start)

    @property
    def continuation(self) -> np.ndarray:
        """See `TokenSequence.continuation`."""
        return TokenSequence(self.ids, self.start, positions=self.positions).continuation

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[j] for j in range(len(self))[k]]
        begin, first, end = self.spans[k].tolist()
        window = self._windows.window(self.ids, WindowSpan(begin, first, end))
        if self.positions is None or first == end:
            return window
        return TokenSequence.at(window.ids, self._within(first, end) - begin)

    def _within(self, first: int, end: int) -> Any:
        """Return the positions of a window's scored tokens, as indices or as a slice."""
        if self.positions is None:
            return slice(first, end)
        return self.positions[slice(*np.searchsorted(self.positions, (first, end)))]

    def join(self, values: Sequence[np.ndarray], fill: Any) -> np.ndarray:
        """Join values of the windows' scored tokens, each [n_scored, ...].

        Returns:
            [n, ...] for the continuation, with `fill` for tokens that no window scores.
        """
        out = np.full((len(self.ids), *values[0].shape[1:]), fill, values[0].dtype)
        for (_, first, end), array in zip(self.spans.tolist(), values, strict=True):
            out[self._within(first, end)] = array
        return out[self.start :] if self.positions is None else out[self.positions]


def check_sequences(
    sequences: Sequence[TokenSequence],
    *,
    vocab_size: int,
    max_positions: int,
    placeholders: Mapping[int, str],
    limit_reason: str = "",
) -> dict[int, str]:
    """Find the sequences of a window that the model cannot score.

    A negative id would index the embedding table from its end and return another token's
    probability, so it is refused here.

    Args:
        vocab_size: upper bound of the ids, exclusive; ids must be integers from 0 on.
        max_positions: maximum number of tokens that the model reads.
        placeholders: placeholder ids of images, videos or audio -> the config key that defines
            them. They may be scored, but not read.
        limit_reason: see `CheckpointFacts`.

    Returns:
        Index of each such sequence -> the reason.
    """
    problems: dict[int, str] = {}
    arrays = [_as_array(ids) for sequence in sequences for ids in (sequence.ids, sequence.choices)]
    for k, ids in enumerate(arrays):
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            text = str(ids.tolist())
            problems[k // 2] = (
                f"its token ids are {text if len(text) <= 60 else f'{text[:60]}...'}, expected a "
                f"flat list of integers from 0 to {vocab_size - 1}"
            )
    arrays = [ids[:0].reshape(-1) if k // 2 in problems else ids for k, ids in enumerate(arrays)]
    bounds = np.cumsum([len(ids) for ids in arrays])
    # Empty arrays may have any dtype, which would determine the dtype of `flat`.
    filled = [ids for ids in arrays if len(ids)]
    flat = np.concatenate(filled) if filled else np.zeros(0, np.int32)
    for index in np.flatnonzero((flat < 0) | (flat >= vocab_size)).tolist():
        k, id = int(np.searchsorted(bounds, index, side="right")) // 2, int(flat[index])
        problems.setdefault(k, _unknown_id(id, vocab_size))
    reserved = np.fromiter(placeholders, np.int64)
    for k, sequence in enumerate(sequences):
        ids, start = arrays[2 * k], sequence.start
        n = len(ids)
        if k not in problems and placeholders and (read := ids[np.isin(ids, reserved)]).size:
            problems[k] = (
                f"token id {read[0]} is the model's {placeholders[int(read[0])]}: it stands for "
                "an image, a video or a sound, which the scores would ignore; leave it "
                "out of the text"
            )
        is_index = isinstance(start, int | np.integer) and not isinstance(start, bool)
        if k not in problems and not (is_index and 0 <= start <= n):
            problems[k] = f"its continuation starts at {start!r}, expected an index from 0 to {n}"
        n_read = n if len(sequence.choices) else n - 1
        if k not in problems and n_read > max_positions:
            problems[k] = _too_long(sequence, max_positions, limit_reason)
    return problems


def _unknown_id(id: int, vocab_size: int) -> str:
    if id < 0:
        return f"token id {id} is negative, expected 0 to {vocab_size - 1}"
    return (
        f"token id {id} is beyond the model's vocabulary of {vocab_size}; tokenizer and model do "
        "not belong together"
    )


def _as_array(ids: object) -> np.ndarray:
    try:
        return np.asarray(ids)
    except ValueError:  # nested lists of different lengths
        return np.zeros((1, 1), object)


def _too_long(sequence: TokenSequence, max_positions: int, limit_reason: str) -> str:
    n = len(sequence.ids)
    n_continuation = n - sequence.start
    size, remedy = f"{n} tokens ({n_continuation} of them continuation)", "shorten it"
    if len(sequence.choices):
        size, remedy = f"its prompt has {n} tokens", "shorten the prompt"
    elif n_continuation <= max_positions:
        remedy = "shorten the context"
    if remedy != "shorten it":
        remedy += ", or drop its oldest tokens with --truncate left"
    limit = f"{max_positions} positions" + (f" ({limit_reason})" if limit_reason else "")
    return f"{size}, the model takes {limit}; {remedy}"

"""Requests in token ids, to score and to continue, and what comes back for them."""

import dataclasses
import hashlib
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

NO_CHOICES = np.zeros(0, np.int32)
NO_TOP_ID, NO_TOP_LOGPROB = np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32)
# The measures that depend on the token that is scored; others are of the place alone.
OF_TOKEN = frozenset({"rank", "reference_logprob"})
NO_MEASURES: Mapping[str, np.ndarray] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids of one request, and which of them are scored.

    Attributes:
        ids: int32 [n], context and continuation.
        start: index of the continuation's first token, 0 to n. The token at index 0 has
            nothing before it and is never scored.
        choices: int32 [c], ids of which each is scored as the token after all of `ids`; then
            no token of `ids` is scored. Empty for a continuation.

    Raises:
        ValueError: choices after no token, or with a start that is not n.
    """

    ids: np.ndarray
    start: int
    choices: np.ndarray = dataclasses.field(default_factory=lambda: NO_CHOICES)

    def __post_init__(self) -> None:
        if len(self.choices) and not 0 < len(self.ids) == self.start:
            raise ValueError(
                f"start is {self.start} of {len(self.ids)} ids, expected all of at least one id "
                "before choices"
            )

    @property
    def input_ids(self) -> np.ndarray:
        """The ids that the model reads: a continuation's last token is only predicted."""
        return self.ids if len(self.choices) else self.ids[:-1]

    @property
    def first_scored(self) -> int:
        """Index of the first token that has a probability."""
        return max(self.start, 1)

    @property
    def targets(self) -> np.ndarray:
        """The ids that are scored."""
        return self.choices if len(self.choices) else self.ids[self.first_scored :]

    @property
    def n_scored(self) -> int:
        return len(self.choices) or max(0, len(self.ids) - self.first_scored)

    @property
    def n_input_tokens(self) -> int:
        """Tokens that were asked about, choices counted."""
        return len(self.ids) + len(self.choices)

    def digest(self, key: bytes = b"") -> bytes:
        """Of the ids, of where scoring starts, and of the choices and their number.

        Args:
            key: of what is wanted, see `ScoreOptions.key`.
        """
        header = struct.pack("<qq", self.start, len(self.choices))
        digest = hashlib.blake2b(header, digest_size=20, key=key)
        digest.update(np.ascontiguousarray(self.ids, "<i4").tobytes())
        digest.update(np.ascontiguousarray(self.choices, "<i4").tobytes())
        return digest.digest()


class ScoreOptions(NamedTuple):
    """What is computed for each scored token beside the terms that every run has.

    Attributes:
        top: how many of the most probable tokens, see `SequenceScores`.
        measures: names of further numbers, as the model's program gives them.
    """

    top: int = 0
    measures: tuple[str, ...] = ()

    @property
    def by_answer(self) -> bool:
        """Whether the device gives all terms for each answer, and not for each query."""
        return not OF_TOKEN.isdisjoint(self.measures)

    def name(self) -> str:
        """For people and for digests; empty where nothing more is wanted."""
        parts = [f"top {self.top}"] if self.top else []
        return " ".join([*parts, *self.measures])

    def key(self) -> bytes:
        """For digests of sequences; empty where nothing more is wanted."""
        name = self.name().encode()
        return hashlib.blake2b(name, digest_size=32).digest() if name else b""


BASE_SCORES = ScoreOptions()


class SequenceScores(NamedTuple):
    """float32 nats and bool, one entry for each scored token of a `TokenSequence`.

    Attributes:
        top_id, top_logprob: int32 and float32 [n_scored, k], the k most probable tokens at the
            place of each scored token, and their log-probabilities: the most probable first, the
            lowest id first among equal logits. k is the run's `top`. All choices have the same
            row. Where a token is `greedy`, its `logprob` is the first one of its row, bit for bit.
            A token of probability 0 has minus infinity.
        measures: by its name each measure that the run was asked for, float32 [n_scored].
    """

    logprob: np.ndarray
    entropy: np.ndarray
    self_certainty: np.ndarray
    greedy: np.ndarray
    top_id: np.ndarray = NO_TOP_ID
    top_logprob: np.ndarray = NO_TOP_LOGPROB
    measures: Mapping[str, np.ndarray] = NO_MEASURES


class TokenRequest(NamedTuple):
    """All that decides what is written after a prompt, but for the model.

    Attributes:
        ids: int32 [n], the prompt.
        n_new: at most so many tokens follow.
        temperature, top_p, stop, top_k, repetition_penalty: as of `GenerationRequest`.
        seed: of the draws, from 0 to 2^32 - 1.
        eos_ids: tokens that end the text.
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
        """Of all that the request holds, the number of each list's entries included."""
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
    """A finished text: int32 ids, the EOS left out; "eos", "stop" or "length"; and that EOS."""

    ids: np.ndarray
    finish: str
    eos_id: int | None = None


def check_sequences(
    sequences: Sequence[TokenSequence],
    *,
    vocab_size: int,
    max_positions: int,
    placeholders: Mapping[int, str],
) -> dict[int, str]:
    """For each sequence that cannot be scored, by its place, the reason.

    Ids must be integers from 0 to `vocab_size` - 1: a negative one would be looked up from the
    end of the table, and give another token's probability. `start` must be from 0 to the number
    of ids, and the model reads at most `max_positions` tokens. `placeholders` are ids that stand
    for something else than text, and what says so; they may be asked for, but not be read.
    """
    found: dict[int, str] = {}
    arrays = [_array(ids) for sequence in sequences for ids in (sequence.ids, sequence.choices)]
    for k, pair in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
        for ids in pair:
            if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
                found[k] = (
                    f"its token ids are {_shown(ids)}, expected a line of integers from 0 to "
                    f"{vocab_size - 1}"
                )
    sound = [ids if k // 2 not in found else ids[:0].reshape(-1) for k, ids in enumerate(arrays)]
    bounds = np.concatenate([[0], np.cumsum([len(ids) for ids in sound])])
    # Empty arrays may have any type, which would make that of all.
    some = [ids for ids in sound if len(ids)]
    flat = np.concatenate(some) if some else np.zeros(0, np.int32)
    for at in np.flatnonzero((flat < 0) | (flat >= vocab_size)).tolist():
        k = (int(np.searchsorted(bounds, at, side="right")) - 1) // 2
        if k not in found:
            found[k] = _wrong_id(int(flat[at]), vocab_size)
    if placeholders:
        wrong = np.fromiter(placeholders, np.int64)
        for k, ids in enumerate(sound[::2]):
            if k not in found and len(here := np.flatnonzero(np.isin(ids, wrong))):
                found[k] = placeholder(int(ids[here[0]]), placeholders)
    counts = [len(ids) for ids in sound[::2]]
    fed = np.array([n if len(s.choices) else n - 1 for s, n in zip(sequences, counts, strict=True)])
    starts = [s.start for s in sequences]
    for k, (start, n) in enumerate(zip(starts, counts, strict=True)):
        whole = isinstance(start, int | np.integer) and not isinstance(start, bool)
        if k not in found and not (whole and 0 <= start <= n):
            found[k] = f"its continuation starts at {start!r}, expected an index from 0 to {n}"
    for k in np.flatnonzero(fed > max_positions).tolist():
        if k not in found:
            found[k] = _too_long(sequences[k], max_positions)
    return found


def _array(ids: object) -> np.ndarray:
    try:
        return np.asarray(ids)
    except ValueError:  # lists of several lengths
        return np.zeros((1, 1), object)


def _shown(ids: np.ndarray) -> str:
    text = str(ids.tolist())
    return text if len(text) <= 60 else f"{text[:60]}..."


def _wrong_id(id: int, vocab_size: int) -> str:
    if id < 0:
        return f"token id {id} is negative, expected 0 to {vocab_size - 1}"
    return (
        f"token id {id} is beyond the model's vocabulary of {vocab_size}; tokenizer and model do "
        "not belong together"
    )


def placeholder(id: int, placeholders: Mapping[int, str]) -> str:
    """Why a text with such a token cannot be scored."""
    return (
        f"token id {id} is the model's {placeholders[id]}: it stands for an image, a video or a "
        "sound, of which the scores would know nothing; leave it out of the text"
    )


def _too_long(sequence: TokenSequence, most: int) -> str:
    n = len(sequence.ids)
    if len(sequence.choices):
        return (
            f"its prompt has {n} tokens, the model takes {most} positions; shorten the prompt, "
            "or drop its oldest tokens with --truncate left"
        )
    continuation = n - sequence.start
    hint = (
        "shorten it"
        if continuation > most
        else "shorten the context, or drop its oldest tokens with --truncate left"
    )
    return (
        f"{n} tokens ({continuation} of them continuation), the model takes {most} "
        f"positions; {hint}"
    )


def rolling_windows(
    ids: np.ndarray, first: int, max_length: int, stride: int
) -> list[TokenSequence]:
    """The windows of one text, in order.

    Args:
        ids: int32 [n], what stands before the text included.
        first: index of the first token that is scored, at least 1.
        max_length: tokens that a window reads at most.
        stride: tokens that a window scores at most, from 1 to `max_length`. The first window
            scores up to `max_length`.
    """
    out = []
    at, n_scored = first, max_length - first + 1
    while at < len(ids):
        end = min(len(ids), at + n_scored)
        begin = max(0, end - 1 - max_length)
        out.append(TokenSequence(ids[begin:end], at - begin))
        at, n_scored = end, stride
    return out

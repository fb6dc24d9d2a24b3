"""Requests in token ids, to score and to continue, and what comes back for them."""

import dataclasses
import hashlib
import struct
from collections.abc import Mapping
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
    def fed(self) -> np.ndarray:
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
    def n_given(self) -> int:
        """Tokens that were asked about, choices counted."""
        return len(self.ids) + len(self.choices)

    def digest(self, key: bytes = b"") -> bytes:
        """Of the ids, of where scoring starts, and of the choices and their number.

        Args:
            key: of what is wanted, see `Wanted.key`.
        """
        header = struct.pack("<qq", self.start, len(self.choices))
        digest = hashlib.blake2b(header, digest_size=20, key=key)
        digest.update(np.ascontiguousarray(self.ids, "<i4").tobytes())
        digest.update(np.ascontiguousarray(self.choices, "<i4").tobytes())
        return digest.digest()


class Wanted(NamedTuple):
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


NOTHING_MORE = Wanted()


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


class Written(NamedTuple):
    """A finished text: int32 ids, the EOS left out; "eos", "stop" or "length"; and that EOS."""

    ids: np.ndarray
    finish: str
    eos_id: int | None = None

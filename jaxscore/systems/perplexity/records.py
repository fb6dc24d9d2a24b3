"""What is known of a document while its windows are scored, and its record after them."""

import dataclasses
import hashlib
import math
import re
from typing import Any

import numpy as np

from jaxscore.analysis.perplexity import bits, perplexity
from jaxscore.plan.requests import SequenceScores
from jaxscore.systems.perplexity.documents import Document
from jaxscore.text.scored import NOT_FINITE

BEGIN = 100  # characters of a document in its record
BLANKS = re.compile(r"\s+")
# Columns of a table of records: name -> its type, see `jaxscore.io.records`.
TABLE = {
    "begin": "string",
    "text_sha256": "string",
    **dict.fromkeys(("n_tokens", "n_scored", "n_bytes", "n_words", "n_windows"), "int64"),
    **dict.fromkeys(
        ("sum_logprob", "mean_logprob", "perplexity", "bits_per_byte", "bits_per_word"), "float64"
    ),
}


@dataclasses.dataclass
class Progress:
    """A document without its text.

    Attributes:
        n_tokens: of the text; what is put before it is none of them.
        n_words: pieces between blanks as lm-evaluation-harness counts them for
            `word_perplexity`: a blank at the beginning or the end makes one more, empty one.
        n_windows: how many are scored.
        sums: log-probability of each window that has come, nats.
    """

    name: str
    id: str | int
    begin: str
    text_sha256: str
    extra: dict[str, Any]
    n_bytes: int
    n_words: int
    error: str | None
    n_tokens: int = 0
    n_scored: int = 0
    n_windows: int = 0
    sums: list[float] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, one: Document) -> "Progress":
        """Before its tokens are known."""
        raw = one.text.encode()
        return cls(
            name=one.name,
            id=one.id,
            begin=one.text[:BEGIN],
            text_sha256=hashlib.sha256(raw).hexdigest(),
            extra=one.extra,
            n_bytes=len(raw),
            n_words=len(BLANKS.split(one.text)),
            error=one.error,
        )

    @property
    def finished(self) -> bool:
        """Whether all of its windows have come."""
        return len(self.sums) == self.n_windows

    def take(self, scores: SequenceScores) -> None:
        """The scores of its next window."""
        if not (np.isfinite(scores.logprob).all() and np.isfinite(scores.entropy).all()):
            self.error = NOT_FINITE
        self.sums.append(float(scores.logprob.sum(dtype=np.float64)))
        self.n_scored += len(scores.logprob)

    def record(self) -> dict[str, Any]:
        """A line of the output; of a document that failed `id`, `error` and its other fields."""
        if self.error is not None:
            return {"id": self.id, "error": self.error, **self.extra}
        total = math.fsum(self.sums)
        mean = total / self.n_scored
        return {
            "id": self.id,
            "begin": self.begin,
            "text_sha256": self.text_sha256,
            "n_tokens": self.n_tokens,
            "n_scored": self.n_scored,
            "n_bytes": self.n_bytes,
            "n_words": self.n_words,
            "n_windows": self.n_windows,
            "sum_logprob": total,
            "mean_logprob": mean,
            "perplexity": perplexity(mean),
            "bits_per_byte": -bits(total) / self.n_bytes,
            "bits_per_word": -bits(total) / self.n_words,
            **self.extra,
        }

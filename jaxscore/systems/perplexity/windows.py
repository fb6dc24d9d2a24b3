"""Documents cut into windows of token ids, scored some at a time, and assembled again.

documents   tokenized some at a time, each cut into rolling windows
groups      windows of one document or of many, planned and scored together
results     of each document when its last window is scored, in order
"""

import dataclasses
import hashlib
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jaxscore.engine import WINDOW, WINDOW_TOKENS
from jaxscore.io import interrupts
from jaxscore.plan.requests import SequenceScores, TokenSequence, rolling_windows
from jaxscore.systems.perplexity.window_bos import Audit
from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.result_assembly import NOT_FINITE
from jaxscore.text.tokenize_requests import CHUNK, CHUNK_CHARACTERS, bounded_groups
from jaxscore.types.requests import Request

BEGIN = 100  # characters of a document in its record
BLANKS = re.compile(r"\s+")


@dataclasses.dataclass
class ScoredDocument:
    """A document without its text, and what is known of its scores.

    Attributes:
        bos: special tokens that the first window begins with.
        n_tokens: tokens of the text, without what is put before it.
        n_words: pieces between blanks as lm-evaluation-harness counts them for
            `word_perplexity`: a blank at the beginning or the end makes one more, empty one.
        n_windows: windows to score.
        sums: log-probability of each scored window, nats.
    """

    begin: str
    text_sha256: str
    n_bytes: int
    n_words: int
    error: str | None = None
    bos: tuple[int, ...] = ()
    n_tokens: int = 0
    n_scored: int = 0
    n_windows: int = 0
    sums: list[float] = dataclasses.field(default_factory=list)

    @classmethod
    def from_text(cls, text: str) -> "ScoredDocument":
        """A document whose tokens are not known yet."""
        raw = text.encode()
        return cls(
            begin=text[:BEGIN],
            text_sha256=hashlib.sha256(raw).hexdigest(),
            n_bytes=len(raw),
            n_words=len(BLANKS.split(text)),
        )

    @property
    def is_finished(self) -> bool:
        """Whether all windows are scored."""
        return len(self.sums) == self.n_windows

    @property
    def sum_logprob(self) -> float:
        """Log-probability of all scored tokens, nats."""
        return math.fsum(self.sums)

    def add(self, scores: SequenceScores) -> None:
        """Add the scores of the next window."""
        if not (np.isfinite(scores.logprob).all() and np.isfinite(scores.entropy).all()):
            self.error = NOT_FINITE
        self.sums.append(float(scores.logprob.sum(dtype=np.float64)))
        self.n_scored += len(scores.logprob)


def score_documents(
    lm: Any,
    items: Iterable[Any],
    *,
    max_length: int,
    stride: int,
    audit: Audit,
    most: int = WINDOW,
    most_tokens: int = WINDOW_TOKENS,
) -> Iterator[ScoredDocument]:
    """Score every document in rolling windows, in order.

    Args:
        lm: the local model that tokenizes the documents and scores the windows.
        items: documents, each with its `text`.
        max_length, stride: of the windows, see `jaxscore.plan.requests.rolling_windows`.
        audit: gets the windows after a document's first one, with their scores.
        most, most_tokens: windows and tokens that are planned together.
    """
    pending: deque[ScoredDocument] = deque()
    sent: deque[list[tuple[ScoredDocument, TokenSequence]]] = deque()

    def windows() -> Iterator[tuple[ScoredDocument, TokenSequence]]:
        for document, own in _cut(lm, items, max_length, stride):
            pending.append(document)
            yield from ((document, window) for window in own)

    def groups() -> Iterator[list[TokenSequence]]:
        for group in bounded_groups(
            windows(), lambda pair: pair[1].n_input_tokens, most, most_tokens
        ):
            sent.append(group)
            yield [window for _, window in group]

    for group_scores in lm.engine.run(groups()):
        for (document, window), scores in zip(sent.popleft(), group_scores, strict=True):
            if document.sums:
                audit.add(document.bos, window, scores)
            document.add(scores)
        while pending and pending[0].is_finished:
            yield pending.popleft()
    yield from pending


def _cut(
    lm: Any, items: Iterable[Any], max_length: int, stride: int
) -> Iterator[tuple[ScoredDocument, list[TokenSequence]]]:
    """Each document with its windows; one that cannot be scored has an error and no window."""
    chunks = bounded_groups(items, lambda item: len(item.text), CHUNK, CHUNK_CHARACTERS)
    for chunk in interrupts.until_interrupt(chunks):
        requests = [Request(0, "", item.text) for item in chunk]
        for item, encoded in zip(chunk, encode_each(lm.encoder.encode, requests), strict=True):
            document = ScoredDocument.from_text(item.text)
            if isinstance(encoded, TextError):
                document.error = str(encoded)
                yield document, []
                continue
            [whole] = encoded
            document.n_tokens = len(whole.ids) - whole.start
            document.bos = _special_beginning(lm, whole.ids)
            windows = rolling_windows(whole.ids, whole.first_scored, max_length, stride)
            if not windows:
                document.error = "it has no token that has a probability"
            elif complaints := lm.engine.complaints(windows):
                document.error, windows = complaints[min(complaints)], []
            document.n_windows = len(windows)
            yield document, windows


def _special_beginning(lm: Any, ids: np.ndarray) -> tuple[int, ...]:
    """Return the special tokens that a document begins with, its own or added ones."""
    bos = lm.encoder.tokenizer.bos_token_id
    expected = [bos] if bos is not None and not lm.encoder.prefix else lm.encoder.prefix
    return tuple(expected) if ids[: len(expected)].tolist() == expected else ()

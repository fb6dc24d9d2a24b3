"""What the event loop asks of the worker: token sequences to score, texts to write."""

import concurrent.futures
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

# Sequences of one prompt: they share their path, so they are planned together.
Piece = tuple[TokenSequence, ...]
# (place of the text, its new ids or the finished text) -> nothing; in the worker's thread.
Watch = Callable[[int, "list[int] | Generated"], None]


class Job:
    """Work of one request.

    Attributes:
        answer: set by the worker. The event loop waits for it, and cancelling it drops what is
            not in work yet.
        n_prompts, n_tokens: what of it waits or is in work.
    """

    def __init__(self, n_prompts: int, n_tokens: int) -> None:
        self.answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.n_prompts, self.n_tokens = n_prompts, n_tokens

    @property
    def open(self) -> bool:
        """Whether somebody waits for the answer."""
        return not self.answer.done()

    def give(self, answer: Any) -> None:
        """Hand the answer over; nothing happens where nobody waits any more."""
        try:
            self.answer.set_result(answer)
        except concurrent.futures.InvalidStateError:
            return

    def fail(self, problem: BaseException) -> None:
        """Hand an error over instead."""
        try:
            self.answer.set_exception(problem)
        except concurrent.futures.InvalidStateError:
            return


class ScoringJob(Job):
    """Sequences to score.

    Attributes:
        pieces: one for each prompt.
        top: most probable tokens of each place, one of `settings.TOPS`.
        left: the pieces that are in no window yet, by their place, the next one last.
    """

    def __init__(self, pieces: Sequence[Piece], top: int = 0) -> None:
        super().__init__(len(pieces), sum(len(path(piece)) for piece in pieces))
        self.pieces, self.top = list(pieces), top
        self._scores: list[list[SequenceScores] | None] = [None] * len(pieces)
        self._n_missing = len(pieces)
        self.added = 0  # distinct tokens that its pieces brought into their windows
        # Neighbours in the order of their ids share the most text.
        keys = [key(path(piece)) for piece in self.pieces]
        self.left = sorted(range(len(pieces)), key=keys.__getitem__, reverse=True)
        if not pieces:
            self.give([])

    def put(self, place: int, scores: list[SequenceScores]) -> None:
        """Keep the scores of one piece; the last one gives the answer, a list in order."""
        if self._scores[place] is None:
            self._n_missing -= 1
        self._scores[place] = scores
        if not self._n_missing:
            self.give(self._scores)


class WritingJob(Job):
    """Texts to write.

    Attributes:
        requests: with ids as prompts.
        watch: told what is written; None where nobody reads along.
        told: places of texts that `watch` was told of; they cannot be written again.
        left: the requests that are in no group yet, by their place, the next one last.
    """

    def __init__(self, requests: Sequence[GenerationRequest], watch: Watch | None = None) -> None:
        super().__init__(len(requests), sum(len(one.prompt) for one in requests))
        self.requests, self.watch = list(requests), watch
        self.told: set[int] = set()
        self.left = list(reversed(range(len(requests))))
        self._texts: list[Generated | None] = [None] * len(requests)
        self._n_missing = len(requests)

    def put(self, place: int, text: Generated) -> None:
        """Keep one text; the last one gives the answer, a list in order."""
        if self._texts[place] is None:
            self._n_missing -= 1
        self._texts[place] = text
        self.tell(place, text)
        if not self._n_missing:
            self.give(self._texts)

    def tell(self, place: int, written: Generated | list[int]) -> None:
        """Tell who reads along: new ids of a text, or the whole text."""
        if self.watch is not None and self.open:
            self.told.add(place)
            self.watch(place, written)


OneJob = TypeVar("OneJob", bound=Job)


def together_or_alone(
    some: Sequence[tuple[OneJob, int]], work: Callable[[Sequence[tuple[OneJob, int]]], None]
) -> None:
    """Do `work` for parts of several jobs; where it fails, for each job alone, so that one fails
    alone."""
    try:
        work(some)
    except Exception as problem:
        jobs = list(dict.fromkeys(job for job, _ in some))
        if len(jobs) == 1:
            traceback.print_exc()
            jobs[0].fail(problem)
            return
        for one in jobs:
            together_or_alone([(job, place) for job, place in some if job is one], work)


def path(piece: Piece) -> np.ndarray:
    """int32: the tokens that the model reads for a piece, those of its longest sequence."""
    return max((sequence.input_ids for sequence in piece), key=len)


def key(ids: np.ndarray) -> bytes:
    """Bytes whose order is that of the ids."""
    return np.ascontiguousarray(ids, ">u4").tobytes()


def every_token(ids: np.ndarray) -> TokenSequence:
    """Every token of a text but the first, which nothing stands before."""
    return TokenSequence(ids, 1)


def after(ids: np.ndarray) -> TokenSequence:
    """What may come after a text; with `top` above 0 the most probable tokens."""
    return TokenSequence(ids, len(ids), np.zeros(1, np.int32))

"""Scores questions of token ids: each distinct one once, window by window.

questions   sorted by their ids, so that shared text stays in one window
windows     at most 2,048 distinct questions and 4 million tokens, planned together
answers     yielded per window, each with the places of all equal questions
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.engine.defaults import WINDOW_TOKENS
from jaxscore.errors import InputError
from jaxscore.lm import LocalLM
from jaxscore.plan.requests import SequenceScores, TokenSequence

# lm-evaluation-harness caches the answers of a window together, so an interrupted run keeps all
# earlier windows. Examples that all documents share are computed once per window: 1 % of the work
# for 700 tokens before questions of 40.
WINDOW = 2048


class Question(NamedTuple):
    """What is the log-probability of `continuation` after `context`? Both are int32 ids."""

    context: np.ndarray
    continuation: np.ndarray


class Answer(NamedTuple):
    """Scores of one distinct question.

    Attributes:
        places: indices of the question.
        sequence: what the model reads; its targets are the continuation.
        scores: of the continuation's tokens.
        cut: number of tokens dropped at the left.
    """

    places: list[int]
    sequence: TokenSequence
    scores: SequenceScores
    cut: int

    @property
    def total(self) -> float:
        """Log-probability of the continuation, nats, summed in float64."""
        return float(self.scores.logprob.sum(dtype=np.float64))

    @property
    def greedy(self) -> bool:
        """Whether every token is the most probable one."""
        return bool(self.scores.greedy.all())


class _Distinct(NamedTuple):
    places: list[int]
    sequence: TokenSequence
    cut: int


def answers(
    lm: LocalLM,
    questions: Sequence[Question],
    max_length: int,
    name_of: Callable[[int], str],
    *,
    window: int = WINDOW,
    window_tokens: int = WINDOW_TOKENS,
) -> Iterator[list[Answer]]:
    """Answer all questions.

    Args:
        max_length: tokens that the model reads; older ones, including a BOS, are dropped.
        name_of: name of the question at a place, for messages.
        window, window_tokens: maximum questions and tokens that are planned together.

    Yields:
        The answers of each window.

    Raises:
        InputError: a question that the model cannot answer, before anything is computed; or a
            number that is not finite.
    """
    for place, question in enumerate(questions):
        if why := _complaint(question, max_length):
            raise InputError(f"{name_of(place)}: {why}")
    distinct = _distinct_places(questions)

    def windows() -> Iterator[list[_Distinct]]:
        return _windows(questions, distinct, max_length, window, window_tokens)

    for planned in windows():  # all of them first: an error in the last would end hours of work
        if complaints := lm.engine.complaints([question.sequence for question in planned]):
            first = min(complaints)
            raise InputError(f"{name_of(planned[first].places[0])}: {complaints[first]}")
    waiting: deque[list[_Distinct]] = deque()

    def sequences() -> Iterator[list[TokenSequence]]:
        for planned in windows():
            waiting.append(planned)
            yield [question.sequence for question in planned]

    for all_scores in lm.engine.run(sequences(), len(questions)):
        window_answers = []
        for group, scores in zip(waiting.popleft(), all_scores, strict=True):
            if not (np.isfinite(scores.logprob).all() and np.isfinite(scores.entropy).all()):
                raise InputError(
                    f"{name_of(group.places[0])}: the model gives a log-probability that is "
                    "not finite; check the weights, or use dtype=float32"
                )
            window_answers.append(Answer(group.places, group.sequence, scores, group.cut))
        yield window_answers


def _complaint(question: Question, max_length: int) -> str | None:
    """Why a question has no answer, or None."""
    if not len(question.context):
        return (
            "its context has no tokens, so nothing comes before the continuation; blanks at a "
            "context's end count to the continuation"
        )
    if not len(question.continuation):
        return "its continuation has no tokens of its own"
    if len(question.continuation) > max_length:
        return (
            f"its continuation has {len(question.continuation)} tokens, and max_length is "
            f"{max_length}; the task needs a model with more positions"
        )
    return None


def _distinct_places(questions: Sequence[Question]) -> list[list[int]]:
    """Places of each distinct question, sorted by its ids."""
    # Equal contexts share one array, so each is converted once.
    contexts = {id(question.context): question.context for question in questions}
    as_bytes = {key: _bytes(context) for key, context in contexts.items()}
    rank = {ids: k for k, ids in enumerate(sorted(set(as_bytes.values())))}
    keys = [
        (rank[as_bytes[id(question.context)]], _bytes(question.continuation))
        for question in questions
    ]
    places = sorted(range(len(questions)), key=keys.__getitem__)
    return [list(equal) for _, equal in itertools.groupby(places, key=keys.__getitem__)]


def _windows(
    questions: Sequence[Question],
    distinct: Sequence[list[int]],
    max_length: int,
    most: int,
    most_tokens: int,
) -> Iterator[list[_Distinct]]:
    """Distinct questions that are planned together."""
    planned: list[_Distinct] = []
    n_tokens = 0
    for places in distinct:
        if planned and (len(planned) == most or n_tokens >= most_tokens):
            yield planned
            planned, n_tokens = [], 0
        context, continuation = questions[places[0]]
        # The last token is predicted and not read, so one more fits.
        cut = max(0, len(context) + len(continuation) - (max_length + 1))
        ids = np.concatenate([context[cut:], continuation])
        sequence = TokenSequence(ids, len(ids) - len(continuation))
        planned.append(_Distinct(places, sequence, cut))
        n_tokens += sequence.n_input_tokens
    if planned:
        yield planned


def _bytes(ids: np.ndarray) -> bytes:
    """Bytes that sort like the ids, of which none is negative."""
    return ids.astype(">i4").tobytes()

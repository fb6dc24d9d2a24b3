"""Questions of token ids in, per-token scores out: each distinct one once, window by window.

questions   sorted by their ids, so that what shares text stays in one window
windows     at most 2,048 distinct questions and 4 million tokens, planned together
answers     come a window at a time, each at all places that ask it
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.engine.defaults import WINDOW_TOKENS
from jaxscore.errors import InputError
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.scorer import Scorer

# Answers of a window go to lm-evaluation-harness' cache together: an interrupted run keeps those of
# all windows before. Examples that all documents share are computed once in each window: of 700
# tokens before questions of 40 that is 1 % of the work.
WINDOW = 2048


class Asked(NamedTuple):
    """One question: the log-probability of `continuation` after `context`, both int32 ids."""

    context: np.ndarray
    continuation: np.ndarray


class Answer(NamedTuple):
    """Scores of one distinct question.

    Attributes:
        places: in the list of questions.
        sequence: what the model reads; its targets are the continuation.
        scores: of the continuation's tokens.
        cut: tokens that were left out at the left.
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


class _Question(NamedTuple):
    places: list[int]
    sequence: TokenSequence
    cut: int


def answers(
    scorer: Scorer,
    asked: Sequence[Asked],
    max_length: int,
    named: Callable[[int], str],
    *,
    window: int = WINDOW,
    window_tokens: int = WINDOW_TOKENS,
) -> Iterator[list[Answer]]:
    """Answers to all questions, a window at a time.

    Args:
        max_length: tokens that the model reads; older ones are cut off at the left, a BOS too.
        named: a question by its place, for messages.
        window, window_tokens: most questions and tokens that are planned together.

    Raises:
        InputError: a question that the model cannot answer, before anything is computed; or a
            number that is not finite.
    """
    order = _Order(asked)

    def windows() -> Iterator[list[_Question]]:
        return _windows(asked, order, max_length, window, window_tokens)

    for place, one in enumerate(asked):
        if why := _complaint(one, max_length):
            raise InputError(f"{named(place)}: {why}")
    for some in windows():  # once through all of them: the last one would end hours of work
        if found := scorer.engine.complaints([one.sequence for one in some]):
            first = min(found)
            raise InputError(f"{named(some[first].places[0])}: {found[first]}")
    waiting: deque[list[_Question]] = deque()

    def sequences() -> Iterator[list[TokenSequence]]:
        for some in windows():
            waiting.append(some)
            yield [one.sequence for one in some]

    for scores in scorer.engine.run(sequences(), len(asked)):
        out = []
        for question, own in zip(waiting.popleft(), scores, strict=True):
            if not (np.isfinite(own.logprob).all() and np.isfinite(own.entropy).all()):
                raise InputError(
                    f"{named(question.places[0])}: the model gives a log-probability that is not "
                    "finite; check the weights, or use dtype=float32"
                )
            out.append(Answer(question.places, question.sequence, own, question.cut))
        yield out


def _complaint(one: Asked, max_length: int) -> str | None:
    """Why a question has no answer."""
    if not len(one.context):
        return (
            "its context has no tokens, so nothing comes before the continuation; blanks at a "
            "context's end count to the continuation"
        )
    if not len(one.continuation):
        return "its continuation has no tokens of its own"
    if len(one.continuation) > max_length:
        return (
            f"its continuation has {len(one.continuation)} tokens, and max_length is "
            f"{max_length}; the task needs a model with more positions"
        )
    return None


class _Order:
    """Questions sorted by their ids.

    Attributes:
        keys: of each question; equal ones have equal keys.
        places: of all questions, in the order of the keys.
    """

    def __init__(self, asked: Sequence[Asked]) -> None:
        contexts = {id(one.context): one.context for one in asked}  # equal texts share one array
        read = {key: _bytes(context) for key, context in contexts.items()}
        rank = {ids: k for k, ids in enumerate(sorted(set(read.values())))}
        self.keys = [(rank[read[id(one.context)]], _bytes(one.continuation)) for one in asked]
        self.places = sorted(range(len(asked)), key=self.keys.__getitem__)


def _windows(
    asked: Sequence[Asked], order: _Order, max_length: int, most: int, most_tokens: int
) -> Iterator[list[_Question]]:
    """Distinct questions that are planned together."""
    keys = order.keys
    out: list[_Question] = []
    n_tokens, last = 0, None
    for place in order.places:
        if keys[place] == last:
            out[-1].places.append(place)
            continue
        if out and (len(out) == most or n_tokens >= most_tokens):
            yield out
            out, n_tokens = [], 0
        last = keys[place]
        sequence, cut = _sequence(asked[place], max_length)
        out.append(_Question([place], sequence, cut))
        n_tokens += sequence.n_input_tokens
    if out:
        yield out


def _bytes(ids: np.ndarray) -> bytes:
    """In the order of the ids: no id is negative."""
    return ids.astype(">i4").tobytes()


def _sequence(one: Asked, max_length: int) -> tuple[TokenSequence, int]:
    """The newest tokens: the last one is predicted and not read."""
    cut = max(0, len(one.context) + len(one.continuation) - (max_length + 1))
    ids = np.concatenate([one.context[cut:], one.continuation])
    return TokenSequence(ids, len(ids) - len(one.continuation)), cut

"""Loads the scorer and tokenizer that model arguments name, and scores questions of token ids.

questions   sorted by their ids, so that shared text stays in one window
windows     at most 2,048 distinct questions and 4 million tokens, planned together
answers     yielded per window, each with the indices of all equal questions
"""

import copy
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxscore.adapters.arguments import Arguments
from jaxscore.engine import AUTO, WINDOW_TOKENS
from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.local_path import local_path
from jaxscore.lm import LocalLM
from jaxscore.models import wrappers
from jaxscore.models.config import read
from jaxscore.models.load import without
from jaxscore.models.weights.checkpoint import read_config
from jaxscore.models.weights.folder import config_path, resolve
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.scorer import Scorer
from jaxscore.text import tokenizer_files
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenizer_files import load_tokenizer

# lm-evaluation-harness caches the answers of a window together, so an interrupted run keeps all
# earlier windows. Examples that all documents share are computed once per window: 1 % of the work
# for 700 tokens before questions of 40.
WINDOW = 2048


class Question(NamedTuple):
    """A request for the log-probability of `continuation` after `context`, both int32 ids."""

    context: np.ndarray
    continuation: np.ndarray


class Answer(NamedTuple):
    """Scores of one distinct question.

    Attributes:
        indices: the indices of all equal questions.
        sequence: the model's input; its targets are the continuation.
        scores: the scores of the continuation's tokens.
        cut: the number of tokens dropped at the left.
    """

    indices: list[int]
    sequence: TokenSequence
    scores: SequenceScores
    cut: int

    @property
    def total(self) -> float:
        """The log-probability of the continuation in nats, summed in float64."""
        return float(self.scores.logprob.sum(dtype=np.float64))

    @property
    def greedy(self) -> bool:
        """True if every token is the most probable one."""
        return bool(self.scores.greedy.all())


class _Distinct(NamedTuple):
    indices: list[int]
    sequence: TokenSequence
    cut: int


def answer_questions(
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
        max_length: maximum input tokens; older ones, including a BOS, are dropped.
        name_of: returns the name of the question at an index, for messages.
        window, window_tokens: maximum questions and tokens that are planned together.

    Yields:
        The answers of each window.

    Raises:
        InputError: the model cannot answer a question (raised before anything is computed), or a
            number is not finite.
    """
    for index, question in enumerate(questions):
        if problem := _problem(question, max_length):
            raise InputError(f"{name_of(index)}: {problem}")
    distinct = _group_equal(questions)

    def windows() -> Iterator[list[_Distinct]]:
        return _windows(questions, distinct, max_length, window, window_tokens)

    for planned in windows():  # all of them first: an error in the last would end hours of work
        if complaints := lm.engine.complaints([question.sequence for question in planned]):
            first = min(complaints)
            raise InputError(f"{name_of(planned[first].indices[0])}: {complaints[first]}")
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
                    f"{name_of(group.indices[0])}: the model gives a log-probability that is "
                    "not finite; check the weights, or use dtype=float32"
                )
            window_answers.append(Answer(group.indices, group.sequence, scores, group.cut))
        yield window_answers


def _problem(question: Question, max_length: int) -> str | None:
    """Return the reason that a question cannot be answered, or None."""
    if not len(question.context):
        return (
            "its context is empty, so no token comes before the continuation (spaces at a "
            "context's end belong to the continuation)"
        )
    if not len(question.continuation):
        return "its continuation adds no token to the context"
    if len(question.continuation) > max_length:
        return (
            f"its continuation has {len(question.continuation)} tokens, and max_length is "
            f"{max_length}; the task needs a model with more positions"
        )
    return None


def _group_equal(questions: Sequence[Question]) -> list[list[int]]:
    """Return the indices of each distinct question, sorted by its ids."""
    # Equal contexts share one array, so each is converted once.
    contexts = {id(question.context): question.context for question in questions}
    as_bytes = {key: _bytes(context) for key, context in contexts.items()}
    rank = {ids: k for k, ids in enumerate(sorted(set(as_bytes.values())))}
    keys = [
        (rank[as_bytes[id(question.context)]], _bytes(question.continuation))
        for question in questions
    ]
    indices = sorted(range(len(questions)), key=keys.__getitem__)
    return [list(equal) for _, equal in itertools.groupby(indices, key=keys.__getitem__)]


def _windows(
    questions: Sequence[Question],
    distinct: Sequence[list[int]],
    max_length: int,
    max_questions: int,
    max_tokens: int,
) -> Iterator[list[_Distinct]]:
    """Yield distinct questions that are planned together."""
    planned: list[_Distinct] = []
    n_tokens = 0
    for indices in distinct:
        if planned and (len(planned) == max_questions or n_tokens >= max_tokens):
            yield planned
            planned, n_tokens = [], 0
        context, continuation = questions[indices[0]]
        # The last token is only predicted, not an input, so one more fits.
        cut = max(0, len(context) + len(continuation) - (max_length + 1))
        ids = np.concatenate([context[cut:], continuation])
        sequence = TokenSequence(ids, len(ids) - len(continuation))
        planned.append(_Distinct(indices, sequence, cut))
        n_tokens += sequence.n_input_tokens
    if planned:
        yield planned


def _bytes(ids: np.ndarray) -> bytes:
    """Return bytes that sort like the ids, which are not negative."""
    return ids.astype(">i4").tobytes()


log = logging.getLogger("jaxscore")

LENGTH_ATTRIBUTES = ("n_positions", "max_position_embeddings", "n_ctx")
DEFAULT_LENGTH = 2048
NO_LIMIT = int(1e30)  # transformers' value for a tokenizer without a limit

# Scorers of this process that `load_model` has loaded and that are in use.
LOADED: weakref.WeakSet[Scorer] = weakref.WeakSet()


class LoadedModel(NamedTuple):
    """A scorer and its tokenizer.

    Attributes:
        length: the maximum tokens of a text.
        folder: the checkpoint's folder, or None if the arguments hold a `Scorer`.
    """

    scorer: Scorer
    tokenizer: Any
    length: int
    folder: Path | None


def load_model(args: Arguments) -> LoadedModel:
    """Load the model and its tokenizer.

    Raises:
        InputError: either cannot be used; the message gives the reason.
    """
    if not isinstance(args.pretrained, str):
        scorer: Scorer = args.pretrained
        if args.add_bos_token is not None:
            raise InputError(
                "model_args: add_bos_token cannot change the tokenizer of a Scorer passed as "
                "pretrained; give the name of the model"
            )
        _check_length(args, scorer)
        length = args.max_length or scorer.model.max_positions
        # Copied, since the harness adds a pad token to it.
        return LoadedModel(scorer, copy.deepcopy(scorer.encoder.tokenizer), length, None)
    options: dict[str, Any] = {"batch_tokens": args.batch_tokens, "quantize": args.quantize}
    scorer = Scorer.from_pretrained(
        args.pretrained,
        device=args.device,
        dtype=args.dtype,  # type: ignore[arg-type]  # checked by `read_arguments`
        implementation=args.implementation,  # type: ignore[arg-type]  # checked by it too
        revision=args.revision,
        trust_remote_code=args.trust_remote_code,
        cache_dir=None if args.cache_dir is None else local_path(args.cache_dir),
        lora=args.peft,
        journal=args.journal,
        mesh=args.mesh or (AUTO if processes.is_distributed() else None),
        reproducible=args.reproducible,
        accept_config=args.accept_config,
        **options,
    )
    LOADED.add(scorer)
    _check_length(args, scorer)
    folder = _folder(args.pretrained, args, args.revision)
    tokenizer_name = args.tokenizer or args.pretrained
    tokenizer_folder = _folder(tokenizer_name, args, None if args.tokenizer else args.revision)
    if args.tokenizer is not None or args.add_bos_token is not None:
        tokenizer = load_tokenizer(
            tokenizer_folder,
            trust_remote_code=args.trust_remote_code,
            add_bos=args.add_bos_token,
        )
        scorer.encoder = TextEncoder(tokenizer)
    for line in scorer.remarks:
        log.warning("%s", line)
    if args.add_bos_token and not scorer.encoder.prefix:
        log.warning("add_bos_token: ignored, since the tokenizer lacks a BOS")
    length = args.max_length or max_length(folder, tokenizer_folder, args.accept_config)
    return LoadedModel(scorer, scorer.encoder.tokenizer, length, folder)


def _check_length(args: Arguments, scorer: Scorer) -> None:
    """Refuse a length above the model's positions."""
    n_positions = scorer.model.max_positions
    if args.max_length is not None and args.max_length > n_positions:
        raise InputError(
            f"model_args: max_length is {args.max_length}, and the model has {n_positions} "
            "positions; give at most that, or leave it out"
        )


def _folder(name: str, args: Arguments, revision: str | None) -> Path:
    cache = None if args.cache_dir is None else local_path(args.cache_dir)
    return resolve(name, revision, with_code=args.trust_remote_code, cache_dir=cache)


def config_length(folder: Path, accepted: Sequence[str] = ()) -> int | None:
    """Return the maximum tokens of a text by a checkpoint's config, or None if it lacks a limit.

    Args:
        accepted: keys of the config to ignore.
    """
    where = str(config_path(folder))
    text = wrappers.text_of(without(read_config(folder), accepted), where, tied=None)
    config = read(text.raw, where).config
    lengths = (getattr(config, name, None) for name in LENGTH_ATTRIBUTES)
    return next((int(length) for length in lengths if length is not None), None)


def max_length(folder: Path, tokenizer_folder: Path, accepted: Sequence[str] = ()) -> int:
    """Return the config's length, the tokenizer's, or 2,048, as lm-evaluation-harness resolves it.

    The model's limit may differ: Bloom has none, and this returns 2,048.

    Args:
        accepted: keys of the config to ignore.
    """
    if (length := config_length(folder, accepted)) is not None:
        return length
    limit = tokenizer_files.read_settings(tokenizer_folder).get("model_max_length")
    return DEFAULT_LENGTH if limit is None or limit >= NO_LIMIT else int(limit)

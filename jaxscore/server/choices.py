"""Choices of completions and chats: texts after prompts, and log-probabilities of their tokens.

All log-probabilities come from the scorer, also for generated tokens: a text is generated
first and then scored. One greedy token after a prompt, which lm-eval requests, needs no
generation: scoring the prompt gives it as the most probable next token.
"""

import asyncio
import codecs
import collections
import contextlib
import dataclasses
import functools
import hashlib
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

import numpy as np

from jaxscore.engine.generation.state import NOT_FINITE
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.server import invalid_field, not_finite
from jaxscore.server.request_models import SamplingRequest
from jaxscore.server.scheduler import Piece, every_token, next_token
from jaxscore.server.service import Prompt, Service
from jaxscore.text.decoder import StopSearch, TokenBytes
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

MIN_TEMPERATURE = 1e-5  # below it only the most probable token is sampled
CHOICE_SIZE = 100  # numbers of tokens that take as long as a choice itself, see `run_in_thread`


@dataclasses.dataclass(frozen=True)
class ChoiceRequest:
    """A validated request with its tokenized prompts.

    Attributes:
        fields: the client's fields.
        prompts: the prompts, at least one; each has `n` choices.
        max_tokens: the maximum tokens to generate per choice.
        n_top: the number of most probable tokens per position, or None if no log-probabilities are
            requested.
        echo: True if `n_top` applies to the prompts' tokens too.
        n_prompt_top: the same number for `prompt_logprobs`, or None if not requested.
        as_ids: True if the answer lists tokens by their ids.
        prompt_field: the name of the prompts' field.
    """

    fields: SamplingRequest
    prompts: list[Prompt]
    max_tokens: int
    n_top: int | None
    echo: bool = False
    n_prompt_top: int | None = None
    as_ids: bool = False
    prompt_field: str = "prompt"

    @functools.cached_property
    def seed(self) -> int:
        """The seed of the first choice of each prompt; random if the client sent none."""
        seed = self.fields.seed
        return secrets.randbits(32) if seed is None else seed % 2**32

    @property
    def is_greedy(self) -> bool:
        """True if each token is the most probable one."""
        return self.fields.temperature < MIN_TEMPERATURE or self.fields.top_p == 0

    @property
    def is_one_greedy_token(self) -> bool:
        """True if only the most probable next token is requested."""
        return self.max_tokens == 1 and self.is_greedy

    @property
    def scores_prompts(self) -> bool:
        """True if log-probabilities of the prompts' tokens are requested."""
        return self.n_prompt_top is not None or (self.echo and self.n_top is not None)

    @property
    def most_top(self) -> int:
        """The largest number of most probable tokens at any position."""
        return max(self.n_top or 0, self.n_prompt_top or 0)

    @property
    def has_whole_choices(self) -> bool:
        """True if a stream sends each choice in one part: its text is scored when finished."""
        return self.n_top is not None or self.is_one_greedy_token or not self.max_tokens

    def generation_requests(self) -> list[GenerationRequest]:
        """Return one request per choice, a prompt's choices next to each other."""
        fields, n = self.fields, self.fields.n
        return [
            GenerationRequest(
                n * k + sample,
                prompt.ids,
                self.max_tokens,
                0.0 if self.is_greedy else fields.temperature,
                1.0 if self.is_greedy else fields.top_p,
                tuple(fields.stop),
                self._sample_seed(sample),
            )
            for k, prompt in enumerate(self.prompts)
            for sample in range(n)
        ]

    def describe_prompt(self, index: int) -> str:
        """Return the name of a prompt for error messages."""
        return f"prompt {index}" if self.prompt_field == "prompt" else "the conversation"

    def _sample_seed(self, sample: int) -> int:
        """Return the client's seed for the first sample, and a hash of it for the others."""
        if not sample:
            return self.seed
        digest = hashlib.blake2b(f"{self.seed} {sample}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little")


class TokenLogprobs(NamedTuple):
    """Log-probabilities of n consecutive tokens.

    Attributes:
        ids: int [n].
        logprob: float32 [n], nats.
        top_ids, top_logprobs: int and float32 [n, k], the most probable tokens first.
        rank: float32 [n], 1 for the most probable token; empty if not requested.
    """

    ids: np.ndarray
    logprob: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    rank: np.ndarray

    def select(self, tokens: slice, n_top: int) -> "TokenLogprobs":
        """Return some of the tokens, with at most `n_top` of the most probable ones at each."""
        ids, logprob, top_ids, top_logprobs, rank = (array[tokens] for array in self)
        return TokenLogprobs(ids, logprob, top_ids[:, :n_top], top_logprobs[:, :n_top], rank)


class Choice(NamedTuple):
    """One choice of an answer.

    Attributes:
        prompt: the index of its prompt.
        ids: all generated tokens, including an EOS.
        text: the text up to the EOS or a stop string.
        finish_reason: "stop" or "length".
        logprobs: the log-probabilities of the prompt's tokens if the request `scores_prompts`, and
            of `ids`; None if not requested.
    """

    prompt: int
    ids: list[int]
    text: str
    finish_reason: str
    logprobs: TokenLogprobs | None = None


class ChoicePart(NamedTuple):
    """Text and ids of a choice since its previous part, and the choice with its last part."""

    choice_index: int
    text: str
    ids: list[int]
    choice: Choice | None


async def compute_choices(service: Service, request: ChoiceRequest) -> list[Choice]:
    """Compute all choices of a request, in order."""
    if request.is_one_greedy_token:
        return await _most_probable_tokens(service, request)
    n = request.fields.n
    if request.max_tokens == 0:
        choices = [Choice(k // n, [], "", "length") for k in range(n * len(request.prompts))]
    else:
        texts = await service.generate(request.generation_requests())
        choices = [choice_of(service, request, k, text) for k, text in enumerate(texts)]
    if request.n_top is None and not request.scores_prompts:
        return choices
    return await _score(service, request, choices)


async def stream_choices(
    service: Service, request: ChoiceRequest
) -> AsyncGenerator[ChoicePart, None]:
    """Yield parts of all choices as they are generated."""
    if request.has_whole_choices:
        for index, choice in enumerate(await compute_choices(service, request)):
            yield ChoicePart(index, choice.text, choice.ids, choice)
        return
    n_sent = collections.Counter[int]()
    async with contextlib.aclosing(stream_texts(service, request.generation_requests())) as parts:
        async for index, text, ids, finished in parts:
            last = None if finished is None else choice_of(service, request, index, finished)
            if last is not None:
                ids = last.ids[n_sent[index] :]  # with the EOS
            n_sent[index] += len(ids)
            yield ChoicePart(index, text, ids, last)


def choice_of(service: Service, request: ChoiceRequest, index: int, text: Generated) -> Choice:
    """Return the choice of a generated text.

    Raises:
        ApiError: nothing was generated; the message gives the reason.
    """
    prompt = index // request.fields.n
    if text.error is not None:
        subject = request.describe_prompt(prompt)
        if text.error == NOT_FINITE:
            raise not_finite(subject)
        raise invalid_field(request.prompt_field, f"{subject}: {text.error}")
    ids = text.token_ids.tolist()
    if text.eos_id is not None:
        ids.append(text.eos_id)
    return Choice(prompt, ids, text.text, "length" if text.finish == "length" else "stop")


async def _score(
    service: Service, request: ChoiceRequest, choices: Sequence[Choice]
) -> list[Choice]:
    """Return the choices with log-probabilities."""
    n_top = request.most_top

    def piece_of(choice: Choice) -> Piece:
        prompt_ids = request.prompts[choice.prompt].ids
        ids = np.concatenate([prompt_ids, np.array(choice.ids, np.int32)])
        return (TokenSequence(ids, 1 if request.scores_prompts else len(prompt_ids)),)

    def add_logprobs(choice: Choice, piece: Piece, scores: SequenceScores) -> Choice:
        subject = request.describe_prompt(choice.prompt)
        return choice._replace(logprobs=last_logprobs(piece[0].ids, scores, n_top, subject))

    size = CHOICE_SIZE * len(choices)
    pieces = await service.run_in_thread(size, lambda: list(map(piece_of, choices)))
    with_rank = request.n_prompt_top is not None
    all_scores = await service.score(pieces, n_top, with_rank=with_rank)
    return await service.run_in_thread(
        size,
        lambda: [
            add_logprobs(choice, piece, scores)
            for choice, piece, [scores] in zip(choices, pieces, all_scores, strict=True)
        ],
    )


async def _most_probable_tokens(service: Service, request: ChoiceRequest) -> list[Choice]:
    """Compute choices of one greedy token together with the prompts' log-probabilities."""
    n_top, with_rank = request.most_top, request.n_prompt_top is not None

    def piece_of(prompt: Prompt) -> Piece:
        last = next_token(prompt.ids)
        return (every_token(prompt.ids), last) if request.scores_prompts else (last,)

    def choice_after(k: int, scores: Sequence[SequenceScores]) -> Choice:
        subject = request.describe_prompt(k)
        logprobs = top_logprobs(scores[-1], n_top, subject)
        choice = _choice_of_token(service, request, k, int(logprobs.ids[0]))
        if request.scores_prompts:
            before = last_logprobs(request.prompts[k].ids, scores[0], n_top, subject)
            logprobs = join_logprobs(before, logprobs)
        return choice._replace(logprobs=logprobs)

    size = CHOICE_SIZE * len(request.prompts)
    pieces = await service.run_in_thread(size, lambda: list(map(piece_of, request.prompts)))
    all_scores = await service.score(pieces, max(1, n_top), with_rank=with_rank)
    choices = await service.run_in_thread(
        size, lambda: [choice_after(k, scores) for k, scores in enumerate(all_scores)]
    )
    return [choice for choice in choices for _ in range(request.fields.n)]


def _choice_of_token(service: Service, request: ChoiceRequest, prompt: int, id: int) -> Choice:
    if id in service.eos_ids:
        return Choice(prompt, [id], "", "stop")
    stop = request.fields.stop
    text = service.token_bytes.text_before([id], stop)
    is_stopped = StopSearch(stop, service.token_bytes.raw).ends_with(id)
    return Choice(prompt, [id], text, "stop" if is_stopped else "length")


def last_logprobs(
    ids: Sequence[int] | np.ndarray, scores: SequenceScores, n_top: int, subject: str
) -> TokenLogprobs:
    """Return the log-probabilities of the last tokens of a text.

    Args:
        ids: ids of the full text.
        scores: scores of its last tokens.
        n_top: number of most probable tokens per position.
        subject: name of the text in error messages.

    Raises:
        ApiError: 500, the log-probabilities are not all finite.
    """
    n = len(scores.logprob)
    top_logprobs = scores.top_logprob[:, :n_top] if n_top else np.zeros((n, 0), np.float32)
    top_ids = scores.top_id[:, :n_top] if n_top else np.zeros((n, 0), np.int32)
    if not (np.isfinite(scores.logprob).all() and np.isfinite(top_logprobs).all()):
        raise not_finite(subject)
    rank = scores.measures.get("rank", np.zeros(0, np.float32))
    return TokenLogprobs(
        np.asarray(ids)[len(ids) - n :], scores.logprob, top_ids, top_logprobs, rank
    )


def top_logprobs(scores: SequenceScores, n_top: int, subject: str) -> TokenLogprobs:
    """Return the log-probability of the most probable token after a text.

    Args:
        scores: scores of `next_token`, with at least one most probable token.
        n_top, subject: see `last_logprobs`.

    Raises:
        ApiError: 500, the log-probabilities are not all finite.
    """
    most_probable = scores._replace(logprob=scores.top_logprob[:, 0])
    return last_logprobs(scores.top_id[:, 0], most_probable, n_top, subject)


def join_logprobs(first: TokenLogprobs, second: TokenLogprobs) -> TokenLogprobs:
    """Concatenate the log-probabilities of two texts."""
    return TokenLogprobs(*map(np.concatenate, zip(first, second, strict=True)))


async def stream_texts(
    service: Service, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[tuple[int, str, list[int], Generated | None], None]:
    """Generate texts, and pass on their parts from the worker's thread.

    Yields:
        The index of a text, the text (which may be empty) and the ids since its previous part, and
        the finished text with its last part.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[int, list[int] | Generated] | None] = asyncio.Queue()
    texts = [GrowingText(service.token_bytes, request.stop) for request in requests]

    def watch(index: int, generated: list[int] | Generated) -> None:
        loop.call_soon_threadsafe(arrived.put_nowait, (index, generated))

    generation = asyncio.ensure_future(service.generate(requests, watch))
    generation.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        while (message := await arrived.get()) is not None:
            index, generated = message
            text = texts[index]
            if isinstance(generated, Generated):
                ids = generated.token_ids[text.n_ids :].tolist()
                yield index, text.finish(generated.text), ids, generated
            else:
                yield index, text.append(generated), generated, None
        await generation  # raises an error of the worker
    finally:
        generation.cancel()
        await asyncio.gather(generation, return_exceptions=True)


class GrowingText:
    """Decodes a stream of tokens into parts that are final.

    Withholds incomplete characters, and a suffix that may become a stop string.

    Attributes:
        n_ids: the number of tokens so far.
    """

    def __init__(self, token_bytes: TokenBytes, stop: Sequence[str]) -> None:
        self._bytes, self._stop = token_bytes, tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._n_returned = "", 0
        self.n_ids = 0

    def append(self, ids: Sequence[int]) -> str:
        """Add tokens, and return the text that became final."""
        self.n_ids += len(ids)
        raw = b"".join(self._bytes.raw(id) for id in ids if not self._bytes.is_special(id))
        self._text += self._decoder.decode(raw)
        end = find_stop(self._text, self._stop)
        if end is None:
            end = len(self._text) - count_stop_prefix(self._text, self._stop)
        new_text = self._text[self._n_returned : end]
        self._n_returned = max(self._n_returned, end)
        return new_text

    def finish(self, text: str) -> str:
        """Return the rest of the finished text, see `Generated.text`."""
        return text[self._n_returned :]


def find_stop(text: str, stop: Sequence[str]) -> int | None:
    """Return the offset of the first stop string, or None."""
    return min((at for string in stop if (at := text.find(string)) >= 0), default=None)


def count_stop_prefix(text: str, stop: Sequence[str]) -> int:
    """Return the length of the text's longest suffix that begins a stop string."""
    longest = max(map(len, stop), default=0)
    for n in range(min(longest - 1, len(text)), 0, -1):
        if any(string.startswith(text[-n:]) for string in stop):
            return n
    return 0

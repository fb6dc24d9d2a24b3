"""The model, its tokenizer and worker for all endpoints; tokenized and checked prompts."""

import asyncio
import concurrent.futures
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxscore.engine.generation import Generator
from jaxscore.errors import InputError
from jaxscore.plan.requests import SequenceScores, TokenSequence
from jaxscore.scorer import Scorer
from jaxscore.server import (
    CONTEXT_LENGTH,
    MAX_CHARACTERS,
    MAX_PROMPTS,
    TOPS,
    ApiError,
    Settings,
    invalid_field,
)
from jaxscore.server.request_models import Message
from jaxscore.server.scheduler import GenerationJob, Job, Piece, ScoringJob, Watch
from jaxscore.server.worker import Metrics, Worker
from jaxscore.text import chat_template
from jaxscore.text.decoder import TokenBytes
from jaxscore.text.tokenize_requests import RequestTokenizer
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

CHAT_THREADS = 2  # all renders share one process; while one thread waits, another may tokenize
LONG = 50_000  # bytes of text, or numbers, above which a thread does the work

T = TypeVar("T")


class Service:
    """One served model.

    Attributes:
        scorer: the scorer; only the worker runs it.
        settings, metrics, worker: see their classes.
        encoder, token_bytes, preparer: the model's tokenizer; safe to use in threads.
        chat_threads: the threads that render conversations, so that slow templates delay no other
            request.
        eos_ids: the tokens that end a text.
        started: the start time, seconds since 1970.
        is_ending: True if the server shuts down.
    """

    def __init__(self, scorer: Scorer, settings: Settings) -> None:
        self.scorer, self.settings = scorer, settings
        self.metrics = Metrics()
        self.worker = Worker(scorer, settings, self.metrics)
        self.encoder = scorer.encoder
        self.token_bytes = TokenBytes(scorer.encoder.tokenizer)
        self.preparer = RequestTokenizer(
            scorer.encoder, scorer.model.max_positions, scorer.engine.complaints
        )
        self.chat_threads = concurrent.futures.ThreadPoolExecutor(CHAT_THREADS, "jaxscore-chat")
        self.eos_ids = Generator(scorer).eos_ids
        self.started = int(time.time())
        self.is_ending = False

    @property
    def max_positions(self) -> int:
        """The maximum tokens of a text."""
        return self.scorer.model.max_positions

    @functools.cached_property
    def longest_token(self) -> int:
        """The characters of the vocabulary's longest token."""
        return max(map(len, self.encoder.tokenizer.get_vocab()), default=1)

    def max_characters(self, *, truncates: bool = False) -> int:
        """Return the maximum characters of a text that is tokenized.

        Args:
            truncates: True if texts beyond the positions are truncated.
        """
        limit = self.encoder.bounded.most_characters(self.max_positions)
        if limit is None:  # the encoder itself refuses texts that are certainly too long
            return max(self.max_positions * self.longest_token, MAX_CHARACTERS)
        return max(limit, MAX_CHARACTERS) if truncates else limit

    def check_model(self, name: str | None) -> None:
        """Check that a request is for this model.

        Raises:
            ApiError: 404, it names another one.
        """
        if name is not None and name not in self.settings.names:
            names = ", ".join(self.settings.names)
            raise ApiError(
                404,
                f'model "{name}" is not served here; expected {names}, or leave the field out',
                param="model",
                code="model_not_found",
            )

    async def score(
        self, pieces: Sequence[Piece], top: int = 0, *, with_rank: bool = False
    ) -> list[list[SequenceScores]]:
        """Score pieces; `top` is the smallest number of most probable tokens per position."""
        return await self.run_job(await self.scoring_job(pieces, top, with_rank=with_rank))

    async def scoring_job(
        self, pieces: Sequence[Piece], top: int = 0, *, with_rank: bool = False
    ) -> ScoringJob:
        """Return a job for `run_job`, with `top` rounded up to a number with compiled programs."""
        compiled = min(next(k for k in TOPS if k >= top), self.scorer.model.vocab_size)
        size = sum(sequence.n_input_tokens for piece in pieces for sequence in piece)
        return await self.run_in_thread(
            size, lambda: ScoringJob(pieces, compiled, with_rank=with_rank)
        )

    async def generate(
        self, requests: Sequence[GenerationRequest], watch: Watch | None = None
    ) -> list[Generated]:
        """Generate a text per request; `watch` is called in the worker's thread."""
        return await self.run_job(GenerationJob(requests, watch))

    async def run_job(self, job: Job) -> Any:
        """Wait for a job's answer. Cancelling this drops the pieces that still wait.

        Raises:
            ApiError: 429, the queue is full.
        """
        self.worker.scheduler.add(job)
        return await asyncio.wrap_future(job.answer)

    async def run_in_thread(self, size: int, function: Callable[[], T]) -> T:
        """Call a function, in a thread if its `size` makes it long, so as not to block the loop."""
        return await asyncio.to_thread(function) if size > LONG else function()


class Prompt(NamedTuple):
    """One tokenized prompt.

    Attributes:
        ids: the token ids, int32 [n], n >= 1.
        text: the client's text, or the text of its ids.
        starts: the offset of each token in `text`, [n], in characters.
    """

    ids: np.ndarray
    text: str
    starts: list[int]


def tokenize_prompts(
    service: Service,
    prompts: list[str] | list[list[int]],
    special_tokens: bool,
    field: str = "prompt",
    noun: str = "prompt",
) -> list[Prompt]:
    """Tokenize the prompts of a request; an unusable one refuses them all.

    Args:
        service: the owner of the tokenizer.
        prompts: texts, or token ids, which are used unchanged.
        special_tokens: True adds the tokenizer's BOS to texts.
        field, noun: the client's name of the prompts' field, and the name of one in messages.

    Raises:
        ApiError: 400, with the index of the prompt and the reason.
    """
    if len(prompts) > MAX_PROMPTS:
        raise invalid_field(
            field,
            f"{field} has {len(prompts)} {noun}s, expected at most {MAX_PROMPTS}; send several "
            "requests",
        )
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts:
        for k, text in enumerate(texts):
            if len(text) > service.max_characters():
                raise _too_long(service, field, f"{noun} {k} has", len(text))
        tokenized = service.encoder.prompts(
            texts, special_tokens=special_tokens, max_positions=service.max_positions
        )
        tokenized_prompts = [
            Prompt(ids, t, starts) for t, (ids, starts) in zip(texts, tokenized, strict=True)
        ]
    else:
        id_lists = (prompt for prompt in prompts if isinstance(prompt, list))
        tokenized_prompts = [
            _prompt_of_ids(service, ids, field, f"{noun} {k}") for k, ids in enumerate(id_lists)
        ]
    for k, prompt in enumerate(tokenized_prompts):
        if not len(prompt.ids):
            raise invalid_field(
                field, f"{noun} {k} is empty, so nothing can follow it; write some text"
            )
    sequences = [TokenSequence(prompt.ids, len(prompt.ids)) for prompt in tokenized_prompts]
    for k, problem in sorted(service.scorer.engine.complaints(sequences).items()):
        if (
            len(tokenized_prompts[k].ids) <= service.max_positions
        ):  # `check_length` reports the others
            raise invalid_field(field, f"{noun} {k}: {problem}")
    return tokenized_prompts


def check_length(service: Service, prompts: list[Prompt], max_tokens: int, field: str) -> None:
    """Check that each prompt and `max_tokens` tokens after it fit in the model's positions.

    Args:
        service: the owner of the model.
        prompts: all prompts of a request.
        max_tokens: maximum tokens to generate.
        field: name of the client's field for `max_tokens`.

    Raises:
        ApiError: 400, with the index of the prompt and the numbers.
    """
    limit = service.max_positions
    for k, prompt in enumerate(prompts):
        n = len(prompt.ids)
        if n + max_tokens > limit:
            raise invalid_field(
                "prompt" if n > limit else field,
                f"prompt {k} has {n} tokens and {field} is {max_tokens}, together "
                f"{n + max_tokens}; the model takes {limit}; shorten the prompt, or request fewer "
                "tokens",
                CONTEXT_LENGTH,
            )


def tokenize_conversation(
    service: Service, messages: Sequence[Message], variables: Mapping[str, Any]
) -> Prompt:
    """Render a conversation by the chat template and tokenize it.

    Args:
        variables: values of the template's variables.

    Raises:
        ApiError: 400, the template refuses it or leaves out text, or it is too long.
    """
    tokenizer = service.encoder.tokenizer
    n_characters = sum(message.n_characters for message in messages)
    if n_characters <= service.max_characters():
        field = "chat_template_kwargs"
        try:
            if variables:
                chat_template.check_variables(tokenizer, variables)
            field = "messages"
            conversation = [message.to_dict() for message in messages]
            text = chat_template.render(tokenizer, conversation, **variables)
        except InputError as error:
            # The message begins with the tokenizer's folder, which clients must not see.
            problem = str(error).removeprefix(f"{tokenizer.name_or_path}: ")
            raise invalid_field(field, problem) from None
        n_characters = len(text)
    if n_characters > service.max_characters():
        raise _too_long(service, "messages", "the messages have", n_characters)
    # The template writes all special tokens.
    [prompt] = tokenize_prompts(service, [text], False)
    return prompt


def _too_long(service: Service, param: str, subject: str, n_characters: int) -> Exception:
    return invalid_field(
        param,
        f"{subject} {n_characters} characters, more than the model's {service.max_positions} "
        "positions can hold; shorten the text",
        CONTEXT_LENGTH,
    )


def _prompt_of_ids(service: Service, ids: list[int], field: str, subject: str) -> Prompt:
    n_ids = service.scorer.model.vocab_size
    unknown = next((id for id in ids if not 0 <= id < n_ids), None)
    if unknown is not None:
        raise invalid_field(
            field,
            f"{subject} has token id {unknown}, expected an id of the model's vocabulary, 0 "
            f"to {n_ids - 1}",
        )
    return Prompt(np.array(ids, np.int32), *service.token_bytes.text_and_starts(ids, is_first=True))

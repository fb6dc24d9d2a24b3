"""What every endpoint uses: facts of the model, its tokenizer, and the worker."""

import asyncio
import concurrent.futures
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxscore.engine.generation.generator import Generator
from jaxscore.plan.requests import SequenceScores
from jaxscore.scorer import Scorer
from jaxscore.server.errors import ApiError
from jaxscore.server.scheduler import GenerationJob, Job, Piece, ScoringJob, Watch
from jaxscore.server.settings import MAX_CHARACTERS, TOPS, Settings
from jaxscore.server.worker import Metrics, Worker
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
        scorer: for facts only; the worker runs it.
        settings, metrics, worker: see their classes.
        encoder, token_bytes, preparer: of the model's tokenizer; safe to use in threads.
        chat_threads: render conversations, so that slow templates delay no other request.
        eos_ids: tokens that end a text.
        started: start time, seconds since 1970.
        is_ending: whether the server shuts down.
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
        """Longest text of the model, in tokens."""
        return self.scorer.model.max_positions

    @functools.cached_property
    def longest_token(self) -> int:
        """Characters of the vocabulary's longest token."""
        return max(map(len, self.encoder.tokenizer.get_vocab()), default=1)

    def max_characters(self, *, truncates: bool = False) -> int:
        """Longest text that is tokenized, in characters.

        Args:
            truncates: whether a text that does not fit in the positions is usable.
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
            known = ", ".join(self.settings.names)
            raise ApiError(
                404,
                f'model "{name}" is not served here; expected {known}, or leave the field out',
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
        """A job for `run_job`, with `top` rounded up to a number that has compiled programs."""
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
        """Wait for a job's answer. Cancelling this drops what is not in work yet.

        Raises:
            ApiError: 429, too much waits already.
        """
        self.worker.scheduler.add(job)
        return await asyncio.wrap_future(job.answer)

    async def run_in_thread(self, size: int, function: Callable[[], T]) -> T:
        """Call a function, in a thread if its `size` makes it long, so that the loop goes on."""
        return await asyncio.to_thread(function) if size > LONG else function()

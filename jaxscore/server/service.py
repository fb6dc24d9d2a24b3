"""What every endpoint works with: the model's facts, its tokenizer and its worker."""

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
from jaxscore.server.jobs import Job, Piece, ScoringJob, Watch, WritingJob
from jaxscore.server.metrics import Metrics
from jaxscore.server.settings import MOST_CHARACTERS, TOPS, Settings
from jaxscore.server.worker import Worker
from jaxscore.text.preparing import Preparer
from jaxscore.text.token_bytes import TokenBytes
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

CHAT_THREADS = 2  # one renders, as all share one process for that; another one may tokenize
LONG = 50_000  # bytes of text, or numbers, above which a thread does the work

T = TypeVar("T")


class Service:
    """One model, served.

    Attributes:
        settings, metrics, worker: see there.
        scorer: for facts alone; the worker runs it.
        encoder, token_bytes, preparer: of its tokenizer; threads may share them.
        chat_threads: read conversations, so that slow ones hold no threads of `apart`.
        eos_ids: tokens that end a text.
        started: seconds since 1970.
        ending: the server takes no more requests.
    """

    def __init__(self, scorer: Scorer, settings: Settings) -> None:
        self.scorer, self.settings = scorer, settings
        self.metrics = Metrics()
        self.worker = Worker(scorer, settings, self.metrics)
        self.encoder = scorer.encoder
        self.token_bytes = TokenBytes(scorer.encoder.tokenizer)
        self.preparer = Preparer(
            scorer.encoder, scorer.model.max_positions, scorer.engine.complaints
        )
        self.chat_threads = concurrent.futures.ThreadPoolExecutor(CHAT_THREADS, "jaxscore-chat")
        self.eos_ids = Generator(scorer).eos_ids
        self.started = int(time.time())
        self.ending = False

    @property
    def max_positions(self) -> int:
        """Longest text that the model takes, in tokens."""
        return self.scorer.model.max_positions

    @functools.cached_property
    def longest_token(self) -> int:
        """Characters of the vocabulary's longest token."""
        return max(map(len, self.encoder.tokenizer.get_vocab()), default=1)

    def room(self, *, cut: bool = False) -> int:
        """Most characters of a text that is tokenized; `cut` where it need not fit as a whole."""
        fits = self.encoder.bounded.most_characters(self.max_positions)
        if fits is None:  # the encoder refuses the texts that are too long for certain
            return max(self.max_positions * self.longest_token, MOST_CHARACTERS)
        return max(fits, MOST_CHARACTERS) if cut else fits

    def check_model(self, name: str | None) -> None:
        """See that a request is for this model.

        Raises:
            ApiError: 404 where it is for another one.
        """
        if name is not None and name not in self.settings.names:
            known = ", ".join(self.settings.names)
            raise ApiError(
                404,
                f'model "{name}" is not served here; expected {known}, or leave the field out',
                param="model",
                code="model_not_found",
            )

    async def score(self, pieces: Sequence[Piece], top: int = 0) -> list[list[SequenceScores]]:
        """Scores of each piece, in order.

        Args:
            top: most probable tokens of each place, at least so many.
        """
        return await self.done(await self.scoring_job(pieces, top))

    async def scoring_job(self, pieces: Sequence[Piece], top: int = 0) -> ScoringJob:
        """A job for `done`, with the smallest number of most probable tokens that is compiled."""
        compiled = min(next(k for k in TOPS if k >= top), self.scorer.model.vocab_size)
        size = sum(one.n_input_tokens for piece in pieces for one in piece)
        return await self.apart(size, lambda: ScoringJob(pieces, compiled))

    async def write(
        self, requests: Sequence[GenerationRequest], watch: Watch | None = None
    ) -> list[Generated]:
        """A text after each prompt, in order; `watch` is called in the worker's thread."""
        return await self.done(WritingJob(requests, watch))

    async def done(self, job: Job) -> Any:
        """The answer of a job. Cancelling this drops what of it is not in work yet.

        Raises:
            ApiError: 429, too much waits already.
        """
        self.worker.add(job)
        return await asyncio.wrap_future(job.answer)

    async def apart(self, size: int, function: Callable[[], T]) -> T:
        """What a function gives; in a thread where the work is long, so that others go on."""
        return await asyncio.to_thread(function) if size > LONG else function()

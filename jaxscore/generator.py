"""Prompts in, text out: greedy or seeded sampling with a KV cache."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from jaxscore.engine import interrupt, processes
from jaxscore.engine.engine import Engine
from jaxscore.engine.progress import Progress
from jaxscore.engine.text_writer import TextWriter
from jaxscore.engine.writing import Writing
from jaxscore.models.model import Model
from jaxscore.plan.token_requests import TokenRequest, Written
from jaxscore.requests import GenerationRequest
from jaxscore.results import Generated, Results
from jaxscore.text.encoder import TextEncoder, is_text


class EngineOwner(Protocol):
    """What a `Scorer` has that a generator needs."""

    @property
    def engine(self) -> Engine: ...
    @property
    def encoder(self) -> TextEncoder: ...
    @property
    def model(self) -> Model: ...
    @property
    def progress(self) -> bool: ...


class Generator:
    """Writes text with a scorer's model.

    Example:
        >>> generator = Generator(Scorer.from_pretrained("demo"))
        >>> [written] = generator.generate([GenerationRequest("0", "The cat", max_new_tokens=10)])
        >>> written.text
    """

    def __init__(self, scorer: EngineOwner) -> None:
        self.scorer, self.engine, self.encoder = scorer, scorer.engine, scorer.encoder
        self.model = scorer.model
        eos = self.model.eos_ids
        own = self.encoder.tokenizer.eos_token_id
        self.eos_ids = eos or (() if own is None else (int(own),))
        self._writer = TextWriter(self.engine, self.eos_ids, self._decode)

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Generated]:
        """Continue each prompt.

        Args:
            requests: in any order; what their prompts share is computed once.

        Returns:
            One result for each request, in order; one that cannot be generated has `error` set. A
            text ends at one of the checkpoint's EOS ids, before a stop string, at its
            `max_new_tokens`, or where the model has no positions left.

        Raises:
            InputError: the scorer's journal cannot be used.
        """
        requests = list(requests)
        texts = [request.prompt if is_text(request.prompt) else "" for request in requests]
        distinct: dict[bytes, Writing] = {}  # equal requests are one, as they are in a journal
        own: list[Writing] = []
        for request, ids in zip(requests, self.encoder.prompt_ids(texts), strict=True):
            one = Writing(self._asked(request, ids), error=self._complaint(request, ids))
            if one.error is None:
                one = distinct.setdefault(one.request.digest(), one)
            own.append(one)
        waiting = list(distinct.values())
        keys = sorted(one.request.digest() for one in waiting)
        statistics = self.engine.statistics
        statistics.note_plan(hashlib.sha256(b"".join(keys)).digest())
        processes.agree("prompts", bytes.fromhex(statistics.plan_hash))
        self._restore(waiting)
        statistics.count_texts(
            sum(one.error is None for one in own), sum(one.finish is not None for one in own)
        )
        with Progress(self.scorer.progress, "writing") as progress, interrupt.finishing():
            progress.extend(sum(one.request.n_new for one in waiting), len(waiting), None)
            for batch, write in self._writer.batches(waiting, progress):
                if interrupt.wished():
                    raise KeyboardInterrupt
                if missing := [one for one in batch if not one.ended]:
                    write()
                    self._keep(missing)
                progress.advance(sum(one.request.n_new for one in batch))
        return Results(_result(request.id, one) for request, one in zip(requests, own, strict=True))

    def _asked(self, request: GenerationRequest, ids: np.ndarray) -> TokenRequest:
        return TokenRequest(
            ids,
            min(request.max_new_tokens, self._room(ids)),
            request.temperature,
            request.top_p,
            request.seed % 2**32,
            request.stop,
            self.eos_ids,
        )

    def _restore(self, waiting: Sequence[Writing]) -> None:
        """Take from the journal what it has, which then is not written again."""
        found = self.engine.journaled.found_texts([one.request for one in waiting])
        for k, written in found.items():
            waiting[k].restore(written, self._decode)

    def _keep(self, finished: Sequence[Writing]) -> None:
        self.engine.journaled.keep_texts(
            (one.request, Written(np.array(one.written, np.int32), one.finish))
            for one in finished
            if one.finish is not None
        )

    def _room(self, ids: np.ndarray) -> int:
        """Tokens that may follow; the last one is never fed, which only our own cache knows."""
        return self.model.max_positions - len(ids) + (self.model.cached is not None)

    def _complaint(self, request: GenerationRequest, ids: np.ndarray) -> str | None:
        if not is_text(request.prompt):
            return "its prompt has half a surrogate pair, which is no character"
        if not len(ids):
            return "its prompt has no tokens, so nothing comes after it"
        if self._room(ids) < 1:
            return (
                f"its prompt has {len(ids)} tokens, the model takes {self.model.max_positions} "
                "positions, which leaves none to write in; shorten it"
            )
        if int(ids.max()) >= self.model.vocab_size:
            return (
                f"token id {int(ids.max())} is beyond the model's vocabulary of "
                f"{self.model.vocab_size}; tokenizer and model do not belong together"
            )
        r = request
        whole = isinstance(r.max_new_tokens, int | np.integer)
        hot = not 0 <= r.temperature < math.inf  # which NaN is too
        if not whole or r.max_new_tokens < 1 or hot or not 0 < r.top_p <= 1:
            return (
                f"max_new_tokens {r.max_new_tokens}, temperature {r.temperature} and top_p "
                f"{r.top_p}: expected a whole number of at least 1, at least 0 and finite, and "
                "above 0 up to 1"
            )
        if "" in r.stop:
            return "a stop string is empty, so the text would end before it begins"
        longer, n_new = self.model.longer, min(r.max_new_tokens, self._room(ids))
        if longer is not None and len(ids) <= longer[0] < len(ids) + n_new - 1:
            return (
                f"its prompt of {len(ids)} tokens and {n_new} new ones go beyond the "
                f"{longer[0]} up to which this model has other rotary frequencies; ask for at "
                f"most {longer[0] - len(ids) + 1} new tokens"
            )
        return None

    def _decode(self, ids: list[int]) -> str:
        return self.encoder.tokenizer.decode(ids, skip_special_tokens=True)


def _result(id: str | int, one: Writing) -> Generated:
    if one.error:
        return Generated(id, "", np.zeros(0, np.int32), None, one.error)
    return Generated(id, one.text, np.array(one.written, np.int32), one.finish)

"""Prompts in, text out: greedy or seeded sampling with a KV cache."""

import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.engine.generation.checks import complaint, room, unreadable
from jaxscore.engine.generation.slot_memory import most_rows
from jaxscore.engine.generation.state import Writing
from jaxscore.engine.generation.text_pipeline import TextPipeline, Watch
from jaxscore.io import processes
from jaxscore.models.model import Model
from jaxscore.plan.requests import TokenRequest, TokenSequence, complaints
from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.decoder import TextDecoder
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated, Results

NO_IDS = np.zeros(0, np.int32)
# In the place of what is no request.
NOTHING = TokenRequest(NO_IDS, 0, 0.0, 1.0, 0, (), ())


class EngineOwner(Protocol):
    """What a `Scorer` has that a generator needs."""

    @property
    def engine(self) -> Engine: ...
    @property
    def encoder(self) -> TextEncoder: ...
    @property
    def model(self) -> Model: ...


class Generator:
    """Writes text with a scorer's model.

    Example:
        >>> generator = Generator(Scorer.from_pretrained("demo"))
        >>> [written] = generator.generate([GenerationRequest("0", "The cat", max_new_tokens=10)])
        >>> written.text
    """

    def __init__(self, scorer: EngineOwner) -> None:
        self.scorer, self.encoder, self.model = scorer, scorer.encoder, scorer.model
        eos = self.model.eos_ids
        own = self.encoder.tokenizer.eos_token_id
        self.eos_ids = eos or (() if own is None else (int(own),))
        self._texts = TextPipeline(scorer.engine, TextDecoder(self.encoder.tokenizer))

    @property
    def side_by_side(self) -> int:
        """Most texts that are written side by side. A few times as many in one call keep them so,
        since a text that ends makes room for the next one."""
        return most_rows(self.model)

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Generated]:
        """Continue each prompt.

        Args:
            requests: in any order; what their prompts share is computed once.

        Returns:
            One result for each request, in order; one that cannot be generated has `error` set. A
            text ends at an EOS, with the token that completes a stop string, at its
            `max_new_tokens`, or where the model has no positions left.

        Raises:
            InputError: the scorer's journal cannot be used, or the device's memory does not hold
                the texts that are written side by side. What has ended is in the journal.
            KeyboardInterrupt: the user wants the run to end. With a journal the texts that have
                begun end first and are in it; without one, nothing of them is left.
        """
        # Ctrl-C that waits for texts has a use where they are kept; several processes end together.
        kept = self.scorer.engine.journaled.journal is not None or processes.several()
        found = dict(self._stream(list(requests), None, finishing=kept))
        return Results(found[place] for place in range(len(found)))

    def stream(
        self, requests: Iterable[GenerationRequest], *, watch: Watch | None = None
    ) -> Iterator[tuple[int, Generated]]:
        """Like `generate`, each result with its request's place, after the block in which it ends.

        Args:
            requests: as in `generate`, all planned together.
            watch: `watch(place, ids, ended)` is called after each block of steps for each text
                that is being written, with all its ids so far, and not for one that the journal
                has. Where it gives False nobody wants that text any more: its result has the error
                "abandoned", nothing of it is journaled, and its row goes to the next text.

        Raises:
            InputError: the scorer's journal cannot be used, or the device's memory does not hold
                the texts that are written side by side. What has ended is in the journal.
            ValueError: `watch` in a run of several processes, which must all do the same.
        """
        if watch is not None and processes.several():
            raise ValueError("watch is for a run of one process, and this one has several")
        return self._stream(list(requests), watch, finishing=True)

    def _stream(
        self, given: list[GenerationRequest], watch: Watch | None, *, finishing: bool
    ) -> Iterator[tuple[int, Generated]]:
        texts = self._texts.stream(self._writings(given), watch, finishing=finishing)
        return ((place, _result(getattr(given[place], "id", place), one)) for place, one in texts)

    def _writings(self, requests: list[GenerationRequest]) -> list[Writing]:
        """A text to write for each request, or why it cannot be written."""
        errors = [unreadable(request) for request in requests]
        prompts: list[Any] = [
            NO_IDS if error else request.prompt
            for request, error in zip(requests, errors, strict=True)
        ]
        texts = [k for k, prompt in enumerate(prompts) if isinstance(prompt, str)]
        encode = functools.partial(self.encoder.prompt_ids, most=self.model.max_positions)
        for k, ids in zip(texts, encode_each(encode, [prompts[k] for k in texts]), strict=True):
            prompts[k] = NO_IDS if isinstance(ids, TextError) else ids
            errors[k] = str(ids) if isinstance(ids, TextError) else None
        unusable = complaints(
            [TokenSequence(ids, 0) for ids in prompts],
            vocab_size=self.model.vocab_size,
            max_positions=sys.maxsize,  # `complaint` says it in a generator's words
            placeholders=self.model.placeholders,
        )
        out = []
        for k, (request, prompt, error) in enumerate(zip(requests, prompts, errors, strict=True)):
            error = error or unusable.get(k)
            ids = NO_IDS if error else np.array(prompt, np.int32)
            error = error or complaint(request, ids, self.model)
            out.append(Writing(NOTHING if error else self._asked(request, ids), error=error))
        return out

    def _asked(self, request: GenerationRequest, ids: np.ndarray) -> TokenRequest:
        eos_ids = self.eos_ids if request.eos_ids is None else tuple(request.eos_ids)
        return TokenRequest(
            ids,
            min(request.max_new_tokens, room(ids, self.model)),
            request.temperature,
            request.top_p,
            request.seed % 2**32,
            tuple(request.stop),
            eos_ids,
            min(request.top_k, self.model.vocab_size),
            request.repetition_penalty,
        )


def _result(id: str | int, one: Writing) -> Generated:
    if one.error:
        return Generated(id, "", NO_IDS, None, one.error)
    return Generated(id, one.text, np.array(one.written, np.int32), one.finish, eos_id=one.eos_id)

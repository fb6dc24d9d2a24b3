"""Prompts in, text out: greedy or seeded sampling with a KV cache."""

import contextlib
import dataclasses
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.engine.generation.checks import complaint, room, unreadable
from jaxscore.engine.generation.scheduler import TextWriter
from jaxscore.engine.generation.slots import most_rows
from jaxscore.engine.generation.state import ABANDONED, Writing
from jaxscore.engine.progress import Progress
from jaxscore.io import interrupts, processes
from jaxscore.models.model import Model
from jaxscore.plan.requests import GeneratedTokens, TokenRequest, TokenSequence, check_sequences
from jaxscore.text.bounded_tokenizer import TextError, encode_each
from jaxscore.text.decoder import TextDecoder
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated, Results

# (place of the request, ids written so far, whether they are all) -> whether to go on
Watch = Callable[[int, list[int], bool], bool]

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
        kept = self.scorer.engine.run_journal.journal is not None or processes.is_distributed()
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
        if watch is not None and processes.is_distributed():
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
        unusable = check_sequences(
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


class TextPipeline:
    """Writes texts with an engine's model, and keeps them in its journal.

    Attributes:
        writer: what runs the model.
    """

    def __init__(self, engine: Engine, decoder: TextDecoder) -> None:
        self._engine, self._decoder = engine, decoder
        self.writer = TextWriter(engine, decoder)

    def stream(
        self,
        asked: Sequence[Writing],
        watch: Watch | None = None,
        *,
        finishing: bool = True,
    ) -> Iterator[tuple[int, Writing]]:
        """Each text with its place, as it has ended; equal requests share one, as in a journal.

        Args:
            asked: texts that nothing is written of; those with an `error` stay as they are.
            watch: is called after each block of steps for each place whose text is being
                written. Where it gives False that place has the error `ABANDONED`, and a text that
                no other place wants is not written further.
            finishing: the first Ctrl-C lets the texts that have begun end. False where nobody
                would have them: it ends the run at once.

        Raises:
            InputError: the journal cannot be used, or the device's memory does not hold a lane.
            KeyboardInterrupt: the user wants the run to end; with `finishing` no text has begun
                since then, and those that had begun are finished and kept.
        """
        places: dict[bytes, list[int]] = {}
        for place, one in enumerate(asked):
            if one.error:
                yield place, one
            else:
                places.setdefault(one.request.digest(), []).append(place)
        texts = [_Shared(asked[some[0]], some, watch) for some in places.values()]
        statistics = self._engine.statistics
        statistics.note_plan(hashlib.sha256(b"".join(sorted(places))).digest())
        processes.verify_same("prompts", bytes.fromhex(statistics.plan_hash))
        waiting = [one.text for one in texts]
        self._restore(waiting)
        statistics.count_texts(
            sum(len(one.places) for one in texts),
            sum(len(one.places) for one in texts if one.text.ended),
        )
        shared = {id(one.text): one for one in texts}
        shown = self._engine.pipeline.progress
        way = interrupts.finish_on_interrupt() if finishing else contextlib.nullcontext()
        with Progress(shown, "writing") as progress, way:
            progress.extend(sum(one.request.n_new for one in waiting), len(waiting), None)
            for ended in self._ended(waiting, progress):
                progress.advance(sum(one.request.n_new for one in ended))
                for one in ended:
                    yield from shared[id(one)].results()

    def _ended(self, waiting: Sequence[Writing], progress: Progress) -> Iterator[list[Writing]]:
        """What the journal had, then what is written and kept, block after block."""
        yield [one for one in waiting if one.ended]
        for ended in self.writer.write(waiting, progress):
            self._engine.statistics.tokens_written += sum(len(one.written) for one in ended)
            self._keep(ended)
            yield ended

    def _restore(self, waiting: Sequence[Writing]) -> None:
        """Take from the journal what it has, which then is not written again."""
        found = self._engine.run_journal.read_texts([one.request for one in waiting])
        for k, written in found.items():
            waiting[k].restore(written, self._decoder)

    def _keep(self, finished: Sequence[Writing]) -> None:
        self._engine.run_journal.write_texts(
            (one.request, GeneratedTokens(np.array(one.written, np.int32), one.finish, one.eos_id))
            for one in finished
            if one.finish is not None
        )


class _Shared:
    """One text and the places of the equal requests that want it."""

    def __init__(self, text: Writing, places: Sequence[int], watch: Watch | None) -> None:
        self.text, self.places, self._watch = text, places, watch
        self._left: set[int] = set()  # places that no longer want it
        if watch is not None:
            text.watch = self._wanted

    def results(self) -> Iterator[tuple[int, Writing]]:
        """The ended text with each of its places."""
        for place in self.places:
            left = place in self._left
            yield place, dataclasses.replace(self.text, error=ABANDONED) if left else self.text

    def _wanted(self, ids: list[int], ended: bool) -> bool:
        """Ask each place that has not left."""
        assert self._watch is not None
        for place in self.places:
            if place not in self._left and not self._watch(place, list(ids), ended) and not ended:
                self._left.add(place)
        return len(self._left) < len(self.places)

"""Prompts in, texts out: each distinct one once, from the journal where it has them."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jaxscore.engine.engine import Engine
from jaxscore.engine.generation.scheduler import TextWriter
from jaxscore.engine.generation.state import ABANDONED, Writing
from jaxscore.engine.progress import Progress
from jaxscore.io import interrupts, processes
from jaxscore.plan.requests import Written
from jaxscore.text.decoder import TextDecoder

# (place of the request, ids written so far, whether they are all) -> whether to go on
Watch = Callable[[int, list[int], bool], bool]


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
        processes.agree("prompts", bytes.fromhex(statistics.plan_hash))
        waiting = [one.text for one in texts]
        self._restore(waiting)
        statistics.count_texts(
            sum(len(one.places) for one in texts),
            sum(len(one.places) for one in texts if one.text.ended),
        )
        shared = {id(one.text): one for one in texts}
        shown = self._engine.pipeline.progress
        way = interrupts.finishing() if finishing else contextlib.nullcontext()
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
        found = self._engine.journaled.found_texts([one.request for one in waiting])
        for k, written in found.items():
            waiting[k].restore(written, self._decoder)

    def _keep(self, finished: Sequence[Writing]) -> None:
        self._engine.journaled.keep_texts(
            (one.request, Written(np.array(one.written, np.int32), one.finish, one.eos_id))
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

"""Prompts in, texts out: each distinct one once, from the journal where it has them."""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from jaxscore.engine import interrupt, processes
from jaxscore.engine.engine import Engine
from jaxscore.engine.progress import Progress
from jaxscore.engine.text_writer import TextWriter
from jaxscore.engine.writing import Writing
from jaxscore.plan.token_requests import Written


class TextPipeline:
    """Writes texts with an engine's model, and keeps them in its journal.

    Attributes:
        writer: what runs the model.
    """

    def __init__(
        self, engine: Engine, eos_ids: tuple[int, ...], decode: Callable[[list[int]], str]
    ) -> None:
        """Arguments are those of `TextWriter`."""
        self._engine, self._decode = engine, decode
        self.writer = TextWriter(engine, eos_ids, decode)

    def run(self, asked: Sequence[Writing]) -> list[Writing]:
        """The same texts, ended; equal requests share one, as they do in a journal.

        Args:
            asked: texts that nothing is written of; those with an `error` stay as they are.

        Raises:
            InputError: the journal cannot be used.
            KeyboardInterrupt: the user wants the run to end; finished groups are kept.
        """
        distinct: dict[bytes, Writing] = {}
        texts = [
            one if one.error else distinct.setdefault(one.request.digest(), one) for one in asked
        ]
        waiting = list(distinct.values())
        statistics = self._engine.statistics
        statistics.note_plan(hashlib.sha256(b"".join(sorted(distinct))).digest())
        processes.agree("prompts", bytes.fromhex(statistics.plan_hash))
        self._restore(waiting)
        statistics.count_texts(
            sum(one.error is None for one in texts), sum(one.finish is not None for one in texts)
        )
        shown = self._engine.pipeline.progress
        with Progress(shown, "writing") as progress, interrupt.finishing():
            progress.extend(sum(one.request.n_new for one in waiting), len(waiting), None)
            for batch, write in self.writer.batches(waiting, progress):
                if interrupt.wished():
                    raise KeyboardInterrupt
                if missing := [one for one in batch if not one.ended]:
                    write()
                    self._keep(missing)
                progress.advance(sum(one.request.n_new for one in batch))
        return texts

    def _restore(self, waiting: Sequence[Writing]) -> None:
        """Take from the journal what it has, which then is not written again."""
        found = self._engine.journaled.found_texts([one.request for one in waiting])
        for k, written in found.items():
            waiting[k].restore(written, self._decode)

    def _keep(self, finished: Sequence[Writing]) -> None:
        self._engine.journaled.keep_texts(
            (one.request, Written(np.array(one.written, np.int32), one.finish))
            for one in finished
            if one.finish is not None
        )

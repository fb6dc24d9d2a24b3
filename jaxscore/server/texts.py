"""Groups of texts, written by the generator in the worker's thread."""

from collections.abc import Callable, Sequence

from jaxscore.engine.generation.generator import Generator
from jaxscore.scorer import Scorer
from jaxscore.server.jobs import WritingJob, together_or_alone
from jaxscore.server.metrics import Metrics


class Texts:
    """Writes jobs side by side with one generator."""

    def __init__(self, scorer: Scorer, metrics: Metrics, between: Callable[[], None]) -> None:
        """`between` is called once for each block of steps, so that other work has its turn."""
        self._generator, self._metrics, self._between = Generator(scorer), metrics, between

    def write(self, texts: Sequence[tuple[WritingJob, int]]) -> None:
        """Write texts together; where that fails, each job's alone."""
        together_or_alone(texts, self._write)

    def _write(self, texts: Sequence[tuple[WritingJob, int]]) -> None:
        if any(place in job.told for job, place in texts):
            raise RuntimeError("a text of which a client has a part cannot be written again")
        looked_at: set[int] = set()  # texts that were looked at in this block of steps
        n_told = [0] * len(texts)  # ids of each text that its client was told of

        def watch(k: int, ids: list[int], ended: bool) -> bool:
            if not looked_at or k in looked_at:
                looked_at.clear()
                self._between()
            looked_at.add(k)
            job, place = texts[k]
            if not ended:
                job.tell(place, ids[n_told[k] :])
                n_told[k] = len(ids)
            return job.open

        requests = [job.requests[place] for job, place in texts]
        for k, text in self._generator.stream(requests, watch=watch):
            looked_at.clear()  # it came at the end of a block
            job, place = texts[k]
            self._metrics.prompts.inc()
            self._metrics.tokens_generated.inc(len(text.token_ids))
            job.put(place, text)

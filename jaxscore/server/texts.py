"""Groups of texts, written by the generator in the worker's thread."""

import traceback
from collections.abc import Sequence
from typing import Any

from jaxscore.generator import Generator
from jaxscore.requests import GenerationRequest
from jaxscore.scorer import Scorer
from jaxscore.server.jobs import WritingJob
from jaxscore.server.metrics import Metrics


class Texts:
    """Writes jobs side by side with one generator."""

    def __init__(self, scorer: Scorer, metrics: Metrics) -> None:
        self._generator, self._metrics = Generator(scorer), metrics

    def write(self, jobs: Sequence[WritingJob]) -> None:
        """Write all texts of the jobs; where that fails, each job's alone."""
        try:
            self._write(jobs)
        except Exception as problem:
            if len(jobs) == 1:
                traceback.print_exc()
                jobs[0].fail(problem)
                return
            for job in jobs:
                self.write([job])

    def _write(self, jobs: Sequence[WritingJob]) -> None:
        places = [(job, k) for job in jobs for k in range(len(job.requests))]
        requests: list[GenerationRequest] = [job.requests[k] for job, k in places]

        def watch(place: int, ids: Any, ended: bool) -> bool:
            job, own = places[place]
            if job.open and not ended and job.watch is not None:
                job.watch(own, [int(id) for id in ids])
            return job.open

        for place, text in self._generator.stream(requests, watch=watch):
            job, own = places[place]
            job.put(own, text)
            self._metrics.prompts.inc()
            self._metrics.tokens_generated.inc(len(text.token_ids))

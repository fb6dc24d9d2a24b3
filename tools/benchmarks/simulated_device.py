"""A device that computes nothing and answers after the time that a real one would take."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxscore.device.rows import Scores
from jaxscore.engine import dispatch
from jaxscore.plan.row_batches import RowBatch


class SimulatedDevice:
    """In the place of `engine.dispatch.Dispatch`: batches are put on JAX's device, and answered.

    Attributes:
        rate: tokens per second, padding left out; a batch is computed after the one before.
        busy: seconds in which something was computed.
    """

    rate: float
    busy = 0.0

    def __init__(self, variants: Sequence[Any], mesh: Any) -> None:
        self.variants, self.n_together = variants, None
        self.too_large: set[tuple[int, int]] = set()
        self._free_at = 0.0
        self._ends: deque[float] = deque()

    def prefix(self, variant: int, ids: np.ndarray, progress: Any) -> tuple[Any, ...]:
        self._compute(len(ids))
        return ()

    def send(
        self, variant: int, batches: Sequence[RowBatch], caches: Any, progress: Any, *top: int
    ) -> "dispatch.InFlight":
        # The other checkout of a comparison may have the other name, and the other arrays below.
        laid_out = getattr(dispatch, "stack_batches", None) or dispatch.side_by_side
        rows = laid_out(batches, None)
        sent = jax.device_put(rows)
        del sent
        self._ends.append(self._compute(sum(batch.n_tokens for batch in batches)))
        return dispatch.InFlight(variant, batches, caches, *top, None)

    def fetched(
        self, in_flight: "dispatch.InFlight", progress: Any
    ) -> Iterator[tuple[RowBatch, Scores]]:
        time.sleep(max(0.0, self._ends.popleft() - time.perf_counter()))
        [batch] = in_flight.batches
        old = getattr(batch, "target", None)
        answers = batch.scored.answer if old is None else old
        logprob: Any = np.full(answers.shape, -1.234567, np.float32)
        greedy: Any = np.zeros(answers.shape, bool)
        entropy: Any = np.full(batch.ids.size, 2.345678, np.float32)
        greedy_id: Any = np.zeros(batch.ids.size, np.int32)
        yield batch, Scores(logprob, greedy, entropy, entropy, greedy_id)

    def _compute(self, n_tokens: int) -> float:
        """When these are done."""
        now, seconds = time.perf_counter(), n_tokens / self.rate
        self._free_at = max(now, self._free_at) + seconds
        type(self).busy += seconds
        return self._free_at

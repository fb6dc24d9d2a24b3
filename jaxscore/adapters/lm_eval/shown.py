"""What a user sees of one call: jaxscore's own bar, and a line of what it took."""

import logging
import time

from jaxscore.scorer import Scorer

log = logging.getLogger("lm_eval.jaxscore")  # lm-evaluation-harness shows what is below its own


class Shown:
    """Around one call."""

    def __init__(self, scorer: Scorer, quiet: bool, what: str, n: int) -> None:
        """`n` of `what` are computed; `quiet` shows no bar."""
        self._scorer, self._quiet, self._what, self._n = scorer, quiet, what, n

    def __enter__(self) -> None:
        self._before = self._scorer.progress
        self._given, self._computed = self._counts()
        self._started = time.perf_counter()
        self._scorer.progress = not self._quiet

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self._scorer.progress = self._before
        given, computed = self._counts()
        given, computed = given - self._given, computed - self._computed
        if problem is None and computed:
            log.info(
                "%d %s in %.1f s: %d tokens given, %d computed, %.1f times fewer",
                self._n,
                self._what,
                time.perf_counter() - self._started,
                given,
                computed,
                given / computed,
            )

    def _counts(self) -> tuple[int, int]:
        counts = self._scorer.facts()["counts"]
        return counts["tokens_given"], counts["tokens_unique"]

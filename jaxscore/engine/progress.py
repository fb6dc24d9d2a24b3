"""Progress of a run: a bar on stderr, counters, and the hash of the plan of each output."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from jaxscore.plan.result_assembly import Window


class Progress:
    """Progress bar of tokens, with tokens per second and time left; silent if disabled."""

    def __init__(self, enabled: bool, label: str = "scoring") -> None:
        # A log file gets a line every ten seconds, a terminal ten redraws per second.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        self._tokens = self._requests = 0
        self._bar = tqdm(
            total=0,
            disable=not enabled,
            unit="tok",
            unit_scale=True,
            desc=label,
            mininterval=interval,
            file=sys.stderr,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def extend(self, tokens: int, requests: int, n_expected: int | None) -> None:
        """Add planned tokens and requests to the total.

        Requests that are not planned yet count with the average tokens of the planned ones.

        Args:
            n_expected: total number of requests, or None if unknown.
        """
        self._tokens += tokens
        self._requests += requests
        factor = max(1.0, (n_expected or 0) / self._requests) if self._requests else 1.0
        self._bar.total = round(self._tokens * factor)
        self._bar.refresh()

    def advance(self, tokens: int) -> None:
        """Count finished tokens."""
        self._bar.update(tokens)

    def write_line(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._bar.disable:
            tqdm.write(text, file=sys.stderr)

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Display an activity next to the bar while the block runs."""
        self._bar.set_postfix_str(activity)
        try:
            yield
        finally:
            self._bar.set_postfix_str("")


class RunStatistics:
    """Counters since the creation of the scorer, and a hash of the plan of the current output.

    Attributes:
        sequences: number of requested texts; the journal had `sequences_restored` of them.
        tokens_given: number of tokens of all texts, before sharing.
        tokens_unique: number of tokens after prefix sharing; `tokens_laid_out` also counts paths
            that rows repeat.
        tokens_scored: number of tokens with a requested probability.
        tokens_written: number of tokens that the model generated in this run, without journaled
            texts.
    """

    def __init__(self) -> None:
        self.sequences = self.sequences_restored = 0
        self.tokens_given = self.tokens_unique = self.tokens_laid_out = self.tokens_scored = 0
        self.tokens_written = 0
        self.begin_output()

    @property
    def plan_hash(self) -> str:
        """Hexadecimal hash of all batches planned for this output.

        It does not depend on the order of the requests within a window.
        """
        return self._digest.hexdigest()

    def note_plan(self, digest: bytes) -> None:
        """Add the digest of a plan to the hash."""
        self._digest.update(digest)

    def count_window(self, window: Window) -> None:
        """Count a planned window."""
        self.sequences += len(window.sequences)
        for forest_scores in window.forests:
            forest = forest_scores.forest
            self.tokens_given += forest.n_input_tokens
            self.tokens_unique += forest.n_nodes
            self.tokens_laid_out += forest_scores.n_tokens
            self.tokens_scored += len(forest.edge_of)
            self.note_plan(forest_scores.digest)

    def count_texts(self, n: int, n_restored: int) -> None:
        """Count `n` requested texts, of which `n_restored` were journaled."""
        self.sequences += n
        self.sequences_restored += n_restored

    def begin_output(self) -> None:
        """Start the plan hash and the counts of a new output, see `facts`."""
        self._digest, self._before = hashlib.sha256(), self._counts()

    def facts(self) -> dict[str, Any]:
        """Return the plan hash and the counts of this output, for JSON."""
        counts = {name: n - self._before[name] for name, n in self._counts().items()}
        return {"plan": self.plan_hash, "counts": counts}

    def _counts(self) -> dict[str, int]:
        return {
            "texts": self.sequences,
            "texts_from_journal": self.sequences_restored,
            "tokens_given": self.tokens_given,
            "tokens_unique": self.tokens_unique,
            "tokens_laid_out": self.tokens_laid_out,
            "tokens_scored": self.tokens_scored,
        }

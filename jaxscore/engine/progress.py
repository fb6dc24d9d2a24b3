"""A bar on stderr: tokens done, tokens per second, time left."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tqdm import tqdm

from jaxscore.plan.result_assembly import Window


class Progress:
    """Counts tokens that are laid out or written. Silent when not asked for."""

    def __init__(self, enabled: bool, what: str = "scoring") -> None:
        # A log file gets a line every ten seconds, a terminal ten redraws per second.
        interval = 0.1 if sys.stderr.isatty() else 10.0
        self._tokens = self._requests = 0
        self._bar = tqdm(
            total=0,
            disable=not enabled,
            unit="tok",
            unit_scale=True,
            desc=what,
            mininterval=interval,
            file=sys.stderr,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def extend(self, tokens: int, requests: int, n_expected: int | None) -> None:
        """Add so many tokens of so many requests to what is to be done, of `n_expected` in all.

        Requests that are not planned yet count with the tokens of those that are.
        """
        self._tokens += tokens
        self._requests += requests
        ahead = max(1.0, (n_expected or 0) / self._requests) if self._requests else 1.0
        self._bar.total = round(self._tokens * ahead)
        self._bar.refresh()

    def advance(self, tokens: int) -> None:
        self._bar.update(tokens)

    def tell(self, what: str) -> None:
        """A line for people, above the bar."""
        if not self._bar.disable:
            tqdm.write(what, file=sys.stderr)

    @contextlib.contextmanager
    def says(self, what: str) -> Iterator[None]:
        """Show what keeps the bar waiting."""
        self._bar.set_postfix_str(what)
        try:
            yield
        finally:
            self._bar.set_postfix_str("")


class RunStatistics:
    """Counters since the scorer was made, and a digest of what was planned for one output.

    Attributes:
        sequences: texts that were asked for; `sequences_restored` of them a journal had whole.
        sampled_with_blank: answers of a sample that were scored with a blank too, see
            `jaxscore.systems.answer_sample`; their texts are in the other counters as well.
        tokens_given: of all texts, shared or not.
        tokens_unique: after sharing; `tokens_laid_out` counts paths that rows repeat as well.
        tokens_scored: whose probability was asked for.
        tokens_written: by the model, in this run; a text that a journal had has none.
    """

    def __init__(self) -> None:
        self.sequences = self.sequences_restored = 0
        self.sampled_with_blank = 0
        self.tokens_given = self.tokens_unique = self.tokens_laid_out = self.tokens_scored = 0
        self.tokens_written = 0
        self.begin_output()

    @property
    def plan_hash(self) -> str:
        """Of all batches planned for this output, hexadecimal. The order of the requests within
        a window has no effect."""
        return self._digest.hexdigest()

    def note_plan(self, digest: bytes) -> None:
        """Something was planned that has this digest."""
        self._digest.update(digest)

    def count_window(self, window: Window) -> None:
        """A window was planned."""
        self.sequences += len(window.sequences)
        for work in window.forests:
            self.tokens_given += work.forest.n_input_tokens
            self.tokens_unique += work.forest.n_nodes
            self.tokens_laid_out += work.n_tokens
            self.tokens_scored += len(work.forest.edge_of)
            self.note_plan(work.digest)

    def count_texts(self, n: int, n_restored: int) -> None:
        """Texts were asked for, `n_restored` of which a journal had."""
        self.sequences += n
        self.sequences_restored += n_restored

    def begin_output(self) -> None:
        """What is planned and counted from here on belongs to another output, see `facts`."""
        self._digest, self._before = hashlib.sha256(), self._counts()

    def facts(self) -> dict[str, Any]:
        """The plan and the counts of this output, as JSON has them."""
        counts = {name: n - self._before[name] for name, n in self._counts().items()}
        return {"plan": self.plan_hash, "counts": counts}

    def _counts(self) -> dict[str, int]:
        return {
            "texts": self.sequences,
            "texts_from_journal": self.sequences_restored,
            "answers_sampled_with_blank": self.sampled_with_blank,
            "tokens_given": self.tokens_given,
            "tokens_unique": self.tokens_unique,
            "tokens_laid_out": self.tokens_laid_out,
            "tokens_scored": self.tokens_scored,
        }

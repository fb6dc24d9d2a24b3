"""What a run has counted and planned, and an output's part of it."""

import hashlib
from typing import Any

from jaxscore.plan.result_assembly import Window


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
        for work in window.works:
            self.tokens_given += work.forest.n_given
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

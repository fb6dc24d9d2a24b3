"""Whole texts in disjoint windows, as lm-evaluation-harness cuts them, and their answers."""

from collections.abc import Sequence

import numpy as np

from jaxscore.adapters.harness.encoding import Asked
from jaxscore.adapters.harness.scoring import Answer
from jaxscore.plan.requests import rolling_windows


class Rolling:
    """The windows of some texts, and their answers until a text has all of them.

    Attributes:
        asked: all windows; a text without tokens has none.
        owner: of each window the place of its text.
    """

    def __init__(self, texts: Sequence[list[int]], prefix_token: int, max_length: int) -> None:
        """Args:
        texts: token ids.
        prefix_token: stands before each text.
        max_length: tokens that the model reads at most.
        """
        self.asked: list[Asked] = []
        self.owner: list[int] = []
        self._nth: list[int] = []  # of each window its place among those of its text
        self._answers: list[list[Answer | None]] = []
        for place, ids in enumerate(texts):
            whole = np.array([prefix_token, *ids], np.int32)
            own = rolling_windows(whole, 1, max_length, max_length)
            self.asked += [Asked(one.ids[: one.start], one.ids[one.start :]) for one in own]
            self.owner += [place] * len(own)
            self._nth += range(len(own))
            self._answers.append([None] * len(own))
        self._missing = [len(one) for one in self._answers]

    def take(self, window: int, answer: Answer) -> list[Answer] | None:
        """Put an answer at its window.

        Returns:
            All answers of its text, in order, when this was the last one; else None.
        """
        place = self.owner[window]
        self._answers[place][self._nth[window]] = answer
        self._missing[place] -= 1
        if self._missing[place]:
            return None
        found, self._answers[place] = self._answers[place], []
        return [one for one in found if one is not None]

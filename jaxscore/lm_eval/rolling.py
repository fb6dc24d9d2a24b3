"""Whole texts in disjoint windows, as lm-evaluation-harness cuts them."""

from collections.abc import Sequence

import numpy as np
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from jaxscore.harness.encoding import Asked
from jaxscore.harness.scoring import Answer

CONTEXT = 1  # tokens that a window has before those it scores


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
            windows = get_rolling_token_windows(ids, prefix_token, max_length, CONTEXT)
            pairs = [make_disjoint_window(window) for window in windows]
            self.asked += [Asked(np.array(a, np.int32), np.array(b, np.int32)) for a, b in pairs]
            self.owner += [place] * len(pairs)
            self._nth += range(len(pairs))
            self._answers.append([None] * len(pairs))
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

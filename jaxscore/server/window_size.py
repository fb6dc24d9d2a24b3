"""How many tokens a window may have so that it takes a tenth of a second."""

import statistics
from collections import deque

TARGET = 0.1  # seconds of a window; a request that comes meanwhile waits for its end
REMEMBERED = 5  # windows; their median is not moved by one that something else delayed
# A window extends until a shared prefix is at most 1/REPEATED of it.
REPEATED = 8
# But by at most so many times its tokens beyond the prefix. A smaller number would let others wait
# less, and compute a long prefix more often: at 8, one of 0.8 s is half of each window.
LONGEST = 8


class WindowSize:
    """The limit of the next window, learned from the time that past windows took.

    Attributes:
        n_tokens: most distinct tokens of the next window; the least size until a window was timed.
    """

    def __init__(self, least: int, most: int) -> None:
        """Args:
        least, most: distinct tokens between which the limit stays, however long they take.
        """
        self._least, self._most = min(least, most), most
        self._seconds_per_token: deque[float] = deque(maxlen=REMEMBERED)
        self.n_tokens = self._least

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from a window. Not for one that compiled a program, which tells nothing.

        A window that is small because little waited tells nothing of large ones either: most of
        its time does not grow with its tokens.
        """
        if not n_tokens or (2 * n_tokens < self.n_tokens and seconds < TARGET):
            return
        self._seconds_per_token.append(seconds / max(n_tokens, self._least))
        fits = TARGET / statistics.median(self._seconds_per_token)
        self.n_tokens = int(min(max(fits, self._least), self._most))

    def limit(self, n_shared: int) -> int:
        """Most distinct tokens of a window that a text with such a shared prefix may join.

        The next window would compute that prefix again, so a window extends until the prefix is a
        small part of it, or until it takes `LONGEST * TARGET` seconds beyond the prefix.
        """
        extended = min(REPEATED * n_shared, n_shared + LONGEST * self.n_tokens)
        return min(max(self.n_tokens, extended), self._most)

    def most_tokens(self, n_shared: int) -> int:
        """Most distinct tokens of any window, however long it takes."""
        return self._most

"""How many distinct tokens a growing set of texts has, without building its trie."""

import bisect
from collections.abc import Callable

import numpy as np

from jaxscore.server.jobs import key


class TrieSize:
    """Number of nodes of the trie of some id sequences.

    A sequence adds what it does not share with its neighbours in the order of the ids: no other
    one shares more with it.
    """

    def __init__(self, shares: bool = True) -> None:
        """`shares` False: no node is shared, so all tokens are counted."""
        self.n_tokens, self._shares = 0, shares
        self._keys: list[bytes] = []

    def add(self, ids: np.ndarray, limit: Callable[[int], int]) -> int | None:
        """Add a sequence, unless the trie would then be too large.

        Args:
            limit: most nodes of a trie in which the sequence shares so many of its own.

        Returns:
            The nodes that it has added; None if they would be too many.
        """
        own = key(ids)
        at = bisect.bisect_left(self._keys, own)
        beside = self._keys[max(0, at - 1) : at + 1] if self._shares else ()
        n_shared = max((_shared(own, other) for other in beside), default=0)
        n = len(ids) - n_shared
        if self.n_tokens + n > limit(n_shared):
            return None
        if n:
            self._keys.insert(at, own)
        self.n_tokens += n
        return n


def _shared(one: bytes, other: bytes) -> int:
    """How many ids two keys begin with together."""
    n = min(len(one), len(other))
    a, b = np.frombuffer(one[:n], ">u4"), np.frombuffer(other[:n], ">u4")
    differ = a != b
    return int(differ.argmax()) if differ.any() else n // 4

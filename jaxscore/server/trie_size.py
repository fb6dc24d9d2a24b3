"""How many distinct tokens a growing set of texts has, without building its trie."""

import bisect

import numpy as np

from jaxscore.server.jobs import key


class TrieSize:
    """Number of nodes of the trie of some id sequences.

    A sequence adds what it does not share with its neighbours in the order of the ids: no other
    one shares more with it.
    """

    def __init__(self) -> None:
        self.n_tokens = 0
        self._keys: list[bytes] = []

    def growth(self, ids: np.ndarray) -> int:
        """Nodes that a sequence would add."""
        own = key(ids)
        at = bisect.bisect_left(self._keys, own)
        beside = self._keys[max(0, at - 1) : at + 1]
        return len(ids) - max((_shared(own, other) for other in beside), default=0)

    def add(self, ids: np.ndarray) -> int:
        """Add a sequence.

        Returns:
            The nodes that it has added.
        """
        n = self.growth(ids)
        if n:
            bisect.insort(self._keys, key(ids))
        self.n_tokens += n
        return n


def _shared(one: bytes, other: bytes) -> int:
    """How many ids two keys begin with together."""
    n = min(len(one), len(other))
    a, b = np.frombuffer(one[:n], ">u4"), np.frombuffer(other[:n], ">u4")
    differ = a != b
    return int(differ.argmax()) if differ.any() else n // 4

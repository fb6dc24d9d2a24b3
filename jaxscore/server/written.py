"""Texts as they are written: where a stop string ends them, and parts that add up to them."""

import codecs
from collections.abc import Sequence

from jaxscore.text.token_bytes import TokenBytes


class GrowingText:
    """Text of tokens that come one after the other, in parts that never have to be taken back.

    A character whose bytes are not all there, and what may become a stop string, wait.

    Attributes:
        n_ids: tokens so far.
    """

    def __init__(self, token_bytes: TokenBytes, stop: Sequence[str]) -> None:
        self._bytes, self._stop = token_bytes, tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._n_given = "", 0
        self.n_ids = 0

    def part(self, ids: Sequence[int], *, ended: bool) -> str:
        """What can be given since the last call.

        Args:
            ids: the tokens after those of the last call, up to the first one by which some stop
                string is complete.
            ended: no more will come.
        """
        self.n_ids += len(ids)
        raw = b"".join(self._bytes.of(id) for id in ids if not self._bytes.is_special(id))
        self._text += self._decoder.decode(raw, ended)
        end = stop_at(self._text, self._stop)
        if end is None:
            end = len(self._text) - (0 if ended else held_back(self._text, self._stop))
        out = self._text[self._n_given : end]
        self._n_given = max(self._n_given, end)
        return out


def stop_at(text: str, stop: Sequence[str]) -> int | None:
    """Where the first stop string begins; None where there is none."""
    return min((at for one in stop if (at := text.find(one)) >= 0), default=None)


def held_back(text: str, stop: Sequence[str]) -> int:
    """Characters at the end of a text that may be the beginning of a stop string."""
    longest = max(map(len, stop), default=0)
    for n in range(min(longest - 1, len(text)), 0, -1):
        if any(one.startswith(text[-n:]) for one in stop):
            return n
    return 0

"""Requests for text in token ids, and what is written for them."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxscore.device import generate

NOT_FINITE = "the model gave logits that are not finite; check the weights, or use float32"


class TokenRequest(NamedTuple):
    """All that decides what is written after a prompt, but for the model.

    Attributes:
        ids: int32 [n], the prompt.
        n_new: at most so many tokens follow.
        temperature, top_p, stop: as of `GenerationRequest`.
        seed: of the draws, from 0 to 2^32 - 1.
        eos_ids: tokens that end the text.
    """

    ids: np.ndarray
    n_new: int
    temperature: float
    top_p: float
    seed: int
    stop: tuple[str, ...]
    eos_ids: tuple[int, ...]


class Written(NamedTuple):
    """A finished text: int32 ids, the EOS left out, and "eos", "stop" or "length"."""

    ids: np.ndarray
    finish: str


@dataclasses.dataclass
class Writing:
    """A text on its way: what was asked for, and what there is of it so far."""

    request: TokenRequest
    written: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish: str | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None

    def take(self, ids: np.ndarray, decode: Callable[[list[int]], str]) -> None:
        """Add tokens, and see whether the text ends with them."""
        for id in ids.tolist():
            if id == generate.BROKEN:
                self.error = NOT_FINITE
                return
            if id in self.request.eos_ids:
                self.finish = "eos"
                break
            self.written.append(id)
            if len(self.written) == self.request.n_new:
                self.finish = "length"
                break
        self.text = decode(self.written)
        at = self._stop(self.text)
        if at is not None:
            self.text, self.finish = self.text[:at], "stop"

    def restore(self, kept: Written, decode: Callable[[list[int]], str]) -> None:
        """End as an earlier run did, unless the tokenizer has since come to read it otherwise."""
        ids = kept.ids.tolist()
        text = decode(ids)
        at = self._stop(text)
        if (at is not None) == (kept.finish == "stop"):
            self.written, self.text, self.finish = ids, text[:at], kept.finish

    def _stop(self, text: str) -> int | None:
        """Where the first stop string begins."""
        found = [at for stop in self.request.stop if (at := text.find(stop)) >= 0]
        return min(found, default=None)

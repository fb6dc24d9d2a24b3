"""A text while it is written: its tokens so far, and whether it has ended."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxscore.device import generate
from jaxscore.plan.token_requests import TokenRequest, Written

NOT_FINITE = "the model gave logits that are not finite; check the weights, or use float32"


@dataclasses.dataclass
class Writing:
    """A text that is being written: what was asked for, and what is written so far."""

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

"""A text while it is written: its tokens so far, and whether it has ended."""

import dataclasses
from collections.abc import Callable

import numpy as np

from jaxscore.device import generate
from jaxscore.plan.requests import TokenRequest, Written
from jaxscore.text.bounded_tokenizer import TextError
from jaxscore.text.decoder import TextDecoder
from jaxscore.text.stop_search import StopSearch

NOT_FINITE = "the model gave logits that are not finite; check the weights, or use float32"
ABANDONED = "abandoned"


@dataclasses.dataclass
class Writing:
    """A text that is being written: what was asked for, and what is written so far.

    Attributes:
        text: empty until the text has ended.
        finish: "eos", "stop" or "length"; None until then.
        eos_id: what ended it where `finish` is "eos".
        watch: is told the ids so far and whether they are all, and says whether to go on.
    """

    request: TokenRequest
    written: list[int] = dataclasses.field(default_factory=list)
    text: str = ""
    finish: str | None = None
    eos_id: int | None = None
    error: str | None = None
    watch: Callable[[list[int], bool], bool] | None = None
    _search: StopSearch | None = None

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None

    def take(self, ids: np.ndarray, decoder: TextDecoder) -> None:
        """Add tokens up to the one that ends the text; one that cannot be decoded has an error."""
        try:
            self._take(ids, decoder)
        except TextError as problem:
            self.error = str(problem)

    def _take(self, ids: np.ndarray, decoder: TextDecoder) -> None:
        search = self._search = self._search or StopSearch(self.request.stop, decoder.shown)
        for id in ids.tolist():
            if id == generate.BROKEN:
                self.error = NOT_FINITE
                return
            if id in self.request.eos_ids:
                self.finish, self.eos_id = "eos", id
                break
            self.written.append(id)
            if search.ends_with(id):
                self.finish = "stop"
                break
            if len(self.written) == self.request.n_new:
                self.finish = "length"
                break
        self._end(decoder)

    def look(self) -> None:
        """Let the one who watches see what is written; a text that nobody wants has ended."""
        wanted = self.watch is None or self.watch(self.written, self.ended)
        if not wanted and not self.ended:
            self.error = ABANDONED

    def restore(self, kept: Written, decoder: TextDecoder) -> None:
        """End as an earlier run did, unless the tokenizer has since come to read it otherwise."""
        ids = kept.ids.tolist()
        try:
            before, whole = (self._holds_stop(decoder.shown(some)) for some in (ids[:-1], ids))
            if not before and whole == (kept.finish == "stop"):
                self.written, self.finish, self.eos_id = ids, kept.finish, kept.eos_id
                self._end(decoder)
        except TextError as problem:
            self.error = str(problem)

    def _holds_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.request.stop)

    def _end(self, decoder: TextDecoder) -> None:
        if self.finish == "stop":
            self.text = decoder.text_before(self.written, self.request.stop)
        elif self.finish is not None:
            self.text = decoder.text(self.written)

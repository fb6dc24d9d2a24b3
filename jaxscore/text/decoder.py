"""Token ids to text."""

from collections.abc import Sequence
from typing import Any

from jaxscore.text.bounded_tokenizer import decode

PIECE = "\ufffd"  # what stands for bytes that are no whole character


class TextDecoder:
    """What a tokenizer makes of token ids, as its own `decode` does.

    Each method raises a `TextError` if the tokenizer panics.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        return decode(self._tokenizer, ids, skip_special_tokens=True)

    def shown(self, ids: Sequence[int]) -> str:
        """With special tokens by name."""
        return decode(self._tokenizer, ids, skip_special_tokens=False)

    def text_before(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """The text up to where a stop string begins first, special tokens left out.

        Where none of `stop` is in `shown(ids)` it is all of the text.
        """
        text, shown = self.text(ids), self.shown(ids)
        at = min((place for one in stop if (place := shown.find(one)) >= 0), default=len(shown))
        if text == shown:
            return text[:at]
        # Tokens wholly before the stop string, up to one that ends with a whole character.
        n, head = len(ids), shown
        while n and (len(head) > at or head.endswith(PIECE)):
            n -= 1
            head = self.shown(ids[:n])
        begins_in_special = n < len(ids) and not self.text(ids[n : n + 1])
        return self.text(ids[:n]) + ("" if begins_in_special else shown[len(head) : at])

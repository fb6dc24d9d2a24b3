"""Token ids to text, and the token with which a stop string ends a text."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxscore.text.bounded_tokenizer import decode_ids

PIECE = "\ufffd"  # what stands for bytes that are no whole character


class TextDecoder:
    """What a tokenizer makes of token ids, as its own `decode` does.

    Each method raises a `TextError` if the tokenizer panics.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        return decode_ids(self._tokenizer, ids, skip_special_tokens=True)

    def shown(self, ids: Sequence[int]) -> str:
        """With special tokens by name."""
        return decode_ids(self._tokenizer, ids, skip_special_tokens=False)

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


# Characters. At either end of a decoded piece so many may differ from those of the whole text: a
# tokenizer drops a blank before a text, and cleans up blanks before punctuation.
SLACK = 16


class StopSearch:
    """Finds the first token by which some stop string is complete in the decoded text.

    The whole text is not decoded again with each token, which would take quadratic time, but a
    window of its last tokens. The window begins where the text before it ended with a whole
    character, so that no character is cut, and holds so much that what its own beginning changes
    lies outside of what is searched.
    """

    def __init__(self, stop: Sequence[str], shown: Callable[[Sequence[int]], str]) -> None:
        """
        Args:
            stop: strings, none of them empty or with U+FFFD.
            shown: ids to text, special tokens by name.
        """
        self._stop, self._shown = tuple(stop), shown
        self._back = max(map(len, self._stop), default=0) + SLACK
        self._window: list[int] = []
        # After which tokens of the window the text ended with a whole character, and its length.
        self._whole: list[tuple[int, int]] = []

    def ends_with(self, id: int) -> bool:
        """Whether the text ends with this token, which is the next one."""
        if not self._stop:
            return False
        self._window.append(id)
        text = self._shown(self._window)
        # What was there at the last whole character is searched already.
        start = max(0, (self._whole[-1][1] if self._whole else 0) - self._back)
        if any(text.find(stop, start) >= 0 for stop in self._stop):
            return True
        if not text.endswith(PIECE):
            self._whole.append((len(self._window), len(text)))
            self._move(len(text))
        return False

    def _move(self, length: int) -> None:
        """Drop tokens from the window's beginning where half of it is enough."""
        enough = self._back + SLACK
        if length < 2 * enough:
            return
        before = [
            k for k, (_, characters) in enumerate(self._whole) if length - characters >= enough
        ]
        if not before:
            return
        n_tokens, n_characters = self._whole[before[-1]]
        self._window = self._window[n_tokens:]
        later = self._whole[before[-1] + 1 :]
        self._whole = [(n - n_tokens, characters - n_characters) for n, characters in later]

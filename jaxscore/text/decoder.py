"""Token ids to text, and the token with which a stop string ends a text."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxscore.text.bounded_tokenizer import decode_ids

PIECE = "\ufffd"  # decoded from an incomplete character
# Most characters at either end of a decoded piece that may differ from those of the whole text: a
# tokenizer drops a blank before a text and cleans up blanks before punctuation.
SLACK = 16


class TextDecoder:
    """Decodes token ids as the tokenizer's own `decode` does.

    Each method raises a `TextError` if the tokenizer panics.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return decode_ids(self._tokenizer, ids, skip_special_tokens=True)

    def shown(self, ids: Sequence[int]) -> str:
        """Text with special tokens by name."""
        return decode_ids(self._tokenizer, ids, skip_special_tokens=False)

    def text_before(self, ids: Sequence[int], stop: Sequence[str]) -> str:
        """Text without special tokens, up to the earliest stop string, if any.

        Stop strings are searched in `shown(ids)`, since one may be the name of a special token.
        """
        text, shown = self.text(ids), self.shown(ids)
        at = min((k for text in stop if (k := shown.find(text)) >= 0), default=len(shown))
        if text == shown:
            return text[:at]
        # Tokens before the stop string, up to one that ends with a complete character.
        n, head = len(ids), shown
        while n and (len(head) > at or head.endswith(PIECE)):
            n -= 1
            head = self.shown(ids[:n])
        begins_in_special = n < len(ids) and not self.text(ids[n : n + 1])
        return self.text(ids[:n]) + ("" if begins_in_special else shown[len(head) : at])


class StopSearch:
    """Finds the first token that completes a stop string in the decoded text.

    Decodes a window of the last tokens instead of the whole text, which would take quadratic time.
    The window starts after a complete character, and is so long that differences at its start lie
    outside the searched part.
    """

    def __init__(self, stop: Sequence[str], shown: Callable[[Sequence[int]], str]) -> None:
        """
        Args:
            stop: strings, none of them empty or with U+FFFD.
            shown: decodes ids, special tokens by name.
        """
        self._stop, self._shown = tuple(stop), shown
        self._back = max(map(len, self._stop), default=0) + SLACK
        self._window: list[int] = []
        # (tokens, characters) of the window at each token that ended with a complete character.
        self._whole: list[tuple[int, int]] = []

    def ends_with(self, id: int) -> bool:
        """Whether the next token of the text completes a stop string."""
        if not self._stop:
            return False
        self._window.append(id)
        text = self._shown(self._window)
        # The text up to the last complete character is searched already.
        start = max(0, (self._whole[-1][1] if self._whole else 0) - self._back)
        if any(text.find(stop, start) >= 0 for stop in self._stop):
            return True
        if not text.endswith(PIECE):
            self._whole.append((len(self._window), len(text)))
            self._move(len(text))
        return False

    def _move(self, length: int) -> None:
        """Drop the window's first tokens once half of it is enough."""
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

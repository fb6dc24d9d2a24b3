"""Token ids of generated texts in records: `sample` and `usc-generate` write them to be scored.

    "model_input": "Who ran?", "prompt_token_ids": [12, 7, 40]
    "output": ["Ann ran", ""], "token_ids": [[9, 31], []]

A text that is encoded again may get other ids than the model drew, the more so the higher the
temperature. So readers of such a record use its ids if they decode to its text.
"""

from collections.abc import Mapping
from typing import Any

from jaxscore.errors import is_valid_unicode
from jaxscore.lm import LocalLM
from jaxscore.text.bounded_tokenizer import TextError
from jaxscore.text.decoder import PIECE, TokenBytes
from jaxscore.types.results import Generated

PROMPT, OUTPUTS = "model_input", "output"
# vLLM's names of the same ids.
PROMPT_TOKEN_IDS, TOKEN_IDS = ID_FIELDS = ("prompt_token_ids", "token_ids")

Ids = tuple[int, ...]


def ids_of_text(decoder: TokenBytes, generated: Generated) -> list[int]:
    """Return the drawn ids up to the last one with a character of the text, without EOS.

    Tokens of a stop string are left out, since the text ends before it. A token that begins in
    the text and ends in the stop string is included.
    """
    ids: list[int] = generated.token_ids.tolist()
    if generated.finish == "stop":
        while ids and decoder.join(ids[:-1]).startswith(generated.text):
            ids.pop()
    return ids


def without_ids(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an item without token ids, since its texts are replaced."""
    return {name: value for name, value in fields.items() if name not in ID_FIELDS}


def with_chosen_ids(fields: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the fields of an item with only the ids of the retained output."""
    out, ids = dict(fields), fields.get(TOKEN_IDS)
    if isinstance(ids, list) and index < len(ids):
        out[TOKEN_IDS] = [ids[index]]
    return out


class DrawnTokens:
    """Checks the ids of records, and the texts that come without ids.

    Example:
        >>> drawn = DrawnTokens(scorer)
        >>> context = drawn.context_ids(item)
        >>> Request("0", text, output, drawn.request_ids(item, 0, context))
    """

    def __init__(self, lm: LocalLM) -> None:
        self._encoder, self._decoder = lm.encoder, TokenBytes(lm.encoder.tokenizer)
        assert lm.capabilities.vocab_size is not None  # a local model knows both
        assert lm.capabilities.max_positions is not None
        self._vocab_size = lm.capabilities.vocab_size
        self._max_positions = lm.capabilities.max_positions

    def context_ids(self, item: Mapping[str, Any]) -> Ids | None:
        """Return the ids that the item's outputs were generated from.

        Without `prompt_token_ids` they are those of `model_input`, which has its special tokens.

        Returns:
            The ids, or None if this tokenizer encodes `model_input`, with or without a leading
            BOS, to others.
        """
        if not is_valid_unicode(item[PROMPT]):
            return None  # the request fails with the reason, here and below

        def encoded(*, special_tokens: bool) -> Ids:
            [ids] = self._encoder.prompt_ids([item[PROMPT]], special_tokens=special_tokens)
            return tuple(ids.tolist())

        try:
            if item.get(PROMPT_TOKEN_IDS) is None:
                return encoded(special_tokens=False)
            drawn_from = self._checked(item[PROMPT_TOKEN_IDS])
            is_same = any(encoded(special_tokens=flag) == drawn_from for flag in (False, True))
        except TextError:
            return None
        return drawn_from if is_same else None

    def request_ids(
        self, item: Mapping[str, Any], output: int, context: Ids | None
    ) -> tuple[Ids, Ids] | None:
        """Return the ids of the context and of an output, or None if the output's do not fit.

        Args:
            output: index of the output.
            context: see `context_ids`.
        """
        ids = self._checked(ids_of(item, output))
        if context is None or ids is None or self._is_padded(ids):
            return None
        text, decoded = item[OUTPUTS][output], self._decoder.join(ids)
        if text not in (decoded, decoded.strip()):  # usc-generate writes the second
            rest = decoded[len(text) :]
            is_cut = any(rest.startswith(s) or s.startswith(rest) for s in _stop_strings(item))
            if not (decoded.startswith(text) and is_cut):
                return None
        return context, ids

    def differ(self, context: str, text: str, ids: list[int], limit: int | None) -> bool:
        """Return True if the model certainly drew other ids than a text is encoded to.

        Args:
            context: the text that the model read.
            ids: the ids of the text encoded again.
            limit: see `length_limit`.
        """
        # U+FFFD stands for bytes without a character, and is encoded as a character.
        if PIECE in text or text not in (self._decoder.join(ids), self._decoder.join_all(ids)):
            return True
        if limit is None:
            return False
        # A text may also be cut at the model's last position. No context has more tokens than
        # bytes and special tokens.
        n_longest = len(ids) + len(context.encode()) + len(self._encoder.prefix)
        return len(ids) > limit or (len(ids) < limit and n_longest < self._max_positions)

    def _is_padded(self, ids: Ids) -> bool:
        """Return True if only special tokens come after an EOS, as in rows of `generate`'s output.

        They lack text and were not drawn by a model.
        """
        eos = self._encoder.tokenizer.eos_token_id
        after = ids[ids.index(eos) + 1 :] if eos in ids else ()
        return bool(after) and all(map(self._decoder.is_special, after))

    def _checked(self, ids: Any) -> Ids | None:
        """Return ids of a record if they are in the vocabulary."""
        if not isinstance(ids, list):
            return None
        are_known = all(type(id) is int and 0 <= id < self._vocab_size for id in ids)
        return tuple(ids) if are_known else None


def ids_of(item: Mapping[str, Any], output: int) -> Any:
    """Return an item's unchecked ids of an output, or None if it has none."""
    ids = item.get(TOKEN_IDS)
    return ids[output] if isinstance(ids, list) and output < len(ids) else None


def length_limit(item: Mapping[str, Any], output: int) -> int | None:
    """Return the number of tokens at which an output was cut, or None if unknown."""
    finish, limit = item.get("finish"), _configs(item).get("max_tokens")
    is_cut = isinstance(finish, list) and finish[output : output + 1] == ["length"]
    return limit if is_cut and type(limit) is int else None


def _configs(item: Mapping[str, Any]) -> Mapping[str, Any]:
    configs = item.get("configs")
    return configs if isinstance(configs, dict) else {}


def _stop_strings(item: Mapping[str, Any]) -> list[str]:
    stop = _configs(item).get("stop")
    return [text for text in stop if isinstance(text, str)] if isinstance(stop, list) else []

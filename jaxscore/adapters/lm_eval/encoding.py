"""Texts to token ids, by the rules of lm-evaluation-harness' `hf` model (0.4.13).

    pair       blanks at the context's end go to the continuation; ids of the whole text after as
               many as the context alone has are the continuation, after the context's own ids
    no context the continuation without special tokens, after the prefix token
    rolling    the whole text, special tokens included, in disjoint windows after the prefix token
    prompt     the whole text, cut at the left

`add_bos_token` decides about special tokens where it is given, the tokenizer by itself where not;
a text that begins with its BOS gets no second one.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxscore.adapters.scoring import Answer, Asked
from jaxscore.errors import InputError
from jaxscore.io.printable import is_valid_unicode
from jaxscore.plan.requests import rolling_windows
from jaxscore.text import checkpoint_process
from jaxscore.text.bounded_tokenizer import BoundedTokenizer, TextError, decode, encode_each
from jaxscore.text.checkpoint_process import TemplateError
from jaxscore.text.tokenizer import own_backend

CHUNK, CHUNK_CHARACTERS = 256, 1 << 20  # texts that are encoded together
SHOWN = 60  # characters of a text in a message
Texts = TypeVar("Texts", bound=tuple[str, ...])


class Encoder:
    """Encodes with one tokenizer."""

    def __init__(
        self, tokenizer: Any, add_bos_token: bool | None, prefix_token_id: int | None
    ) -> None:
        """Args:
        tokenizer: a fast one.
        add_bos_token: None leaves it to the tokenizer.
        prefix_token_id: None where the tokenizer has neither BOS nor EOS.
        """
        self.tokenizer, self.prefix_token_id = tokenizer, prefix_token_id
        self._bounded = BoundedTokenizer(own_backend(tokenizer))
        self._special = True if add_bos_token is None else add_bos_token
        self._prefix = None if prefix_token_id is None else decode(tokenizer, prefix_token_id)

    def encode(self, texts: Sequence[str], special: bool | None = None) -> list[list[int]]:
        """Ids of each text.

        Args:
            special: whether special tokens are added; None is by the rules above, where the BOS
                is the prefix token.
        """
        return self._encode(texts, special, self._prefix)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts that are continued: here the tokenizer's own BOS counts."""
        return self._encode(texts, None, self.tokenizer.bos_token)

    def pairs(self, pairs: Sequence[tuple[str, str]], named: Callable[[int], str]) -> list[Asked]:
        """Ids of each context and continuation; equal contexts share one array.

        Args:
            named: a request by its place, for messages.

        Raises:
            InputError: a continuation without tokens after an empty context, or a text that is
                none.
        """
        check((context + continuation for context, continuation in pairs), named)
        out: list[Asked] = []
        contexts: dict[str, np.ndarray] = {}
        for first, some in _chunks(pairs):
            moved = [_moved(*pair) for pair in some]
            new = [one for one in dict.fromkeys(c for c, _ in moved) if one not in contexts]
            for context, own in zip(new, self.encode(new), strict=True):
                contexts[context] = np.array(own, np.int32)
            wholes = self.encode([a + b for a, b in moved])
            bare = [k for k, (context, _) in enumerate(some) if context == ""]
            alone = dict(zip(bare, self.encode([some[k][1] for k in bare], False), strict=True))
            for k, (context, _) in enumerate(moved):
                if k in alone:
                    out.append(self._without_context(alone[k], named(first + k)))
                    continue
                ids = contexts[context]
                out.append(Asked(ids, np.array(wholes[k][len(ids) :], np.int32)))
        return out

    def _without_context(self, ids: list[int], name: str) -> Asked:
        if not ids:
            raise InputError(f"{name}: neither its context nor its continuation has a token")
        if self.prefix_token_id is None:
            raise InputError(
                f"{name}: it has no context, and the tokenizer has neither BOS nor EOS to put "
                "before it; give prefix_token_id"
            )
        if ids[0] == self.prefix_token_id:
            return Asked(np.array(ids[:1], np.int32), np.array(ids[1:], np.int32))
        return Asked(np.array([self.prefix_token_id], np.int32), np.array(ids, np.int32))

    def _encode(
        self, texts: Sequence[str], special: bool | None, bos: str | None
    ) -> list[list[int]]:
        def adds(text: str) -> bool:
            if special is not None:
                return special
            return self._special and not (bos is not None and text.startswith(bos))

        out: list[list[int]] = [[]] * len(texts)
        for add in (False, True):
            places = [k for k, text in enumerate(texts) if adds(text) is add]
            for first, some in _chunks([(texts[k],) for k in places]):
                for k, ids in enumerate(self._ids([text for (text,) in some], add)):
                    out[places[first + k]] = ids
        return out

    def _ids(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        encode = functools.partial(self._bounded.ids, special_tokens=special)
        out = []
        for text, ids in zip(texts, encode_each(encode, texts), strict=True):
            if isinstance(ids, TextError):
                raise TextError(f"the text that begins {text[:SHOWN]!r}: {ids}")
            out.append(ids if isinstance(ids, list) else ids.tolist())
        return out


def check(texts: Iterable[str], named: Callable[[int], str]) -> None:
    """See that a tokenizer can read some texts.

    Args:
        named: a request by its place, for messages.

    Raises:
        InputError: a text with half a surrogate pair.
    """
    for place, text in enumerate(texts):
        if not is_valid_unicode(text):
            raise InputError(f"{named(place)}: half a surrogate pair is no character")


def _moved(context: str, continuation: str) -> tuple[str, str]:
    """The same text, blanks at the context's end in the continuation."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def _chunks(texts: Sequence[Texts]) -> Iterator[tuple[int, Sequence[Texts]]]:
    """Neighbours that are encoded together, and the place of the first one."""
    first = n = 0
    for k, some in enumerate(texts):
        if k > first and (k - first == CHUNK or n >= CHUNK_CHARACTERS):
            yield first, texts[first:k]
            first, n = k, 0
        n += sum(map(len, some))
    if first < len(texts):
        yield first, texts[first:]


log = logging.getLogger("lm_eval.jaxscore")  # lm-evaluation-harness shows what is below its own

Message = Mapping[str, str]


class ChatTemplate:
    """Renders with one tokenizer's template.

    Args:
        more: arguments of the template itself.
    """

    def __init__(self, tokenizer: Any, more: Mapping[str, Any]) -> None:
        self._tokenizer, self._more = tokenizer, more
        self._told = False

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The text; without the system messages where the template refuses them.

        Args:
            add_generation_prompt: whether an answer begins at the end; else the last message,
                which is the answer's beginning, goes on.

        Raises:
            InputError: the tokenizer has no template, or it refuses the messages.
        """
        if not self._tokenizer.chat_template:
            raise InputError(
                "the tokenizer has no chat template; leave out --apply_chat_template, or give a "
                "tokenizer that has one: tokenizer=NAME in model_args"
            )
        try:
            return self._rendered(messages, add_generation_prompt)
        except TemplateError as problem:
            others = [one for one in messages if one["role"] != "system"]
            if len(others) == len(messages):
                raise InputError(f"the chat template refuses the messages: {problem}") from None
            if not self._told:
                log.warning("the chat template refuses the messages (%s); without system", problem)
            self._told = True
        try:
            return self._rendered(others, add_generation_prompt)
        except TemplateError as problem:
            raise InputError(
                f"the chat template refuses the messages without system too: {problem}"
            ) from None

    def _rendered(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return checkpoint_process.render(
                self._tokenizer,
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **self._more,
            )
        except TemplateError:
            raise
        except InputError as problem:
            raise InputError(
                f"{self._tokenizer.name_or_path}: its chat template fails ({problem})"
            ) from None


class Rolling:
    """The windows of some texts, and their answers until a text has all of them.

    Attributes:
        asked: all windows; a text without tokens has none.
        owner: of each window the place of its text.
    """

    def __init__(self, texts: Sequence[list[int]], prefix_token: int, max_length: int) -> None:
        """Args:
        texts: token ids.
        prefix_token: stands before each text.
        max_length: tokens that the model reads at most.
        """
        self.asked: list[Asked] = []
        self.owner: list[int] = []
        self._nth: list[int] = []  # of each window its place among those of its text
        self._answers: list[list[Answer | None]] = []
        for place, ids in enumerate(texts):
            whole = np.array([prefix_token, *ids], np.int32)
            own = rolling_windows(whole, 1, max_length, max_length)
            self.asked += [Asked(one.ids[: one.start], one.ids[one.start :]) for one in own]
            self.owner += [place] * len(own)
            self._nth += range(len(own))
            self._answers.append([None] * len(own))
        self._missing = [len(one) for one in self._answers]

    def take(self, window: int, answer: Answer) -> list[Answer] | None:
        """Put an answer at its window.

        Returns:
            All answers of its text, in order, when this was the last one; else None.
        """
        place = self.owner[window]
        self._answers[place][self._nth[window]] = answer
        self._missing[place] -= 1
        if self._missing[place]:
            return None
        found, self._answers[place] = self._answers[place], []
        return [one for one in found if one is not None]

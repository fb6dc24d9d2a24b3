"""Texts to token ids, by the rules of lm-evaluation-harness' `hf` model (0.4.13).

    pair       spaces at the context's end move to the continuation; the continuation's ids are
               those of the whole text after the first n, where n is the number of the context's
    no context the continuation without special tokens, after the prefix token
    rolling    the whole text, with special tokens, in disjoint windows after the prefix token
    prompt     the whole text, truncated at the left

`add_bos_token` overrides the tokenizer's choice of special tokens. A text that begins with its
BOS gets no second one.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxscore.adapters.model import Answer, Question
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.plan.requests import TextWindows
from jaxscore.text import chat_template
from jaxscore.text.bounded_tokenizer import BoundedTokenizer, TextError, decode_ids, encode_each
from jaxscore.text.checkpoint_process import RefusedError
from jaxscore.text.tokenizer import copy_backend

log = logging.getLogger("lm_eval.jaxscore")  # lm-evaluation-harness displays its child loggers

CHUNK, CHUNK_CHARACTERS = 256, 1 << 20  # texts that are encoded together
QUOTED = 60  # characters of a text in a message

Texts = TypeVar("Texts", bound=tuple[str, ...])
Message = Mapping[str, str]


class Encoder:
    """Encodes texts with one fast tokenizer.

    Args:
        add_bos_token: None leaves it to the tokenizer.
        prefix_token_id: the token before a text without context; None if the tokenizer has neither
            BOS nor EOS.
    """

    def __init__(
        self, tokenizer: Any, add_bos_token: bool | None, prefix_token_id: int | None
    ) -> None:
        self.tokenizer, self.prefix_token_id = tokenizer, prefix_token_id
        self._bounded = BoundedTokenizer(copy_backend(tokenizer))
        self._adds_special = True if add_bos_token is None else add_bos_token
        self._prefix = None if prefix_token_id is None else decode_ids(tokenizer, prefix_token_id)

    def encode(self, texts: Sequence[str], add_special: bool | None = None) -> list[list[int]]:
        """Return the ids of each text.

        Args:
            add_special: True to add special tokens; None applies the rules above, with the
                prefix token as BOS.
        """
        return self._encode(texts, add_special, self._prefix)

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts to continue, whose BOS is the tokenizer's."""
        return self._encode(texts, None, self.tokenizer.bos_token)

    def pairs(
        self, pairs: Sequence[tuple[str, str]], name_of: Callable[[int], str]
    ) -> list[Question]:
        """Return the ids of each context and continuation; equal contexts share one array.

        Args:
            name_of: returns the name of the request at an index, for messages.

        Raises:
            InputError: a continuation without tokens after an empty context, or a lone
                surrogate.
        """
        check_unicode((context + continuation for context, continuation in pairs), name_of)
        questions: list[Question] = []
        contexts: dict[str, np.ndarray] = {}
        for first, chunk in _chunks(pairs):
            moved = [_move_spaces(*pair) for pair in chunk]
            new = list(dict.fromkeys(text for text, _ in moved if text not in contexts))
            for context, ids in zip(new, self.encode(new), strict=True):
                contexts[context] = np.array(ids, np.int32)
            wholes = self.encode([context + continuation for context, continuation in moved])
            bare = [k for k, (context, _) in enumerate(chunk) if context == ""]
            alone = dict(zip(bare, self.encode([chunk[k][1] for k in bare], False), strict=True))
            for k, (context, _) in enumerate(moved):
                if k in alone:
                    questions.append(self._without_context(alone[k], name_of(first + k)))
                    continue
                context_ids = contexts[context]
                rest = np.array(wholes[k][len(context_ids) :], np.int32)
                questions.append(Question(context_ids, rest))
        return questions

    def _without_context(self, ids: list[int], name: str) -> Question:
        if not ids:
            raise InputError(f"{name}: neither its context nor its continuation has a token")
        if self.prefix_token_id is None:
            raise InputError(
                f"{name}: the context is empty, and the tokenizer has neither BOS nor EOS to "
                "take its place; give prefix_token_id"
            )
        if ids[0] == self.prefix_token_id:
            return Question(np.array(ids[:1], np.int32), np.array(ids[1:], np.int32))
        return Question(np.array([self.prefix_token_id], np.int32), np.array(ids, np.int32))

    def _encode(
        self, texts: Sequence[str], add_special: bool | None, bos: str | None
    ) -> list[list[int]]:
        def adds(text: str) -> bool:
            if add_special is not None:
                return add_special
            return self._adds_special and not (bos is not None and text.startswith(bos))

        all_ids: list[list[int]] = [[]] * len(texts)
        for special in (False, True):
            places = [k for k, text in enumerate(texts) if adds(text) is special]
            for first, chunk in _chunks([(texts[k],) for k in places]):
                for k, ids in enumerate(self._ids([text for (text,) in chunk], special)):
                    all_ids[places[first + k]] = ids
        return all_ids

    def _ids(self, texts: Sequence[str], special: bool) -> list[list[int]]:
        encode = functools.partial(self._bounded.ids, special_tokens=special)
        all_ids = []
        for text, ids in zip(texts, encode_each(encode, texts), strict=True):
            if isinstance(ids, TextError):
                raise TextError(f"the text that begins {text[:QUOTED]!r}: {ids}")
            all_ids.append(ids if isinstance(ids, list) else ids.tolist())
        return all_ids


def check_unicode(texts: Iterable[str], name_of: Callable[[int], str]) -> None:
    """Refuse texts that a tokenizer cannot encode.

    Args:
        name_of: returns the name of the request at an index, for messages.

    Raises:
        InputError: a text with a lone surrogate.
    """
    for index, text in enumerate(texts):
        if not is_valid_unicode(text):
            raise InputError(
                f"{name_of(index)}: a text contains a lone surrogate (invalid Unicode)"
            )


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Move spaces at the context's end to the continuation."""
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation


def _chunks(texts: Sequence[Texts]) -> Iterator[tuple[int, Sequence[Texts]]]:
    """Yield consecutive texts that are encoded together, with the index of the first one."""
    first = n_characters = 0
    for k, parts in enumerate(texts):
        if k > first and (k - first == CHUNK or n_characters >= CHUNK_CHARACTERS):
            yield first, texts[first:k]
            first, n_characters = k, 0
        n_characters += sum(map(len, parts))
    if first < len(texts):
        yield first, texts[first:]


class Rolling:
    """Disjoint windows of texts, as lm-evaluation-harness cuts them, and their answers.

    Args:
        texts: token ids.
        prefix_token: the id of the token before each text.
        max_length: maximum tokens that the model reads.

    Attributes:
        questions: all windows, text by text; a text without tokens has none.
        text_of: the index of each window's text.
    """

    def __init__(self, texts: Sequence[list[int]], prefix_token: int, max_length: int) -> None:
        self.questions: list[Question] = []
        self.text_of: list[int] = []
        self._windows_of: list[range] = []
        self._answers: dict[int, Answer] = {}  # by window, until a text has all of its answers
        for index, ids in enumerate(texts):
            first = len(self.questions)
            sequence = np.array([prefix_token, *ids], np.int32)
            self.questions += [
                Question(sequence[span.begin : span.first], sequence[span.first : span.end])
                for span in TextWindows(max_length, max_length).spans(len(sequence), 1)
            ]
            self._windows_of.append(range(first, len(self.questions)))
            self.text_of += [index] * len(self._windows_of[-1])
        self._n_missing = [len(windows) for windows in self._windows_of]

    def add_answer(self, window: int, answer: Answer) -> list[Answer] | None:
        """Store the answer of a window.

        Returns:
            All answers of its text, in order, if this was the last one, or None.
        """
        text = self.text_of[window]
        self._answers[window] = answer
        self._n_missing[text] -= 1
        if self._n_missing[text]:
            return None
        return [self._answers.pop(k) for k in self._windows_of[text]]


class ChatTemplate:
    """Renders conversations with a tokenizer's template, as lm-evaluation-harness' `hf` does.

    Args:
        template_args: variables of the template.
    """

    def __init__(self, tokenizer: Any, template_args: Mapping[str, Any]) -> None:
        self._tokenizer, self._args = tokenizer, template_args
        self._has_warned = False

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Render a conversation, without its system messages if the template refuses them.

        Args:
            add_generation_prompt: True if an answer starts at the end; otherwise the last
                message, the start of the answer, continues.

        Raises:
            InputError: the tokenizer lacks a template, or the template refuses the messages or
                leaves out text of them.
        """
        if not self._tokenizer.chat_template:
            raise InputError(
                "the tokenizer lacks a chat template; leave out --apply_chat_template, or give a "
                "tokenizer that has one: tokenizer=NAME in model_args"
            )

        def render(messages: Sequence[Message]) -> str:
            return chat_template.render(
                self._tokenizer,
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **self._args,
            )

        try:
            return render(messages)
        except RefusedError as problem:
            others = [message for message in messages if message["role"] != "system"]
            if len(others) == len(messages):
                raise
            if not self._has_warned:
                log.warning("messages are rendered without system: %s", problem)
            self._has_warned = True
        return render(others)

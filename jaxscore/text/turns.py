"""Spans of the messages of a conversation in the text that a chat template makes of it.

The content of a message is never searched for, since a template may write the same words elsewhere.
Instead the conversation is rendered with two other texts in place of the content:

    <|im_start|>user\nA0<|im_end|>\n     what both begin with is before the content,
    <|im_start|>user\n9Z<|im_end|>\n     what both end with is after it

An assistant's contents are those between the template's generation marks if it has them. Otherwise
each conversation messages[:k] must begin the text of messages[:k + 1]: a template that rewrites
earlier turns shows the model another text than the one in which they were written.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.text import chat_template
from jaxscore.text.checkpoint_process import Rendered, Rendering, TemplateError, render_each
from jaxscore.text.encoder import TextEncoder
from jaxscore.text.tokenize_requests import INVALID_UNICODE, shared_prefix

ASSISTANT = "assistant"
PROBES = ("A0", "9Z")  # texts without a common beginning and end
MARK = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
REWRITES = (
    "its chat template rewrites earlier turns at messages[{index}] ({role}), counted from 0, for "
    "example by dropping their reasoning, so that they are not what the model read and wrote; use "
    "a chat_template.jinja with generation marks, {{% generation %}}, or one that retains all turns"
)
OTHER_FORM = (
    "its chat template writes messages[{index}] ({role}), counted from 0, in another form than "
    "other texts, so that its tokens are unknown; use a chat_template.jinja with generation marks, "
    "{{% generation %}}, or leave that message out"
)
OTHER_MARKS = (
    "its chat template has generation marks around {n_marks} parts of a conversation with {n} "
    "messages of the assistant, so that their contents are unknown; mark one part in each"
)
NO_END = (
    "the chat template ends messages[{index}] ({role}), counted from 0, with no special token; "
    "leave score_turn_end out"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """A message in the text of its conversation, in characters.

    Attributes:
        index: the message's position in its conversation, from 0.
        role: the message's role.
        start, end: bounds of its content.
        stop: end of what the template writes after the content before it writes another message;
            `end` if that is unknown.
        is_marked: True if the bounds are the template's generation marks.
    """

    index: int
    role: str
    start: int
    end: int
    stop: int
    is_marked: bool


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TurnTokens:
    """The tokens of a message, as indices of its conversation's tokens.

    Attributes:
        index, role: see `Turn`.
        positions: int64 [n], ascending; the tokens of the content, and with the turn's end the
            special token that ends the turn.
    """

    index: int
    role: str
    positions: np.ndarray


def render_turns(
    tokenizer: Any,
    messages: Sequence[dict[str, Any]],
    indices: Sequence[int],
    **variables: Any,
) -> tuple[str, list[Turn]]:
    """Render a conversation, and locate some of its messages.

    Args:
        indices: positions of these messages, from 0, ascending.
        variables: further variables of the template.

    Raises:
        InputError: see `chat_template.render`; or the template rewrites earlier turns, or a
            message cannot be located. The error names the message, counted from 0.
    """
    text, rendering = chat_template.render_checked(tokenizer, messages, False, **variables)
    conversation = _Conversation(text, rendering)
    try:
        return text, conversation.locate(indices)
    except InputError as problem:
        name = tokenizer.name_or_path or type(tokenizer).__name__
        raise InputError(f"{name}: {problem}") from None


class _Version(NamedTuple):
    """The messages up to `last`, with a probe in place of the content of one of them, if any."""

    last: int
    changed: int | None = None
    probe: str = ""


class _Conversation:
    """A conversation whose messages are located."""

    def __init__(self, text: str, rendering: Rendering) -> None:
        """Take the conversation's text and what it was rendered from."""
        self._text, self._rendering, self._messages = text, rendering, rendering.messages
        self._last = len(self._messages) - 1
        self._texts: dict[_Version, str | None] = {_Version(self._last): text}

    def locate(self, indices: Sequence[int]) -> list[Turn]:
        """Locate messages; see `render_turns`."""
        has_marks = MARK.search(self._rendering.template) is not None
        pairs = [_Version(k, k, probe) for k in indices for probe in PROBES]
        if has_marks:
            self._render([*pairs, *(version._replace(last=self._last) for version in pairs)])
            marks = self._marks()
        else:
            self._render([*map(_Version, range(self._last)), *pairs])
            self._check_stable()
            marks = {}
        turns = []
        for k in indices:
            start, end = marks.get(k) or self._between(k, self._last if has_marks else k)
            tail = _common_end(*(self._texts[_Version(k, k, probe)] for probe in PROBES))
            stop = end + shared_prefix(tail, self._text[end:])
            turns.append(Turn(k, self._messages[k]["role"], start, end, stop, k in marks))
        return turns

    def _render(self, versions: Iterable[_Version]) -> None:
        """Render versions together, which is faster; None for one that the template refuses."""
        new = [version for version in versions if version not in self._texts]
        renderings = []
        for last, changed, probe in new:
            messages = [*self._messages[: last + 1]]
            if changed is not None:
                has_parts = isinstance(messages[changed]["content"], list)
                content = [{"type": "text", "text": probe}] if has_parts else probe
                messages[changed] = {**messages[changed], "content": content}
            renderings.append(self._rendering._replace(messages=messages))
        for version, rendered in zip(new, render_each(renderings), strict=True):
            self._texts[version] = None if isinstance(rendered, TemplateError) else rendered.text

    def _check_stable(self) -> None:
        """Check that the text of each of the first messages begins the next one.

        First messages that a template refuses alone, such as a system message, are left out.
        """
        before = ""
        for k, message in enumerate(self._messages):
            text = self._texts[_Version(k)]
            if text is not None and not text.startswith(before):
                raise InputError(REWRITES.format(index=k, role=message["role"]))
            before = text or before

    def _marks(self) -> dict[int, tuple[int, int]]:
        """Return the characters between the generation marks, by the message's index."""
        variables = {**self._rendering.variables, "return_assistant_tokens_mask": True}
        [rendered] = render_each([self._rendering._replace(variables=variables)])
        if isinstance(rendered, TemplateError):
            raise rendered
        answers = [k for k, each in enumerate(self._messages) if each["role"] == ASSISTANT]
        if len(rendered.marks) != len(answers):
            raise InputError(OTHER_MARKS.format(n_marks=len(rendered.marks), n=len(answers)))
        return {k: (start, end) for k, (start, end) in zip(answers, rendered.marks, strict=True)}

    def _between(self, index: int, last: int) -> tuple[int, int]:
        """Return the characters of a content, which are those between what two probes share.

        Args:
            last: the last message of the texts to compare. Further ones are added while a template
                holds the message back, as it does with a system message.
        """
        pair = [_Version(last, index, probe) for probe in PROBES]
        self._render([_Version(last), *pair])
        text, first, second = (self._texts[version] for version in (_Version(last), *pair))
        if first == second and last < self._last:
            return self._between(index, last + 1)
        tail = _common_end(first, second)
        if text is not None and first is not None and second is not None and text.endswith(tail):
            start = self._start(index, text, first[: shared_prefix(first, second)])
            if start is not None and first != second and start <= (end := len(text) - len(tail)):
                return start, end
        raise InputError(OTHER_FORM.format(index=index, role=self._messages[index]["role"]))

    def _start(self, index: int, text: str, head: str) -> int | None:
        """Return the start of a content; an answer may begin with reasoning, unlike the probes."""
        if text.startswith(head):
            return len(head)
        if self._messages[index]["role"] != ASSISTANT:
            return None
        variables = {**self._rendering.variables, "add_generation_prompt": True}
        prompt = self._rendering._replace(messages=self._messages[:index], variables=variables)
        [rendered] = render_each([prompt])
        is_before = isinstance(rendered, Rendered) and text.startswith(rendered.text)
        return len(rendered.text) if is_before else None  # type: ignore[union-attr]


def _common_end(first: str | None, second: str | None) -> str:
    """Return what two texts end with; empty if they are equal or one is None."""
    if first is None or second is None or first == second:
        return ""
    return first[len(first) - shared_prefix(first[::-1], second[::-1]) :]


def encode_turns(
    encoder: TextEncoder, text: str, turns: Sequence[Turn], *, with_ends: bool
) -> tuple[np.ndarray, list[TurnTokens]]:
    """Encode a conversation's text, and find the tokens of its messages.

    A token belongs to the content that has its first non-space character, or its first character
    if it has only spaces. The special token that ends a turn is not a part of the content, even if
    it is between the template's marks.

    Args:
        with_ends: add the special token that ends each turn.

    Returns:
        int32 ids of the whole text, and the tokens of each turn.

    Raises:
        InputError: the text cannot be encoded, or a turn ends with no special token.
    """
    if not is_valid_unicode(text):
        raise InputError(INVALID_UNICODE)
    ids, firsts = encoder.first_characters(text)
    special = _special_ids(encoder.tokenizer)
    located = []
    for turn in turns:
        positions = np.flatnonzero((firsts >= turn.start) & (firsts < turn.end))
        after = np.flatnonzero((firsts >= turn.end) & (firsts < turn.stop))
        end = next((k for k in after if not text[firsts[k]].isspace()), None)
        if turn.is_marked:
            last = next((k for k in positions[::-1] if not text[firsts[k]].isspace()), None)
            if last is not None and int(ids[last]) in special:
                end, positions = last, positions[positions < last]
        if with_ends:
            if end is None or int(ids[end]) not in special:
                raise InputError(NO_END.format(index=turn.index, role=turn.role))
            positions = np.append(positions, end)
        located.append(TurnTokens(turn.index, turn.role, positions))
    return ids, located


def _special_ids(tokenizer: Any) -> set[int]:
    added = tokenizer.added_tokens_decoder.items()
    return {*tokenizer.all_special_ids, *(id for id, token in added if token.special)}

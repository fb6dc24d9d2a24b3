"""Items that are conversations: their messages, settings, requests, and fields of records."""

import dataclasses
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING
from jaxscore.io.json_input import json_kind
from jaxscore.shell.fields import PAIRED
from jaxscore.shell.flags import flag
from jaxscore.shell.items import UNLESS, Items
from jaxscore.shell.settings import Settings
from jaxscore.text import chat_template
from jaxscore.text.turns import ASSISTANT, TurnTokens, encode_turns, render_turns
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, failed

MESSAGES = "messages"
UNLESS_MESSAGES = {UNLESS: MESSAGES}  # metadata of a field that conversations do not have
EXPECTED = '{"role": "user", "content": "..."}'
SHARE_GPT = {"human": "user", "user": "user", "gpt": ASSISTANT, "system": "system"}
# Fields of data sets that change what the chat template writes, or are not text
NOT_APPLIED = ("tools", "chat_template_kwargs", "images", "image")
LACKS_REASONING = (
    "{n} conversations have reasoning that the chat template leaves out; the rest of their "
    "messages is scored"
)
NO_TOKEN = "the contents of its scored messages have no tokens; are they empty?"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversationItem:
    """Base of an item that may have `messages` in place of texts.

    Attributes:
        texts: the other fields, which a conversation does not have.
        messages: `{"role": ..., "content": ...}`, oldest first, at least one.
    """

    texts: ClassVar[tuple[str, ...]]

    messages: Annotated[list[Any] | None, PAIRED] = None

    def __post_init__(self) -> None:
        """Check the messages."""
        if self.messages is None:
            return
        if text := next((name for name in self.texts if getattr(self, name)), None):
            raise InputError(f"it has messages and {text}; leave one of them out")
        object.__setattr__(self, MESSAGES, _checked(self.messages))


def _checked(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Return messages with the fields that templates get; those of ShareGPT are renamed.

    Raises:
        InputError: there are none, or one cannot be used; the error counts them from 0.
    """
    if not messages:
        raise InputError(f"messages is empty, expected at least one message {EXPECTED}")
    return [_message(message, f"messages[{k}]") for k, message in enumerate(messages)]


def _message(message: Any, name: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InputError(f"{name} is {json_kind(message)}, expected {EXPECTED}")
    if "role" not in message and isinstance(message.get("from"), str):
        role = SHARE_GPT.get(message["from"])
        if role is None:
            raise InputError(
                f"{name} is from {message['from']!r}, expected one of {', '.join(SHARE_GPT)}; "
                'leave it out, or give it a "role" and "content"'
            )
        others = {key: value for key, value in message.items() if key not in ("from", "value")}
        message = {"role": role, "content": message.get("value"), **others}
    chat_template.check_fields(message, name, chat_template.RENDERED_FIELDS)
    for field in chat_template.FIELDS:
        value = message.get(field)
        if not isinstance(value, str) and (field == "role" or not isinstance(value, list)):
            fault = f"{field} is {json_kind(value)}" if field in message else f"{field} is missing"
            raise InputError(f"{name}: {fault}, expected {EXPECTED}")
    for piece in message["content"] if isinstance(message["content"], list) else ():
        if not isinstance(piece, Mapping) or not isinstance(piece.get("text"), str):
            part_type = piece.get("type") if isinstance(piece, Mapping) else json_kind(piece)
            raise InputError(
                f"{name} has a part of type {part_type}, and only text has a probability; leave "
                'it out, or write {"type": "text", "text": "..."}'
            )
    return {field: value for field, value in message.items() if value or field == "content"}


def lacks_reasoning(content: str, text: str) -> bool:
    """Return True if a part of a content with reasoning is not in its rendered text."""
    has_reasoning = "</think>" in content
    return has_reasoning and any(
        thought.strip() not in text for thought in re.split("</?think>", content)
    )


class Conversation(NamedTuple):
    """A conversation to score.

    Attributes:
        request: its text in token ids, and the positions to score.
        before: the text before the first scored content.
        contents: the scored contents as the template writes them.
        lacks_reasoning: True if it leaves out the reasoning of one of them.
        turns: the scored messages; together they have the request's positions, in order.
    """

    request: Request
    before: str
    contents: Sequence[str]
    lacks_reasoning: bool
    turns: Sequence[TurnTokens]

    @property
    def bounds(self) -> list[int]:
        """Index of each message's first token among the scored ones, and their number."""
        return [0, *itertools.accumulate(len(turn.positions) for turn in self.turns)]

    def fields(self, scored: ScoredRequest) -> dict[str, Any]:
        """Return the fields of a record about the messages of a scored conversation."""
        messages = []
        for turn, (start, end) in zip(self.turns, itertools.pairwise(self.bounds), strict=True):
            logprob = scored.logprob[start:end]
            values = logprob[scored.scored[start:end]].astype(float)
            total = float(values.sum()) if len(values) else None
            messages.append(
                {"index": turn.index, "role": turn.role, "sum_logprob": total}
                | {"n_scored": len(values), "start": start, "end": end}
            )
        return {"scored_messages": messages}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversationSettings(Settings):
    """Settings of a system whose items may be conversations."""

    score_roles: Literal["assistant", "last", "all"] | None = flag(
        None,
        group="conversations",
        help="of items with `messages`, score the contents of all messages of the assistant "
        "(default), of the last of these alone, or of all roles; each as the model's chat template "
        "writes it",
    )
    score_turn_end: bool = flag(
        False,
        group="conversations",
        help="score the special token that ends each of these messages too, such as <|im_end|>",
    )

    fixed: ClassVar[tuple[str, ...]] = ("score_roles", "score_turn_end")

    def adapted(self, item: Any) -> Self:
        """See `Settings.adapted`; the default of `score_roles` is of conversations alone."""
        settings = super().adapted(item)
        if settings.score_roles is not None or getattr(item, MESSAGES, None) is None:
            return settings
        return dataclasses.replace(settings, score_roles=ASSISTANT)  # type: ignore[arg-type]

    def omitted_fields(self) -> frozenset[str]:
        """See `Settings.omitted_fields`."""
        omitted = super().omitted_fields()
        return omitted if self.score_roles else omitted | {"scored_messages"}

    def record(self) -> dict[str, Any]:
        """See `Settings.record`; without conversations the settings have no effect."""
        names = ConversationSettings.fixed if self.score_roles is None else ()
        return {name: value for name, value in super().record().items() if name not in names}

    def note_conversation(self, lm: Any, conversation: Conversation) -> None:
        """Note in an audited model what is scored of a conversation."""
        if "score_roles" not in lm.about:
            digest = chat_template.digest(lm.encoder.tokenizer)
            lm.about.update({name: getattr(self, name) for name in ConversationSettings.fixed})
            lm.about["chat_template_sha256"] = digest
        if conversation.lacks_reasoning:
            lm.warnings[LACKS_REASONING] += 1

    def complete(self, item: Any, others: Mapping[str, Any]) -> Any:
        """See `Settings.complete`; refuses fields that would change what a template writes."""
        names = NOT_APPLIED if getattr(item, MESSAGES, None) is not None else ()
        if name := next((name for name in names if others.get(name)), None):
            raise InputError(f"it has messages and {name}, which are not applied; leave them out")
        return super().complete(item, others)

    def check_conversations(self) -> None:
        """Refuse settings that conversations do not take.

        Raises:
            InputError: naming the setting.
        """

    def conversation(
        self,
        lm: Any,
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any] = NOTHING,
    ) -> Conversation:
        """Render and encode a conversation, and find the tokens to score.

        Args:
            lm: a local model, whose tokenizer has the chat template.
            variables: further variables of the template.

        Raises:
            InputError: the model is an endpoint, the template cannot write the conversation, no
                message has one of the roles, or the contents have no tokens.
        """
        if not lm.capabilities.is_local:
            raise InputError(
                "messages: the chat template is part of a tokenizer, and an endpoint shows none; "
                "take a local model"
            )
        roles = [message["role"] for message in messages]
        indices = [k for k, role in enumerate(roles) if role == ASSISTANT]
        if self.score_roles == "all":
            indices = list(range(len(roles)))
        if not indices:
            raise InputError(
                f"none of its messages has the role {ASSISTANT}: it has "
                f"{', '.join(dict.fromkeys(roles))}; --score-roles all scores those"
            )
        indices = indices[-1:] if self.score_roles == "last" else indices
        text, turns = render_turns(lm.encoder.tokenizer, messages, indices, **variables)
        ids, tokens = encode_turns(lm.encoder, text, turns, with_ends=self.score_turn_end)
        positions = [k for turn in tokens for k in turn.positions.tolist()]
        if not positions:
            raise InputError(NO_TOKEN)
        request = Request("", "", text, ((), ids.tolist()), positions)
        contents = [text[turn.start : turn.end] for turn in turns]
        originals = (messages[k]["content"] for k in indices)
        lacks = any(
            isinstance(original, str) and lacks_reasoning(original, content)
            for original, content in zip(originals, contents, strict=True)
        )
        return Conversation(request, text[: turns[0].start], contents, lacks, tokens)


def check_conversations(items: Items, settings: ConversationSettings) -> None:
    """Refuse conversations if the settings are about something else.

    Raises:
        InputError: naming the first conversation and the setting.
    """
    for entry in items.entries() if items.settings.score_roles else ():
        if getattr(entry.item, MESSAGES, None) is not None:
            try:
                settings.check_conversations()
            except InputError as problem:
                raise InputError(f"{entry.name}: {problem}") from None
            return


def stream_items(
    lm: Any,
    items: Iterable[Any],
    request_of: Callable[[Any], tuple[Request, Any]],
    **options: Any,
) -> Iterator[tuple[Any, Any, ScoredRequest]]:
    """Score a request for each item.

    Args:
        request_of: makes the request of an item, and something to return with its result.
        options: arguments of `LM.stream`.

    Yields:
        Each item, what `request_of` returned with the request, and the result; an item for which
        it raised an `InputError` has a failed one.
    """
    waiting: deque[tuple[Any, Any, ScoredRequest | None]] = deque()

    def requests() -> Iterator[Request]:
        for item in items:
            try:
                request, further = request_of(item)
            except InputError as problem:
                waiting.append((item, None, failed("", str(problem))))
                continue
            waiting.append((item, further, None))
            yield request

    for result in lm.stream(requests(), **options):
        while (error := waiting[0][2]) is not None:
            yield (*waiting.popleft()[:2], error)
        yield (*waiting.popleft()[:2], result)
    yield from ((item, further, error) for item, further, error in waiting if error is not None)

"""What a client may ask of `/v1/chat/completions`, and the prompt that its messages become."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind
from jaxscore.server import json_body
from jaxscore.server.errors import refused
from jaxscore.server.fields import Field, flag, read, told, whole
from jaxscore.server.prompts import TOO_LONG, Prompt, check_room, encoded
from jaxscore.server.sampling import FIELDS, NEUTRAL, Sampling, sampling_of
from jaxscore.server.service import Service
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message

NEUTRAL_HERE = {
    **NEUTRAL,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "audio": (),
    "add_generation_prompt": (True,),
}


def fields(most_logprobs: int) -> Mapping[str, Field]:
    """The fields of a chat."""
    return {
        **FIELDS,
        "messages": Field(
            "a list of messages that is not empty",
            lambda value: isinstance(value, list) and bool(value),
            required=True,
        ),
        "max_tokens": whole(1),
        "max_completion_tokens": whole(1),
        "logprobs": flag(),
        "top_logprobs": whole(0, most_logprobs),
    }


class AskedChat(NamedTuple):
    """A request that can be answered.

    Attributes:
        n_top: most probable tokens at each place; None where no numbers are asked for.
    """

    fields: Mapping[str, Any]
    prompt: Prompt
    max_tokens: int
    sampling: Sampling
    n_top: int | None


def asked_of(service: Service, raw: bytes) -> AskedChat:
    """What a body asks for.

    Raises:
        ApiError: it cannot be answered, and why.
    """
    body = json_body.parse(raw)
    found = read(body, fields(service.settings.max_logprobs), NEUTRAL_HERE)
    service.check_model(found["model"])
    if found["top_logprobs"] is not None and not found["logprobs"]:
        raise refused("top_logprobs", "top_logprobs needs logprobs: true; give it too")
    if None not in (found["max_tokens"], found["max_completion_tokens"]):
        raise refused(
            "max_tokens", "max_tokens and max_completion_tokens mean the same; give one of them"
        )
    text = _rendered(service, [_message(k, one) for k, one in enumerate(found["messages"])])
    [prompt] = encoded(service, text, True)
    field = "max_tokens" if found["max_completion_tokens"] is None else "max_completion_tokens"
    check_room(service, [prompt], found[field] or 1, field)
    most = found[field] or service.max_positions - len(prompt.ids)
    n_top = (found["top_logprobs"] or 0) if found["logprobs"] else None
    return AskedChat(found, prompt, most, sampling_of(found), n_top)


def _message(place: int, value: Any) -> Message:
    """One message as templates take it, its text in one piece."""
    where = f"messages[{place}]"
    if not isinstance(value, dict):
        raise refused("messages", f"{where} is {json_kind(value)}, expected an object")
    for name in value:
        if name not in ("role", "content", "name") and value[name] is not None:
            raise refused(
                "messages", f"{where} has {told(name)}, which is not applied; leave it out"
            )
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str):
        raise refused("messages", f"{where}.role is {json_kind(role)}, expected a string")
    return {"role": role, "content": _content(where, content)}


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refused(
            "messages",
            f"{where}.content is {json_kind(content)}, expected a string or a list of text parts",
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else json_kind(part)
        if kind != "text" or not isinstance(part.get("text"), str):
            raise refused(
                "messages",
                f'{where}.content has a part of type {told(kind)}, expected {{"type": "text", '
                '"text": a string}; the model reads text alone',
            )
        texts.append(part["text"])
    return "".join(texts)


def _rendered(service: Service, messages: list[Message]) -> str:
    _check_length(service, sum(len(one["content"]) for one in messages))
    tokenizer = service.encoder.tokenizer
    try:
        text = chat_template.render(tokenizer, messages)
    except InputError as problem:
        # The message begins with the tokenizer's folder, which is none of the client's business.
        raise refused(
            "messages", str(problem).removeprefix(f"{tokenizer.name_or_path}: ")
        ) from None
    _check_length(service, len(text))
    return text


def _check_length(service: Service, n_characters: int) -> None:
    if n_characters > service.room():
        raise refused(
            "messages",
            f"the messages have {n_characters} characters, more than the model's "
            f"{service.max_positions} positions can hold; shorten them",
            TOO_LONG,
        )

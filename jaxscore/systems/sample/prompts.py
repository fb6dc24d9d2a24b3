"""Prompts of `sample`: a text or a conversation each, and the text that a model reads.

That text is the chat template's if it is applied. The BOS that the tokenizer would put before it
is written out, since `self-certainty` reads the text again and adds no special token.
"""

from collections.abc import Collection, Mapping
from typing import Any

from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.json_input import json_kind
from jaxscore.text import chat_template
from jaxscore.text.chat_template import Message
from jaxscore.text.encoder import TextEncoder

PROMPT, MESSAGES = FIELDS = ("prompt", "messages")


def read_prompt(given: Mapping[str, Any], reserved: Collection[str]) -> str | list[Message]:
    """The text or the messages of an item.

    Args:
        reserved: names that the item's other fields may not have.

    Raises:
        InputError: neither, both, or of another form; or a field has a reserved name.
    """
    if taken := [name for name in reserved if name in given]:
        raise InputError(
            f'field "{taken[0]}" is one of those that the item gets; rename it, or leave it out'
        )
    if (PROMPT in given) == (MESSAGES in given):
        there = ", ".join(map(repr, given)) or "none"
        found = "both" if PROMPT in given else f"there are {there}"
        raise InputError(f'expected either a string "{PROMPT}" or a list "{MESSAGES}"; {found}')
    if PROMPT in given:
        if not isinstance(given[PROMPT], str):
            raise InputError(f'field "{PROMPT}" is {json_kind(given[PROMPT])}, expected a string')
        return _readable(given[PROMPT], PROMPT)
    messages = given[MESSAGES]
    if not isinstance(messages, list) or not messages:
        found = "empty" if messages == [] else json_kind(messages)
        raise InputError(f'field "{MESSAGES}" is {found}, expected a list of messages')
    return [_message(one, number) for number, one in enumerate(messages, start=1)]


def _message(given: Any, number: int) -> Message:
    where = f'field "{MESSAGES}", message {number}'
    if not isinstance(given, dict):
        raise InputError(f"{where}: found {json_kind(given)}, expected an object")
    for name in ("role", "content"):
        if not isinstance(given.get(name), str):
            found = json_kind(given[name]) if name in given else "missing"
            raise InputError(f'{where}: "{name}" is {found}, expected a string')
        _readable(given[name], f'{MESSAGES}", message {number}, "{name}')
    return {name: given[name] for name in ("role", "content")}


def _readable(text: str, field: str) -> str:
    if not is_valid_unicode(text):
        raise InputError(f'field "{field}" has half a surrogate pair, which is no character')
    return text


def history(prompt: str | list[Message]) -> list[str]:
    """The texts of a prompt, without the system message."""
    if isinstance(prompt, str):
        return [prompt]
    return [message["content"] for message in prompt if message["role"] != "system"]


def model_input(
    encoder: TextEncoder,
    prompt: str | list[Message],
    *,
    chat: bool,
    system: str | None,
    max_positions: int | None = None,
) -> str:
    """The text that the model reads: `self-certainty` takes the same token ids from it.

    Args:
        chat: apply the chat template.
        system: a message before all others.
        max_positions: of the model; None is no limit.

    Raises:
        InputError: messages without the template; the template omits something or refuses it; two
            system messages; the text certainly has more tokens than `max_positions`.
    """
    if not chat:
        if not isinstance(prompt, str):
            raise InputError(
                f'field "{MESSAGES}" becomes a text by the chat template alone; give '
                f'--apply-chat-template, or a string "{PROMPT}"'
            )
        return _with_prefix(encoder, prompt, max_positions)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system is not None:
        if any(message["role"] == "system" for message in messages):
            raise InputError("it has a system message of its own, and --system gives another")
        messages = [{"role": "system", "content": system}, *messages]
    text = chat_template.render(encoder.tokenizer, messages)
    if system is not None and system.strip() not in text:
        raise InputError(
            "the chat template leaves the system message out; leave out --system, and write what "
            "it says into the prompt"
        )
    return _with_prefix(encoder, text, max_positions)


def _with_prefix(encoder: TextEncoder, text: str, max_positions: int | None) -> str:
    """The text with the special tokens that the tokenizer puts before it.

    SentencePiece puts a blank before its first word, which after a written BOS is written too.
    """
    if not encoder.prefix:
        return text
    [expected] = encoder.prompt_ids([text], most=max_positions)
    head = "".join(encoder.tokenizer.convert_ids_to_tokens(encoder.prefix))
    candidates = [text, f"{head}{text}", f"{head} {text}"]
    found = encoder.prompt_ids(candidates, special_tokens=False)
    for candidate, ids in zip(candidates, found, strict=True):
        if ids.tolist() == expected.tolist():
            return candidate
    return f"{head}{text}"

"""Renders conversations as prompts by the tokenizer's chat template."""

import hashlib
from collections.abc import Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.text import checkpoint_process

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
NO_SYSTEM = (
    "the template takes no system message: leave the system prompt out, or write it into the "
    "prompts"
)
LEAVES_OUT = (
    "its chat template leaves out messages of a conversation; leave out the examples, or take "
    "another model"
)
PROBE = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]


def render(
    tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = True
) -> str:
    """Render a prompt that ends where the assistant's next message starts.

    A BOS of the template is part of the text; `TextEncoder` adds no second one.

    Args:
        add_generation_prompt: False ends it after the last message.

    Raises:
        InputError: there is no template, or it refuses these messages, or takes too much time or
            memory.
    """
    _template(tokenizer)
    try:
        return checkpoint_process.render(
            tokenizer, messages, add_generation_prompt=add_generation_prompt
        )
    except InputError as problem:
        roles = ", ".join(message["role"] for message in messages)
        raise InputError(
            f"{_name(tokenizer)}: its chat template refuses messages of {roles} ({problem})"
        ) from None


def check(tokenizer: Any) -> None:
    """Refuse a template that takes too much time or memory for a short conversation.

    Raises:
        InputError: it does, or it fails. Refusing the conversation is no failure.
    """
    try:
        checkpoint_process.render(tokenizer, PROBE[1:], add_generation_prompt=True)
    except checkpoint_process.TemplateError:
        return
    except (InputError, ValueError) as problem:
        raise InputError(f"{_name(tokenizer)}: its chat template fails ({problem})") from None


def takes_system(tokenizer: Any) -> bool:
    """Whether the template mentions `system` and does not refuse it.

    Published scripts check the first alone. Gemma's template mentions it only to raise an error.

    Raises:
        InputError: there is no template.
    """
    if "system" not in _template(tokenizer):
        return False
    try:
        render(tokenizer, PROBE)
    except InputError:
        return False
    return True


def check_keeps(tokenizer: Any, n_answered: int, *, system: bool) -> None:
    """Refuse a template that refuses, drops or reorders messages of a conversation.

    Args:
        n_answered: number of answered user messages before the last one.
        system: whether the conversation starts with a system message.

    Raises:
        InputError: there is no template, or it refuses, drops or reorders messages.
    """
    roles = ["user", "assistant"] * n_answered + ["user"]
    messages = [{"role": role, "content": f"probe {k}."} for k, role in enumerate(roles)]
    text, at = render(tokenizer, messages), 0
    if system:
        messages.insert(0, {"role": "system", "content": "probe."})
        try:
            text = render(tokenizer, messages)
        except InputError as problem:
            raise InputError(f"{problem}; {NO_SYSTEM}") from None
    for message in messages:
        at = text.find(message["content"], at)
        if at < 0:
            reason = NO_SYSTEM if message["role"] == "system" else LEAVES_OUT
            raise InputError(f"{_name(tokenizer)}: {reason}")


def answer_start(tokenizer: Any) -> str:
    """Blanks that the template writes between a prompt's end and the assistant's message.

    Llama 2's template ends a prompt with `[/INST]` and writes an answer as ` text </s>`: one blank.
    Most others end the prompt with a line end or a special token: empty. It is empty too if the
    template writes more than blanks, such as empty reasoning.
    """
    question = [{"role": "user", "content": "a"}]
    answered = [*question, {"role": "assistant", "content": "probe."}]
    prompt = render(tokenizer, question)
    try:
        whole = checkpoint_process.render(tokenizer, answered)
    except InputError:  # it refuses answers
        return ""
    start, found, _ = whole.removeprefix(prompt).partition("probe.")
    known = whole.startswith(prompt) and found and not start.strip(" ")
    return start if known else ""


def digest(tokenizer: Any) -> str:
    """SHA-256 of the template, in hexadecimal.

    Raises:
        InputError: there is no template.
    """
    return hashlib.sha256(_template(tokenizer).encode("utf-8", "surrogatepass")).hexdigest()


def _template(tokenizer: Any) -> str:
    try:
        return tokenizer.get_chat_template()
    except ValueError:  # none, or several without a default
        raise InputError(
            f"{_name(tokenizer)}: its tokenizer has no chat template, by which a conversation "
            "becomes a prompt; give a chat model, or put a chat_template.jinja beside its "
            "tokenizer.json"
        ) from None


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)

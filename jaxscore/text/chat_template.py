"""A conversation as the text that a chat model reads, by its tokenizer's template."""

from collections.abc import Sequence
from typing import Any

from jaxscore.errors import InputError

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
PROBE = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]


def render(tokenizer: Any, messages: Sequence[Message]) -> str:
    """The prompt, ending where the assistant's next message begins.

    A template that writes a BOS writes it into the text; `text.TextEncoder` adds no second one.

    Raises:
        InputError: there is no template, or it does not take these messages.
    """
    template = _template(tokenizer)
    try:
        return tokenizer.apply_chat_template(
            list(messages), chat_template=template, add_generation_prompt=True, tokenize=False
        )
    except Exception as problem:  # a template is a program and fails in its own way
        roles = ", ".join(message["role"] for message in messages)
        raise InputError(
            f"{_name(tokenizer)}: its chat template refuses messages of {roles} ({problem})"
        ) from None


def takes_system(tokenizer: Any) -> bool:
    """Whether the template mentions `system` and, mentioning it, does not refuse it.

    The first is the rule of published scripts. Templates that mention it in order to raise an
    error (Gemma's) would end them.

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


def _template(tokenizer: Any) -> str:
    try:
        return tokenizer.get_chat_template()
    except ValueError:  # none, or several of which none is the default
        raise InputError(
            f"{_name(tokenizer)}: its tokenizer has no chat template, by which a conversation "
            "becomes a prompt; give a chat model, or put a chat_template.jinja beside its "
            "tokenizer.json"
        ) from None


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)

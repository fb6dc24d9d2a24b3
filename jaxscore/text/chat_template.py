"""A conversation as the text that a chat model reads, by its tokenizer's template."""

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


def render(tokenizer: Any, messages: Sequence[Message]) -> str:
    """The prompt, ending where the assistant's next message begins.

    A template that writes a BOS writes it into the text; `text.TextEncoder` adds no second one.

    Raises:
        InputError: there is no template, or it does not take these messages, or takes too much
            time or memory.
    """
    _template(tokenizer)
    try:
        return checkpoint_process.render(tokenizer, messages, add_generation_prompt=True)
    except InputError as problem:  # a template is a program and fails in its own way
        roles = ", ".join(message["role"] for message in messages)
        raise InputError(
            f"{_name(tokenizer)}: its chat template refuses messages of {roles} ({problem})"
        ) from None


def check(tokenizer: Any) -> None:
    """Refuse a template that takes too much time or memory for a short conversation.

    Raises:
        InputError: it does, or it fails; not if it refuses the conversation.
    """
    try:
        checkpoint_process.render(tokenizer, PROBE[1:], add_generation_prompt=True)
    except checkpoint_process.TemplateError:
        return
    except (InputError, ValueError) as problem:
        raise InputError(f"{_name(tokenizer)}: its chat template fails ({problem})") from None


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


def check_keeps(tokenizer: Any, n_answered: int, *, system: bool) -> None:
    """Refuse a template that refuses or leaves out messages of a conversation.

    Args:
        n_answered: user messages with an answer, before the last user message.
        system: whether a system message stands first.

    Raises:
        InputError: there is no template, or it does not take such messages, or it does not write
            what they say in their order.
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
            told = NO_SYSTEM if message["role"] == "system" else LEAVES_OUT
            raise InputError(f"{_name(tokenizer)}: {told}")


def answer_start(tokenizer: Any) -> str:
    """Blanks that the template puts before an assistant's message, after the prompt's end.

    Llama 2's template ends a prompt with `[/INST]` and writes an answer after it as ` text </s>`:
    there it is one blank. Most others end the prompt with a line end or a special token, and
    there it is empty. So it is where a template writes more than blanks, as empty reasoning.
    """
    asked = [{"role": "user", "content": "a"}]
    answered = [*asked, {"role": "assistant", "content": "probe."}]
    prompt = render(tokenizer, asked)
    try:
        whole = checkpoint_process.render(tokenizer, answered)
    except InputError:  # it takes no answer, so nothing is known of what stands before one
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
    except ValueError:  # none, or several of which none is the default
        raise InputError(
            f"{_name(tokenizer)}: its tokenizer has no chat template, by which a conversation "
            "becomes a prompt; give a chat model, or put a chat_template.jinja beside its "
            "tokenizer.json"
        ) from None


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)

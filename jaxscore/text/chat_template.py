"""Rendering of conversations as prompts by the tokenizer's chat template.

A template is a program, so it may drop text: it may ignore system messages, or expect the content
as a list of parts, `[{"type": "text", "text": ...}]`, and print nothing for a string. Two different
questions would then get the same prompt. All prompts therefore go through `render`, which checks
each one:

    1. The conversation is rendered with markers in place of its texts, once per template and
       shape. A message whose marker is missing gets its content in the other form, a string or a
       list of parts. If its marker is still missing, `render` fails.
    2. If the template rewrote a text, the text is rendered again between two markers. Templates may
       trim it, and drop the reasoning of an answer. Its end must be kept, and its start unless it
       is an answer.
"""

import contextlib
import difflib
import functools
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind
from jaxscore.text import checkpoint_process
from jaxscore.text.checkpoint_process import LimitError, RefusedError, Rendering, TemplateError

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
FIELDS = ("role", "content")  # of messages in files
RENDERED_FIELDS = (*FIELDS, "name")
NO_SYSTEM = (
    "the template takes no system message: leave the system prompt out, or write it into the "
    "prompts"
)
LEAVES_OUT = (
    "its chat template leaves out {lost_text} of message {number} of {n} ({role}); leave that "
    "message out, or use a model whose template writes it"
)
PROBE = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
QUESTION = [{"role": "user", "content": "probe0x"}]
# Variables that jaxscore sets, and arguments of the function of transformers that renders.
OURS = frozenset(
    "messages conversations chat_template tools documents add_generation_prompt "
    "continue_final_message return_assistant_tokens_mask".split()
)
IN_REASONING = (
    "The chat template ends a prompt in an open reasoning block or without a channel, so the "
    "probabilities are those of the start of the model's reasoning, not of its answer"
)
# <think>, [THINK], <|START_THINKING|>, <seed:think>, <|channel|>analysis<|message|> and the like
OPENING = re.compile(
    r"(?i)[<\[]\|?(?:start_|begin_of_)?(?:\w+:)?(?:think|thought|reason|scratch)\w*\|?[>\]]"
    r"|<\|?channel\|?>\s*(?:analysis|thought)\b"
)
CLOSING = re.compile(
    r"(?i)[<\[]\|?(?:/|end_(?:of_)?)(?:\w+:)?(?:think|thought|reason|scratch)\w*\|?[>\]]"
    r"|<\|end\|>|<channel\|>"
)
# Values of template variables that end the reasoning before the answer, the most common ones first.
CLOSED_BY = (
    ("enable_thinking", False),
    ("thinking", False),
    ("enable_reasoning", False),
    ("reasoning", False),
    ("thinking_mode", "disabled"),
    ("thinking_mode", "chat"),
    ("reasoning_effort", "none"),
)
# A template that expects strings prints a list of parts as its Python or JSON representation.
PRINTED_PART = re.compile(r"""['"]text['"]: *['"]\Z""")


def render(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    """Render a prompt that ends where the assistant's next message starts.

    The template writes all special tokens: encode the prompt without adding any, as transformers
    does. If the template writes no BOS, the prompt has none.

    Args:
        messages: dicts with `role`, `content` (a text or a list of text parts) and optionally
            `name`. The content keeps its form if the template writes its text in that form.
        add_generation_prompt: if False, the prompt ends after the last message.
        variables: additional variables of the template.

    Raises:
        RefusedError: the template refuses these messages.
        TemplateError: the template takes too much time or memory, or fails in another way.
        InputError: the template is missing or leaves out text, or a message contains something
            other than text.
    """
    prompt, _ = render_checked(tokenizer, messages, add_generation_prompt, **variables)
    return prompt


def render_checked(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    **variables: Any,
) -> tuple[str, Rendering]:
    """Render a conversation like `render`.

    Returns:
        The text, and what it was rendered from: each content in the form that the template writes.
    """
    template = _template(tokenizer)
    values = {
        **tokenizer.special_tokens_map,
        "add_generation_prompt": add_generation_prompt,
        **variables,
    }
    try:
        return _render_checked(template, messages, values)
    except TemplateError as problem:
        roles = ", ".join(message["role"] for message in messages)
        others = [message for message in messages if message["role"] != "system"]
        advice = ""
        if isinstance(problem, RefusedError) and 0 < len(others) < len(messages):
            with contextlib.suppress(InputError):
                _render_checked(template, others, values)
                advice = f"; {NO_SYSTEM}"
        verb = "refuses" if isinstance(problem, RefusedError) else "fails on"
        raise type(problem)(
            f"{_name(tokenizer)}: its chat template {verb} messages of {roles} ({problem}){advice}"
        ) from None
    except InputError as problem:
        raise InputError(f"{_name(tokenizer)}: {problem}") from None


def check_fields(message: Mapping[str, Any], where: str, fields: Collection[str] = FIELDS) -> None:
    """Refuse a message with non-empty fields that the template would not receive.

    Args:
        where: the name of the message in errors.

    Raises:
        InputError: the message has such a field; the error names it.
    """
    if unknown := sorted(name for name, value in message.items() if value and name not in fields):
        raise InputError(
            f"{where} has {unknown[0]}, which is not passed to the chat template; leave it out"
        )


def takes_system(tokenizer: Any) -> bool:
    """Return True if the template mentions `system` and writes a system message.

    Published scripts check only the former. Gemma's template mentions `system` only to raise an
    error.

    Raises:
        InputError: the template is missing.
    """
    if "system" not in _template(tokenizer):
        return False
    try:
        render(tokenizer, PROBE)
    except InputError:
        return False
    return True


def answer_start(tokenizer: Any) -> str:
    """Return the spaces that the template writes between a prompt and the assistant's message.

    Llama 2's template ends a prompt with `[/INST]` and writes an answer as ` text </s>`: one space.
    Most others end the prompt with a newline or a special token: empty. It is empty too if the
    template writes more than spaces, such as empty reasoning.
    """
    question = [{"role": "user", "content": "a"}]
    answered = [*question, {"role": "assistant", "content": "probe."}]
    prompt = render(tokenizer, question)
    try:
        conversation = render(tokenizer, answered, add_generation_prompt=False)
    except InputError:  # the template refuses answers
        return ""
    start, answer, _ = conversation.removeprefix(prompt).partition("probe.")
    is_spaces = conversation.startswith(prompt) and answer and not start.strip(" ")
    return start if is_spaces else ""


def set_variables(tokenizer: Any, values: Mapping[str, Any]) -> None:
    """Give variables of the template a value in each conversation that does not set them itself.

    The template gets statements at its start, and so has another digest.

    Args:
        values: JSON values by name, such as `{"enable_thinking": False}`.

    Raises:
        InputError: see `check_variables`.
    """
    check_variables(tokenizer, values)
    statements = (
        f"{{%- set {name} = {name} if {name} is defined else {_literal(value)} -%}}"
        for name, value in values.items()
    )
    tokenizer.chat_template = "".join(statements) + _template(tokenizer)


def check_variables(tokenizer: Any, names: Collection[str]) -> None:
    """Check that the template uses variables.

    Raises:
        InputError: the template is missing or does not use one, or jaxscore sets it.
    """
    words = {*re.findall(r"\w+", _template(tokenizer))} - OURS - {*tokenizer.special_tokens_map}
    for name in names:
        if not name.isidentifier() or name not in words:
            like = difflib.get_close_matches(name, words, n=1)
            hint = f"; is it {like[0]}?" if like else ""
            raise InputError(
                f"{_name(tokenizer)}: its chat template does not use a variable {name!r}{hint}"
            )


def _literal(value: Any) -> str:
    """Return a JSON value as Jinja writes it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def check_answer_start(tokenizer: Any) -> bool:
    """Check that the text after a prompt is the assistant's answer, and not its reasoning.

    Some templates end a prompt in an open reasoning block, or in a header that names no channel
    yet. The probability of an answer there is not that of the model's answer.

    Returns:
        False if it is reasoning, which no variable of the template ends; see `IN_REASONING`.

    Raises:
        InputError: a variable ends it; the message names it.
    """
    if (block := _open_block(tokenizer)) is None:
        return True
    template = _template(tokenizer)
    for name, value in CLOSED_BY:
        if name in template and _is_closed_by(tokenizer, name, value):
            shown = value if isinstance(value, str) else json.dumps(value)
            raise InputError(
                f"{_name(tokenizer)}: its chat template ends a prompt in an open reasoning block "
                f"({block}), where the model does not answer yet; close it with "
                f"--chat-template-arg {name}={shown}"
            )
    return False


def _is_closed_by(tokenizer: Any, name: str, value: Any) -> bool:
    try:
        return _open_block(tokenizer, **{name: value}) is None
    except InputError:  # the template refuses the value
        return False


def _open_block(tokenizer: Any, **variables: Any) -> str | None:
    """Return the last opening of a reasoning block after a question if it is not closed."""
    start = render(tokenizer, QUESTION, **variables).rpartition(QUESTION[0]["content"])[2]
    for opening in reversed([*OPENING.finditer(start)]):
        is_open = CLOSING.search(start, opening.end()) is None
        return opening.group().strip() if is_open else None
    _, start_of_header, header = start.rpartition("<|start|>")
    is_open = bool(start_of_header) and "<|message|>" not in header
    return f"<|start|>{header}" if is_open and "<|channel|>" in _template(tokenizer) else None


def digest(tokenizer: Any) -> str:
    """Return the SHA-256 of the template in hexadecimal.

    Raises:
        InputError: the template is missing.
    """
    return hashlib.sha256(_template(tokenizer).encode("utf-8", "surrogatepass")).hexdigest()


def _template(tokenizer: Any) -> str:
    try:
        return tokenizer.get_chat_template()
    except ValueError:  # none, or several without a default
        raise InputError(
            f"{_name(tokenizer)}: its tokenizer lacks a chat template, which turns a conversation "
            "into a prompt; use a chat model, or put a chat_template.jinja next to its "
            "tokenizer.json"
        ) from None


def _name(tokenizer: Any) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)


def _render_checked(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> tuple[str, Rendering]:
    """Render a conversation and check that the prompt contains its texts."""
    texts = [_texts(message, number) for number, message in enumerate(messages, start=1)]
    # Whitespace cannot lose anything, and a template may treat it differently.
    markers = [
        [f"probe{k}x{j}x" if text.strip() else text for j, text in enumerate(message_texts)]
        for k, message_texts in enumerate(texts)
    ]
    has_parts = [isinstance(message["content"], list) for message in messages]
    probe = _with_contents(messages, markers, has_parts)
    forms = _choose_forms(template, json.dumps(probe), json.dumps(variables, sort_keys=True))
    rendering = Rendering(template, _with_contents(messages, texts, forms), variables)
    prompt = checkpoint_process.render(*rendering)
    rewritten = [
        k
        for k, message_texts in enumerate(texts)
        if any(text.strip() not in prompt for text in message_texts)
    ]
    if not rewritten:
        return prompt, rendering
    for k in rewritten:
        # No marker before an answer: it may start with reasoning, which templates drop.
        if messages[k]["role"] != "assistant":
            texts[k][0] = f"start{k}x{texts[k][0]}"
        texts[k][-1] += f"end{k}x"
    marked = checkpoint_process.render(template, _with_contents(messages, texts, forms), variables)
    for k in rewritten:
        is_answer = messages[k]["role"] == "assistant"
        if f"end{k}x" not in marked or (not is_answer and f"start{k}x" not in marked):
            raise InputError(_leaves_out(messages, k, "a part of the text"))
    return prompt, rendering


@functools.lru_cache(maxsize=256)
def _choose_forms(template: str, probe: str, variables: str) -> tuple[bool, ...]:
    """Choose the messages whose content is a list of parts, such that no text is lost.

    Args:
        probe: JSON of messages with markers as texts, in the forms to try first.
        variables: JSON of the template's variables.

    Returns:
        For each message, True for a list of parts and False for a string.

    Raises:
        InputError: no form keeps all texts. The error is that of the forms tried first.
    """
    messages, values = json.loads(probe), json.loads(variables)
    texts = [_texts(message, number) for number, message in enumerate(messages, start=1)]
    forms = [isinstance(message["content"], list) for message in messages]
    error: InputError | None = None
    for _ in range(3):  # the original forms, the other form of lost messages, one correction
        try:
            prompt = checkpoint_process.render(
                template, _with_contents(messages, texts, forms), values
            )
        except LimitError:
            raise
        except TemplateError as problem:
            # At first any message, then the system's, may need the other form.
            lost = [
                k
                for k, message in enumerate(messages)
                if error is None or message["role"] == "system"
            ]
            error = error or problem
        else:
            lost = _lost(prompt, messages, texts, forms)
            if not lost:
                return tuple(forms)
            others = [k for k in lost if messages[k]["role"] != "system"]
            error = error or InputError(
                _leaves_out(messages, others[0], "the text") if others else NO_SYSTEM
            )
        forms = [form != (k in lost) for k, form in enumerate(forms)]
    assert error is not None
    raise error


def _texts(message: Mapping[str, Any], number: int) -> list[str]:
    """Return the texts of a message's content.

    Args:
        number: the position of the message in its conversation, from 1.

    Raises:
        InputError: the content has something other than text, or the message another field.
    """
    check_fields(message, f"message {number}", RENDERED_FIELDS)
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InputError(
            f"message {number}: content is {json_kind(content)}, expected a string or a list of "
            "text parts"
        )
    for item in content:
        if not isinstance(item, Mapping) or not isinstance(item.get("text"), str):
            part_type = item.get("type") if isinstance(item, Mapping) else json_kind(item)
            raise InputError(
                f"message {number} has a part of type {part_type}, expected only text: "
                '{"type": "text", "text": "..."}'
            )
    return [item["text"] for item in content]


def _with_contents(
    messages: Sequence[Mapping[str, Any]], texts: Sequence[Sequence[str]], forms: Sequence[bool]
) -> list[dict[str, Any]]:
    """Return the messages with these texts as lists of parts (True in `forms`) or as strings.

    Empty fields are left out: to many templates an empty `tool_calls` is a call of tools.
    """
    return [
        {
            **{name: value for name, value in message.items() if value},
            "content": [{"type": "text", "text": text} for text in message_texts]
            if has_parts
            else "".join(message_texts),
        }
        for message, message_texts, has_parts in zip(messages, texts, forms, strict=True)
    ]


def _lost(
    prompt: str,
    messages: Sequence[Mapping[str, Any]],
    texts: Sequence[Sequence[str]],
    forms: Sequence[bool],
) -> list[int]:
    """Return the indices of messages that are missing in the prompt or out of order.

    A system message may be anywhere: Mistral's templates write it into a user message.
    """
    lost, end = [], 0
    for k, message_texts in enumerate(texts):
        is_system = messages[k]["role"] == "system"
        start = 0 if is_system else end
        for text in filter(str.strip, message_texts):
            start = prompt.find(text, start)
            if start < 0 or (forms[k] and PRINTED_PART.search(prompt[:start])):
                lost.append(k)
                break
        else:
            end = end if is_system else start
    return lost


def _leaves_out(messages: Sequence[Mapping[str, Any]], index: int, lost_text: str) -> str:
    return LEAVES_OUT.format(
        lost_text=lost_text, number=index + 1, n=len(messages), role=messages[index]["role"]
    )

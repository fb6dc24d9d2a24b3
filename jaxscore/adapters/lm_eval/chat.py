"""Conversations as text, by the tokenizer's template, as lm-evaluation-harness' `hf` has them."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.text import checkpoint_process
from jaxscore.text.checkpoint_process import TemplateError

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

"""What stands before a continuation: a system prompt, examples with answers, the item's prompt.

    plain text                      a conversation, by the tokenizer's chat template
    {system}                        system     {system}
    (empty line)                    user       {example's prompt}
    {example's prompt}{answer}      assistant  {answer}
    (empty line)                    user       {prompt}
    {prompt}                        assistant  (the continuation follows)

In a conversation, blanks at the end of a prompt and at the start of a continuation or an answer
are left out: in plain text they join the two, and here a header stands between them. Where the
template itself writes a blank before an answer, the continuation begins with it.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from jaxscore.text import chat_template
from jaxscore.text.encoder import Boundary

SEPARATOR = "\n\n"


@dataclasses.dataclass(frozen=True)
class Example:
    """A prompt with its right answer, both written as an item's prompt and continuation are.

    Attributes:
        key: an item with this key is the example itself, and does not see it.
    """

    prompt: str
    answer: str
    key: Hashable


@dataclasses.dataclass(frozen=True)
class Prompting:
    """How prompts of items become the contexts that a model reads.

    Attributes:
        tokenizer: its chat template makes the text; None is plain text.
        system: the system prompt; None is none, and so is an empty one in a conversation.
        examples: before the prompt, in this order.
        system_end: what stands after the system prompt in plain text.
        opening: text before the first example's prompt, or before the prompt without examples.
        answer_start: what a continuation begins with in a conversation, see
            `chat_template.answer_start`.
    """

    tokenizer: Any = None
    system: str | None = None
    examples: tuple[Example, ...] = ()
    system_end: str = SEPARATOR
    opening: str = ""
    answer_start: str = ""

    def context_of(self, prompt: str, key: Hashable = None) -> str:
        """The text before the continuation.

        Args:
            key: of the item, see `Example`.

        Raises:
            InputError: the template refuses the messages.
        """
        shown = [one for one in self.examples if one.key != key]
        prompts = [*(one.prompt for one in shown), prompt]
        prompts[0] = self.opening + prompts[0]
        answers = [one.answer for one in shown]
        if self.tokenizer is None:
            start = "" if self.system is None else self.system + self.system_end
            pairs = zip(prompts, [*answers, ""], strict=True)
            return start + SEPARATOR.join(one + answer for one, answer in pairs)
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for one, answer in zip(prompts, answers, strict=False):
            messages.append({"role": "user", "content": one.rstrip()})
            messages.append({"role": "assistant", "content": answer.lstrip(" ")})
        messages.append({"role": "user", "content": prompts[-1].rstrip()})
        return chat_template.render(self.tokenizer, messages)

    def continuation_of(self, continuation: str) -> str:
        """The text that is scored after `context_of`; one of blanks alone stays as it is."""
        bare = continuation.lstrip(" ")
        if self.tokenizer is None or not bare:
            return continuation
        return self.answer_start + bare

    def policies(self, known: Mapping[str, Boundary]) -> dict[str, Boundary]:
        """A system's boundaries; in a conversation `joint` is `exact`.

        The header before an answer often ends in a line end, which `joint` would count to the
        continuation as it does with other blanks at the end of a context.
        """
        if self.tokenizer is None:
            return dict(known)
        return {name: "exact" if one == "joint" else one for name, one in known.items()}

    def n_left_out(self, keys: Iterable[Hashable]) -> int:
        """How many items are one of the examples, and so do not see it."""
        own = {one.key for one in self.examples}
        return sum(key in own for key in keys)


PLAIN = Prompting()  # prompts as they are

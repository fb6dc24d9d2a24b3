"""How the answers of an item are read from its responses, and what they are compared by."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxscore.tasks.samples import answer_text


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRules:
    """What an item says of its answers.

    Attributes:
        generator: the model that wrote the responses; Llama 3.1 answers with boxes.
        code: whether answers are Python literals, else they are math.
        symbolic: whether unequal answers are compared by SymPy too.
    """

    generator: str
    code: bool
    symbolic: bool

    def answer(self, response: str | None) -> str | None:
        """What a response's answer is compared by; None without an extractable answer."""
        found = None if response is None else answer_text.extract(response, self.generator)
        return None if found is None else self.form(found)

    def form(self, answer: str) -> str:
        """What an answer is compared by: equal answers have the same form."""
        return (answer_text.code_form if self.code else answer_text.math_form)(answer)


def answer_rules(fields: Mapping[str, Any], first: Mapping[str, Any]) -> AnswerRules:
    """The rules of an item, from its fields.

    Args:
        first: fields of the file's first item, whose `generator` and `dataset` hold for items
            that have none.
    """
    return AnswerRules(
        generator=_text(fields, "generator") or _text(first, "generator"),
        code=(_text(fields, "dataset") or _text(first, "dataset")) == "crux",
        symbolic="amps_hard" in (_text(fields, "subtask") or _text(fields, "task")),
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""

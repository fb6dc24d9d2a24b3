"""Which forms of an answer are read from an item's responses, and what answers are compared by.

The published scripts (arXiv 2502.18581) read the JSON form that their prompts request, and boxes of
generators named Llama-3.1 alone. Responses of other models to other prompts then have no answer at
all. The rule `auto` therefore reads an item as published if

- its generator is one that the published code knows by name (Llama-3.1),
- its dataset is one that the published code treats in a way of its own (crux), or
- any of its responses, also after the first N, holds a quoted `"answer":`, so that the prompt was
  answered in the published form, and a response without it is one without an answer. With gold,
  that would mark a right response as wrong for its form alone, so there all have to hold it.

Published selections stay as they are under these conditions. In all other items, each response is
read by the first of JSON, a box, `answer:` and, if the gold is a number, a last number that it
holds. After `answer:` the published word counts (`7` of `7, because`), so that votes are pooled as
published, unless the gold is a number or has several words, which are compared with the line.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from jaxscore.io.json_input import STRICT
from jaxscore.systems.samples import answer_text

AUTO, PUBLISHED = "auto", "published"
RULES = (AUTO, PUBLISHED, *answer_text.FORMS)
CRUX = "crux"
NO_READABLE_ANSWER = (
    'no response has a readable answer. Accepted forms: JSON with an "answer", \\boxed{...}, '
    "`answer: ...` and, if the gold is a number, a last number; --answer-rule names one of them"
)


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRules:
    """How the answers of one item are read and compared.

    Attributes:
        generator: the model that wrote the responses; Llama 3.1 answers with boxes.
        code: whether answers are Python literals, otherwise they are math.
        symbolic: whether unequal answers are compared by SymPy too.
        forms: the forms that are tried in this order, or None for the published reading.
        numeric: whether the gold is a number.
        word: whether the form `answer` is the published word if there is one, see
            `answer_text.read_first`.
    """

    generator: str
    code: bool
    symbolic: bool
    forms: tuple[str, ...] | None = None
    numeric: bool = False
    word: bool = False

    def read(self, response: str | None) -> tuple[str, str] | None:
        """What a response's answer is compared by, and its form; None without a readable answer."""
        if response is None:
            return None
        if self.forms is None:
            found = answer_text.read_published(response, self.generator)
        else:
            found = answer_text.read_first(
                response, self.forms, numeric=self.numeric, word=self.word
            )
        return None if found is None else (self.form(found[0]), found[1])

    def answer(self, response: str | None) -> str | None:
        """What a response's answer is compared by; None without a readable answer."""
        found = self.read(response)
        return None if found is None else found[0]

    def form(self, answer: str) -> str:
        """What an answer is compared by: equal answers have the same form."""
        return (answer_text.code_form if self.code else answer_text.math_form)(answer)


def answer_rules(
    fields: Mapping[str, Any],
    first: Mapping[str, Any],
    responses: Iterable[Any] = (),
    rule: str = AUTO,
    gold: Any = None,
) -> AnswerRules:
    """The rules of an item, from its fields.

    Args:
        first: fields of the file's first item, whose `generator` and `dataset` hold for items
            that have none.
        responses: all responses of the item.
        rule: one of `RULES`; `auto` is defined in the module's docstring.
        gold: the item's right answer as the file has it, or None.
    """
    generator = _text(fields, "generator") or _text(first, "generator")
    code = (_text(fields, "dataset") or _text(first, "dataset")) == CRUX
    golds = _golds(gold)
    numeric = bool(golds) and all(map(_is_number, golds))
    forms: tuple[str, ...] | None
    if rule == AUTO:
        known = code or answer_text.BOXING in generator
        known = known or _answers_as_published(responses, graded=bool(golds))
        numbers = (answer_text.NUMBER,) if numeric else ()
        forms = None if known else (*answer_text.UNION, *numbers)
    else:
        forms = None if rule == PUBLISHED else (rule,)
    return AnswerRules(
        generator=generator,
        code=code,
        symbolic="amps_hard" in (_text(fields, "subtask") or _text(fields, "task")),
        forms=forms,
        numeric=numeric,
        word=rule == AUTO and not numeric and all(len(str(one).split()) < 2 for one in golds),
    )


def _answers_as_published(responses: Iterable[Any], *, graded: bool) -> bool:
    holds = [answer_text.holds_json(one) for one in responses if isinstance(one, str)]
    return any(holds) and (all(holds) or not graded)


def _golds(gold: Any) -> list[Any]:
    """The acceptable answers; none for a gold that is null or blank."""
    if gold is None or (isinstance(gold, str) and not gold.strip()):
        return []
    if isinstance(gold, str) and gold.lstrip().startswith("["):  # a cell of a table
        with contextlib.suppress(ValueError, RecursionError):
            gold = STRICT.decode(gold)
    return gold if isinstance(gold, list) else [gold]


def _is_number(gold: Any) -> bool:
    if isinstance(gold, str):
        return answer_text.is_number(gold)
    return isinstance(gold, int | float) and not isinstance(gold, bool)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""

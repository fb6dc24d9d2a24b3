r"""The rules that read and compare the answers of a model's responses.

The published scripts (arXiv 2502.18581) read the JSON form that their prompts (ZeroEval) request,
and boxes of generators named Llama-3.1 alone. `read_published` tries in this order

    the first complete object      {"reasoning": "…", "answer": "42"}
    a pattern                      "answer": "42" and more     "answer": 42,     answer: 42
    for Llama-3.1, near the end    so it is $\boxed{42}$

Responses of other models to other prompts then lack an answer. The rule `auto` reads an item as
published if it lacks gold, no response has thoughts, and

- its generator is one that the published code knows by name (Llama-3.1), or
- any of its responses, also after the first N, holds a quoted `"answer":`.

Published selections stay as they are under these conditions. Answers of the dataset crux are
Python literals and always read as published. In all other items, each response is read by the
first of `answer_forms.READERS` that it holds; number and sentence are read if there is gold, by
its type. These answers are compared as in `equal_answers`.

Responses are read once, in time linear in their length, for any text.
"""

import collections
import contextlib
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from jaxscore.io.json_input import STRICT
from jaxscore.systems.selection.answer_forms import (
    ANSWER,
    BOX,
    JSON,
    NUMBER,
    READERS,
    SENTENCE,
    TAG,
    Gold,
    has_thoughts,
    letter_of,
    read_first,
)
from jaxscore.systems.selection.equal_answers import (
    Same,
    are_equal,
    cleaned,
    is_in_sentence,
    readings,
    spelling,
)
from jaxscore.systems.selection.math_answers import sanitise
from jaxscore.systems.selection.numbers_in_text import number_of

# Each value ends at the first character it cannot contain, so each match is tried once.
QUOTED = re.compile(r'"answer"\s*:\s*"([^"]*)"')
BARE = re.compile(r'"answer"\s*:\s*([^,\s]*)')
BARE_KEY = re.compile(r"answer\s*:\s*([^,\s]*)")
BOXED = re.compile(r"\\boxed\{(\w+)\}")
BOX_WITHIN = 30  # characters from the end
BOXING = "Llama-3.1"  # in the name of a generator that may answer with a box
CRUX = "crux"  # dataset whose answers are Python literals

AUTO, PUBLISHED = "auto", "published"
FORMS = tuple(READERS)
Rule = Literal["auto", "published", "tag", "json", "boxed", "answer", "number", "sentence"]
NO_FORM = "none"  # of a response without a readable answer
WITHOUT_GOLD = (TAG, JSON, BOX, ANSWER)  # in this order, since a box often follows `answer:`
BY_GOLD: dict[Gold, tuple[str, ...]] = {
    "number": (*WITHOUT_GOLD, NUMBER),
    "letter": (*WITHOUT_GOLD, SENTENCE),
    "text": (*WITHOUT_GOLD, SENTENCE),
}
NO_READABLE_ANSWER = (
    "no response has a readable answer. Accepted forms: <answer>...</answer>, JSON with an "
    '"answer", \\boxed{...}, `answer: ...` and, by the type of the gold, a last number or the last '
    "sentence; --answer-rule names one of them"
)
RULE_HELP = (
    "published: the reading and comparison of the published scripts. tag, json, boxed, answer, "
    "number, sentence: that form alone, which is <answer>...</answer>; JSON or "
    '"answer": ...; \\boxed{...}; what follows `answer:` or `answer is`; the last number; the last '
    "sentence. auto (default): the first of these that a response holds, number if the gold is "
    "one, sentence if it is a letter or a text; published for the dataset crux and, without gold, "
    'for Llama-3.1 generators and items with a response that holds "answer":'
)


@dataclasses.dataclass(frozen=True, slots=True)
class AnswerRules:
    """The rules by which the answers of one item are read and compared.

    Attributes:
        generator: the model that wrote the responses; Llama 3.1 answers with boxes.
        code: if True, answers are Python literals, otherwise they are math.
        symbolic: if True, unequal published answers are compared by SymPy too.
        forms: the forms that are tried in this order, or None for the published reading.
        gold: the type of the right answer, or None if it is not known.
    """

    generator: str
    code: bool
    symbolic: bool
    forms: tuple[str, ...] | None = None
    gold: Gold | None = None

    def read(self, response: str | None) -> tuple[str, str] | None:
        """Return a response's answer and its form; None without a readable answer."""
        if response is None:
            return None
        if self.forms is None:
            return read_published(response, self.generator)
        return read_first(response, self.forms, self.gold)

    def spelling(self, answer: str) -> str:
        """Return the text by which an answer is compared: equal answers have the same."""
        if self.code:
            return code_form(answer)
        return math_form(answer) if self.forms is None else spelling(answer)

    def accepts(self, gold: str, answer: str, form: str | None, same: Same | None) -> bool:
        """Return True if an answer is equal to the gold.

        Args:
            same: the comparison of answers of different spellings; None if these always differ.
        """
        if self.forms is None or self.code:
            pair = self.spelling(answer), self.spelling(gold)
            return pair[0] == pair[1] or (same is not None and same(*pair))
        if self.gold == "letter" and (letter := letter_of(gold)) is not None:
            return letter == answer
        if form == SENTENCE:
            return is_in_sentence(gold, answer, same)
        texts = [answer] if self.gold == "number" else readings(answer)
        return any(are_equal(gold, text, same) for text in texts)


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """The answers of an item's responses.

    Attributes:
        rules: the rules that read them.
        answers: the answer of each response; None without a readable answer.
        texts: the normalised spelling of each answer for comparison, or None.
        forms: the form of each answer, one of `FORMS`, or None.
    """

    rules: AnswerRules
    answers: list[str | None]
    texts: list[str | None]
    forms: list[str | None]

    @property
    def n_unreadable(self) -> int:
        """The number of responses without a readable answer."""
        return self.answers.count(None)


def read_answers(responses: Iterable[str | None], rules: AnswerRules) -> Answers:
    """Read the answer of each response."""
    pairs = [rules.read(response) for response in responses]
    answers, forms = ([pair and pair[k] for pair in pairs] for k in (0, 1))
    texts = [None if answer is None else rules.spelling(answer) for answer in answers]
    return Answers(rules, answers, texts, forms)


def count_forms(items: Iterable[Answers]) -> dict[str, Any]:
    """Count responses by form of answer and without one, and items that are read as published."""
    counted: collections.Counter[str] = collections.Counter()
    n_published = n_other = 0
    for answers in items:
        n_published += answers.rules.forms is None
        n_other += answers.rules.forms is not None
        counted.update(form or NO_FORM for form in answers.forms)
    return {
        "answer_forms": {form: counted[form] for form in (*FORMS, NO_FORM)},
        "n_read_as_published": n_published,
        "n_read_by_form": n_other,
    }


def form_lines(counts: Mapping[str, Any]) -> list[str]:
    """Return `count_forms` as a line, or nothing if all items are read as published."""
    if not (n := counts.get("n_read_by_form")):
        return []
    forms = ", ".join(f"{k} {form}" for form, k in counts["answer_forms"].items() if k)
    n_items = n + counts["n_read_as_published"]
    return [f"{n} of {n_items} items are read by the form of their answers: {forms}"]


def unreadable_line(n: int, n_responses: int) -> list[str]:
    """Return the line on responses without a readable answer, which are wrong; none of 0."""
    if not n:
        return []
    verbs = ("has", "counts") if n == 1 else ("have", "count")
    return [f"{n} of {n_responses} responses {verbs[0]} no readable answer and {verbs[1]} as wrong"]


def answer_rules(
    fields: Mapping[str, Any],
    first: Mapping[str, Any],
    responses: Iterable[Any] = (),
    rule: str = AUTO,
    gold: Any = None,
) -> AnswerRules:
    """Return the rules of an item, from its fields.

    Args:
        first: fields of the file's first item, whose `generator` and `dataset` hold for items
            that have none.
        responses: all responses of the item.
        rule: one of `Rule`; `auto` is defined in the module's docstring.
        gold: the item's right answer as the file has it, or None.
    """
    generator = _text(fields, "generator") or _text(first, "generator")
    code = (_text(fields, "dataset") or _text(first, "dataset")) == CRUX
    responses = [text for text in responses if isinstance(text, str)]
    gold_type = _gold_type(_golds(gold))
    forms: tuple[str, ...] | None
    if rule == AUTO:
        is_published = code or (gold_type is None and _are_published(responses, generator))
        forms = WITHOUT_GOLD if gold_type is None else BY_GOLD[gold_type]
        forms = None if is_published else forms
    else:
        forms = None if rule == PUBLISHED else (rule,)
    return AnswerRules(
        generator=generator,
        code=code,
        symbolic="amps_hard" in (_text(fields, "subtask") or _text(fields, "task")),
        forms=forms,
        gold=gold_type,
    )


def _are_published(responses: Iterable[str], generator: str) -> bool:
    """Return True if responses are answered in the published form."""
    if any(has_thoughts(text) for text in responses):
        return False
    return BOXING in generator or any(_json(text) is not None for text in responses)


def _golds(gold: Any) -> list[Any]:
    """Return the acceptable answers, or verdicts; empty for gold that is null or whitespace."""
    if gold is None or (isinstance(gold, str) and not gold.strip()):
        return []
    if isinstance(gold, str) and gold.lstrip().startswith("["):  # a cell of a table
        with contextlib.suppress(ValueError, RecursionError):
            value = STRICT.decode(gold)
            if isinstance(value, list) and all(isinstance(entry, str | bool) for entry in value):
                return value
    return gold if isinstance(gold, list) else [gold]


def _gold_type(golds: Sequence[Any]) -> Gold | None:
    """Return the type of the acceptable answers, or None without any."""
    texts = [str(gold) for gold in golds if not isinstance(gold, bool)]
    if not texts:
        return None
    if all(number_of(cleaned(text)) is not None for text in texts):
        return "number"
    if all(re.fullmatch(r"\s*\(?[A-Z]\)?[.:]?\s*", text) for text in texts):
        return "letter"
    return "text"


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def read_published(response: str, generator: str = "") -> tuple[str, str] | None:
    """Return the (answer, form) that the published scripts read; None if there is none.

    An empty answer counts, and so does null, as "None".
    """
    if (answer := _json(response)) is not None:
        return answer, JSON
    if match := BARE_KEY.search(response):
        return match.group(1), ANSWER
    if BOXING in generator and "boxed" in response[-BOX_WITHIN:]:
        match = BOXED.search(response)
        return (match.group(1), BOX) if match else None
    return None


def _json(response: str) -> str | None:
    value = first_object(response)
    if value is not None and "answer" in value:
        return str(value["answer"])
    match = QUOTED.search(response) or BARE.search(response)
    return match.group(1) if match else None


def first_object(response: str) -> dict[str, Any] | None:
    """Return the first text in balanced braces, as JSON; None if there is none, or it is not JSON.

    As in the published reading, braces in strings count too, and line feeds are left out because
    models break lines inside strings.
    """
    start, depth = -1, 0
    for brace in re.finditer("[{}]", response):
        if brace.group() == "{":
            start = brace.start() if depth == 0 else start
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                text = response[start : brace.end()].replace("\n", "")
                with contextlib.suppress(ValueError, RecursionError):  # thousands of digits too
                    value: dict[str, Any] = json.loads(text)
                    return value
                return None
    return None


def math_form(answer: str) -> str:
    """Return the normalised spelling of a math answer."""
    return sanitise(_one_letter(answer))


def code_form(answer: str) -> str:
    """Return the normalised spelling of a Python literal: without the quotes around it."""
    return _one_letter(answer).strip("'\"").replace("\n", "\\n")


def _one_letter(answer: str) -> str:
    """Shorten `AAAAA` to `A`: one prompt asks to repeat the letter. As published, also `1111`."""
    answer = answer.strip()
    return answer[0] if len(answer) >= 4 and answer[:4] == answer[0] * 4 else answer

"""`usc-select`: the response that a model called the most consistent.

Universal self-consistency (Chen et al., arXiv 2311.17311) shows a model several responses,
numbered from 0, and asks which agrees most with the others. Here its reply is read.
"""

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxscore.errors import InputError
from jaxscore.systems.samples import sample_items
from jaxscore.systems.samples.answer_rules import AUTO, AnswerRules, answer_rules
from jaxscore.systems.samples.answer_text import BOX
from jaxscore.systems.samples.sample_items import Item, Result

CHOSEN = re.compile(r"Response\s+(\d+)")
DATASET_TYPES = ("open", "close")
OWN_FIELD = "fallback"  # of a record that the reply did not decide
NONE_NAMED, OUT_OF_RANGE, NO_ANSWER = "none_named", "out_of_range", "no_answer"
# Why the reply did not decide, and what people read of it.
FALLBACKS = {
    NONE_NAMED: "the reply names no response",
    OUT_OF_RANGE: "the reply names a response that does not exist",
    NO_ANSWER: "the response that the reply names has no extractable answer",
}


def load(path: Path, limit: int | None = None) -> list[Item]:
    """The first `limit` items of a file, see `sample_items.load`: `output` holds the reply."""
    return sample_items.load(path, limit)


def chosen(reply: str) -> int | None:
    """The number of the last `Response k` in a reply; None where there is none."""
    numbers = CHOSEN.findall(reply)
    if not numbers:
        return None
    try:
        return int(numbers[-1])
    except ValueError:  # more digits than Python reads
        return sys.maxsize


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The answers of an item's responses.

    Attributes:
        rules: by which they were read.
        answers: what each response is compared by; None without a readable answer.
        forms: of each answer, see `AnswerRules.read`.
    """

    rules: AnswerRules
    answers: list[str | None]
    forms: list[str | None]


def read_answers(
    items: Sequence[Item], rule: str = AUTO, gold: str | None = None
) -> list[Reading | None]:
    """The answers of each item; None for an item whose `responses` cannot be used.

    Args:
        rule, gold: as of `selection.load`.
    """
    out: list[Reading | None] = []
    for item in items:
        try:
            texts = sample_items.responses(item, "responses")
        except InputError:  # `evaluate` reports it
            out.append(None)
            continue
        right = None if gold is None else item.fields.get(gold)
        rules = answer_rules(item.fields, items[0].fields, texts, rule, right)
        found = [rules.read(text) for text in texts]
        answers, forms = ([one and one[k] for one in found] for k in (0, 1))
        out.append(Reading(rules, answers, forms))
    return out


def evaluate(
    items: Sequence[Item], dataset_type: str, readings: Sequence[Reading | None] | None = None
) -> list[Result]:
    """Each item with the chosen response as its `output`.

    Response 0 where the reply names none or one that does not exist. For the `close` type, a
    choice without a readable answer gives way to the first response with one, if any has: all of
    them are looked at, where the published script looks at eight. In the published reading boxes
    are no answers here, as in that script. What the reply did not decide is a fallback, and its
    record says which.

    Args:
        readings: of `read_answers`. Without them the `close` type reads by the rule `auto`.
    """
    closed = dataset_type == "close"
    if readings is None:
        readings = read_answers(items) if closed else [None] * len(items)
    return [_evaluate(*pair, closed=closed) for pair in zip(items, readings, strict=True)]


def _evaluate(item: Item, reading: Reading | None, *, closed: bool) -> Result:
    """One item; `reading` is None if no answers are read."""
    fields = {name: value for name, value in item.fields.items() if name != OWN_FIELD}
    try:
        reply = sample_items.responses(item, "output", 1)[0]
        if reply is None:
            raise InputError('field "output": the reply is no text')
        texts = sample_items.responses(item, "responses")
        index = chosen(reply)
        fallback = why = None
        if index is None:
            index, fallback, why = 0, NONE_NAMED, "the reply names no response"
        elif index >= len(texts):
            why = f"the reply names response {index} of {len(texts)}"
            index, fallback = 0, OUT_OF_RANGE
        usable = [True] * len(texts)
        if closed and reading is not None:
            boxes = reading.rules.forms is not None  # in the published reading they do not count
            usable = [form is not None and (boxes or form != BOX) for form in reading.forms]
            if not usable[index] and any(usable):
                fallback = fallback or NO_ANSWER
                why = why or f"response {index}, which the reply names, has no extractable answer"
                index = usable.index(True)
        note = why and f"{why}, so response {index} is taken"
        if texts[index] is None:
            raise InputError(f'field "responses": number {index} is chosen and is no text')
    except InputError as problem:
        record = {**fields, "output": [], "error": str(problem)}
        return Result(item.name, record, str(problem))
    record = {**fields, "output": [texts[index]]}
    if reading is not None and reading.rules.forms is not None:
        record["answer_form"] = reading.forms[index]
    if fallback is not None:
        record[OWN_FIELD] = fallback
    return Result(
        item.name, record, answered=usable[index], fallback=fallback, note=note, index=index
    )

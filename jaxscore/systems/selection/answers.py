r"""The final answer of a model's response: which forms are read, and how.

The published scripts (arXiv 2502.18581) read the JSON form that their prompts (ZeroEval) request,
and boxes of generators named Llama-3.1 alone. `read_published` tries in this order

    the first complete object      {"reasoning": "…", "answer": "42"}
    a pattern                      "answer": "42" and more     "answer": 42,     answer: 42
    for Llama-3.1, near the end    so it is $\boxed{42}$

Responses of other models to other prompts then have no answer at all. `read_first` reads the forms
that they use, each for itself:

    json     the same object, or the same pattern with a quoted "answer"
    boxed    the last \boxed{...} that is closed and not empty
    answer   the rest of the line after the last `answer:` or `answer is:`, without Markdown
    number   the last number

The rule `auto` reads an item as published if

- its generator is one that the published code knows by name (Llama-3.1),
- its dataset is one that the published code treats in a way of its own (crux), or
- any of its responses, also after the first N, holds a quoted `"answer":`: the prompt was answered
  in the published form, and a response without it has no answer. With gold that would mark a right
  response as wrong for its form alone, so that all have to hold it.

Published selections stay as they are under these conditions. In all other items, each response is
read by the first of json, boxed, answer and, if the gold is a number, number. After `answer:` the
published word counts (`7` of `7, because`), so that votes are pooled as published, unless the gold
is a number or has several words, which are compared with the line.

For a numeric gold, text around a number is left out: `366 days` is 366. Of a line the first number
counts, and of a box the only one, so that 2^{12} is not 12.

Responses are read once, in time linear in their length, whatever a model wrote.
"""

import collections
import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxscore.io.json_input import STRICT
from jaxscore.systems.selection.math_answers import sanitise

# Each value ends at the first character it cannot hold, so that no match is tried twice.
QUOTED = re.compile(r'"answer"\s*:\s*"([^"]*)"')
BARE = re.compile(r'"answer"\s*:\s*([^,\s]*)')
BARE_KEY = re.compile(r"answer\s*:\s*([^,\s]*)")
BOXED = re.compile(r"\\boxed\{(\w+)\}")
BOX_WITHIN = 30  # characters from the end
BOXING = "Llama-3.1"  # in the name of a generator that may answer with a box
CRUX = "crux"  # dataset whose answers are Python literals

AUTO, PUBLISHED = "auto", "published"
JSON, ANSWER, BOX, NUMBER = "json", "answer", "boxed", "number"
FORMS = (JSON, ANSWER, BOX, NUMBER)
RULES = (AUTO, PUBLISHED, *FORMS)
NO_FORM = "none"  # of a response without a readable answer
# In this order, since a box often stands after `answer:` and not the reverse.
UNION = (JSON, BOX, ANSWER)
BOX_OPENING = r"\boxed{"
WORD_IN_BOX = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}\\]*)\}")
# The markup around `answer:`, as **Answer:** or **Answer**:, and line ends after it.
ANSWER_KEY = re.compile(r"\banswer(?:[ \t]{1,4}is)?[ \t*_]{0,8}:[ \t*_]{0,8}\n{0,2}", re.IGNORECASE)
MARKUP = " \t\r*_`"
# A minus belongs to a number if nothing stands before it that it could be subtracted from.
ONE_NUMBER = re.compile(
    r"(?:(?<![\w.)}\]])[-\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
)
NO_READABLE_ANSWER = (
    'no response has a readable answer. Accepted forms: JSON with an "answer", \\boxed{...}, '
    "`answer: ...` and, if the gold is a number, a last number; --answer-rule names one of them"
)
RULE_HELP = (
    "published: the reading of the published scripts. json, answer, boxed, number: that form "
    'alone, which is JSON or "answer": ...; the line after the last `answer:`; the last closed '
    "\\boxed{...}; the last number. auto (default): published for Llama-3.1 generators, the "
    'dataset crux, and items with a response that holds "answer": (with gold, if all hold it); for '
    "other items the first of json, boxed, answer and, if the gold is a number, number that a "
    "response holds"
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
        word: whether the form `answer` is the published word if there is one, see `read_first`.
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
            found = read_published(response, self.generator)
        else:
            found = read_first(response, self.forms, numeric=self.numeric, word=self.word)
        return None if found is None else (self.form(found[0]), found[1])

    def form(self, answer: str) -> str:
        """What an answer is compared by: equal answers have the same form."""
        return (code_form if self.code else math_form)(answer)


@dataclasses.dataclass(frozen=True, slots=True)
class Answers:
    """The answers of an item's responses.

    Attributes:
        rules: by which they were read.
        texts: what each response is compared by; None without a readable answer.
        forms: of each answer, one of `FORMS`; None without a readable answer.
    """

    rules: AnswerRules
    texts: list[str | None]
    forms: list[str | None]


def read_answers(responses: Iterable[str | None], rules: AnswerRules) -> Answers:
    """Read the answer of each response."""
    found = [rules.read(response) for response in responses]
    texts, forms = ([answer and answer[k] for answer in found] for k in (0, 1))
    return Answers(rules, texts, forms)


def count_forms(items: Iterable[Answers]) -> dict[str, Any]:
    """Number of responses by form of answer, and number of items that are read as published."""
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
    """`count_forms` as a line of a command, or nothing if all items are read as published."""
    if not (n := counts.get("n_read_by_form")):
        return []
    forms = ", ".join(f"{k} {form}" for form, k in counts["answer_forms"].items() if k)
    n_items = n + counts["n_read_as_published"]
    return [f"{n} of {n_items} items are not in the published form; responses by form: {forms}"]


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
        known = code or BOXING in generator or _are_published(responses, graded=bool(golds))
        forms = None if known else (*UNION, NUMBER) if numeric else UNION
    else:
        forms = None if rule == PUBLISHED else (rule,)
    return AnswerRules(
        generator=generator,
        code=code,
        symbolic="amps_hard" in (_text(fields, "subtask") or _text(fields, "task")),
        forms=forms,
        numeric=numeric,
        word=rule == AUTO and not numeric and all(len(str(answer).split()) < 2 for answer in golds),
    )


def _are_published(responses: Iterable[Any], *, graded: bool) -> bool:
    """Whether responses are answered in the published form."""
    holds = [_json(text) is not None for text in responses if isinstance(text, str)]
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
    """Whether a right answer is one number, as 1,000 or $3.50 or 1/2."""
    if isinstance(gold, str):
        return _value(gold) is not None
    return isinstance(gold, int | float) and not isinstance(gold, bool)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def read_published(response: str, generator: str = "") -> tuple[str, str] | None:
    """The answer as the published scripts read it, and its form; None if there is none.

    An empty answer is an answer, and so is null, as "None".
    """
    if (answer := _json(response)) is not None:
        return answer, JSON
    if match := BARE_KEY.search(response):
        return match.group(1), ANSWER
    if BOXING in generator and "boxed" in response[-BOX_WITHIN:]:
        match = BOXED.search(response)
        return (match.group(1), BOX) if match else None
    return None


def read_first(
    response: str, forms: Sequence[str], *, numeric: bool = False, word: bool = False
) -> tuple[str, str] | None:
    """The answer of the first form that the response holds, and that form; None without any.

    Args:
        forms: of `FORMS`, in the order in which they are tried.
        numeric: the gold is a number: a box or a line that is none is read as the number in it,
            see above; a line without one is no answer.
        word: `answer:` is read as published, unless nothing or only Markdown follows it.
    """
    for form in forms:
        answer = _answer_word(response) if word and form == ANSWER else None
        answer = answer or READERS[form](response)
        if answer is not None and numeric and form in (BOX, ANSWER):
            answer = _number_in(answer, form)
        if answer is not None:
            return answer, form
    return None


def _json(response: str) -> str | None:
    found = first_object(response)
    if found is not None and "answer" in found:
        return str(found["answer"])
    match = QUOTED.search(response) or BARE.search(response)
    return match.group(1) if match else None


def _last_box(response: str) -> str | None:
    start = response.rfind(BOX_OPENING)
    depth, inside = 1, start + len(BOX_OPENING)
    for brace in re.finditer("[{}]", response[inside:]) if start >= 0 else ():
        depth += 1 if brace.group() == "{" else -1
        if not depth:
            content = response[inside : inside + brace.start()].strip()
            word = WORD_IN_BOX.fullmatch(content)
            return (word.group(1).strip() if word else content) or None
    return None


def _answer_line(response: str) -> str | None:
    last = _last_match(ANSWER_KEY, response)
    if last is None:
        return None
    return _without_markup(response[last.end() :].partition("\n")[0])


def _answer_word(response: str) -> str | None:
    """The published reading of `answer:`."""
    match = BARE_KEY.search(response)
    return _without_markup(match.group(1)) if match else None


def _without_markup(text: str) -> str | None:
    return text.strip(MARKUP).removesuffix(".").rstrip(MARKUP) or None


def _value(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        value = float(math_form(text))
        return value if math.isfinite(value) else None
    return None


def _number_in(text: str, form: str) -> str | None:
    """A box or a line as a number, see `read_first`."""
    if _value(text) is not None:
        return text
    numbers = [match.group() for match in ONE_NUMBER.finditer(text)]
    if form == BOX and len(numbers) != 1:
        return text
    return _plain_minus(numbers[0]) if numbers else None


def _last_number(response: str) -> str | None:
    last = _last_match(ONE_NUMBER, response)
    return None if last is None else _plain_minus(last.group())


def _plain_minus(number: str) -> str:
    return number.replace("\u2212", "-")


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    last = collections.deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None


READERS: dict[str, Callable[[str], str | None]] = {
    JSON: _json,
    BOX: _last_box,
    ANSWER: _answer_line,
    NUMBER: _last_number,
}


def first_object(response: str) -> dict[str, Any] | None:
    """The first text in balanced braces, as JSON; None if there is none, or it is not JSON.

    Braces are counted wherever they stand, in strings too, and line feeds are left out, as in
    the published reading: models break lines inside strings.
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
                    found: dict[str, Any] = json.loads(text)
                    return found
                return None
    return None


def math_form(answer: str) -> str:
    """What math answers are compared by."""
    return sanitise(_one_letter(answer))


def code_form(answer: str) -> str:
    """What answers that are Python literals are compared by: without the quotes around them."""
    return _one_letter(answer).strip("'\"").replace("\n", "\\n")


def _one_letter(answer: str) -> str:
    """`AAAAA` as `A`: one prompt asks to repeat the letter. As published, `1111` is `1` too."""
    answer = answer.strip()
    return answer[0] if len(answer) >= 4 and answer[:4] == answer[0] * 4 else answer

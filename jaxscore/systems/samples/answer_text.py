r"""The final answer in a model's response.

The published prompts (ZeroEval) ask for a JSON object with `reasoning` and `answer`; models often
write something close to it. `read_published` tries three readings, the first that finds something
counts:

    the first complete object      {"reasoning": "…", "answer": "42"}
    a pattern                      "answer": "42" and more     "answer": 42,     answer: 42
    for Llama-3.1, near the end    so it is $\boxed{42}$

`read_first` reads the forms that models write to other prompts, each for itself:

    json     the same object, or the same pattern with a quoted "answer"
    boxed    the last \boxed{...} that is closed and not empty
    answer   the rest of the line after the last `answer:` or `answer is:`, without Markdown
    number   the last number

For a numeric gold, text around a number is left out: `366 days` is 366. Of a line the first number
counts, and of a box the only one, so that 2^{12} is not 12.

Responses are read once, in time linear in their length, whatever a model wrote.
"""

import collections
import contextlib
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxscore.systems.samples.math_answers import sanitise

# Each value ends at the first character it cannot hold, so that no match is tried twice.
QUOTED = re.compile(r'"answer"\s*:\s*"([^"]*)"')
BARE = re.compile(r'"answer"\s*:\s*([^,\s]*)')
BARE_KEY = re.compile(r"answer\s*:\s*([^,\s]*)")
BOXED = re.compile(r"\\boxed\{(\w+)\}")
BOX_WITHIN = 30  # characters from the end
BOXING = "Llama-3.1"  # in the name of a generator that may answer with a box

JSON, ANSWER, BOX, NUMBER = "json", "answer", "boxed", "number"
FORMS = (JSON, ANSWER, BOX, NUMBER)
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


def read_published(response: str, generator: str = "") -> tuple[str, str] | None:
    """The answer as the published scripts read it, and its form; None if there is none.

    An empty answer is an answer, and so is null, as "None".
    """
    if (found := _json(response)) is not None:
        return found, JSON
    if match := BARE_KEY.search(response):
        return match.group(1), ANSWER
    if BOXING in generator and "boxed" in response[-BOX_WITHIN:]:
        match = BOXED.search(response)
        return (match.group(1), BOX) if match else None
    return None


def extract(response: str, generator: str = "") -> str | None:
    """The answer of `read_published` without its form."""
    found = read_published(response, generator)
    return None if found is None else found[0]


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
        found = _answer_word(response) if word and form == ANSWER else None
        found = found or READERS[form](response)
        if found is not None and numeric and form in (BOX, ANSWER):
            found = _number_in(found, form)
        if found is not None:
            return found, form
    return None


def holds_json(response: str) -> bool:
    """Whether a response has an answer in the JSON form of the published prompts."""
    return _json(response) is not None


def is_number(text: str) -> bool:
    """Whether a right answer is one number, as 1,000 or $3.50 or 1/2."""
    return _value(text) is not None


def _value(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        value = float(math_form(text))
        return value if math.isfinite(value) else None
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
            found = response[inside : inside + brace.start()].strip()
            word = WORD_IN_BOX.fullmatch(found)
            return (word.group(1).strip() if word else found) or None
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


def _number_in(found: str, form: str) -> str | None:
    """A box or a line as a number, see `read_first`."""
    if _value(found) is not None:
        return found
    numbers = [one.group() for one in ONE_NUMBER.finditer(found)]
    if form == BOX and len(numbers) != 1:
        return found
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
    """The first text in balanced braces, as JSON; None where there is none or it is not JSON.

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
                return _object(response[start : brace.end()].replace("\n", ""))
    return None


def _object(text: str) -> dict[str, Any] | None:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also a number of thousands of digits
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

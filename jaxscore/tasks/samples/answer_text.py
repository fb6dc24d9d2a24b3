r"""The final answer in a model's response.

The published prompts (ZeroEval) ask for a JSON object with `reasoning` and `answer`; models often
write something close to it. Three readings are tried, the first that finds something counts:

    the first complete object      {"reasoning": "…", "answer": "42"}
    a pattern                      "answer": "42" and more     "answer": 42,     answer: 42
    for Llama-3.1, near the end    so it is $\boxed{42}$

Responses are read once, in time linear in their length, whatever a model wrote.
"""

import json
import re
from typing import Any

from jaxscore.tasks.samples.math_answers import sanitise

# Each value ends at the first character it cannot hold, so that no match is tried twice.
QUOTED = re.compile(r'"answer"\s*:\s*"([^"]*)"')
BARE = re.compile(r'"answer"\s*:\s*([^,\s]*)')
BARE_KEY = re.compile(r"answer\s*:\s*([^,\s]*)")
BOXED = re.compile(r"\\boxed\{(\w+)\}")
BOX_WITHIN = 30  # characters from the end
BOXING = "Llama-3.1"  # in the name of a generator that may answer with a box


def extract(response: str, generator: str = "") -> str | None:
    """The answer as it stands in the response; None where there is none.

    An empty answer is an answer, and so is null, as "None".
    """
    found = first_object(response)
    if found is not None and "answer" in found:
        return str(found["answer"])
    for pattern in (QUOTED, BARE, BARE_KEY):
        if match := pattern.search(response):
            return match.group(1)
    if BOXING in generator and "boxed" in response[-BOX_WITHIN:]:
        match = BOXED.search(response)
        return match.group(1) if match else None
    return None


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

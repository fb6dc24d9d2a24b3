"""`livecode-select` and `livecode-parse`: the code in a response, as LiveCodeBench reads it.

LiveCodeBench (arXiv 2403.07974) grades a file of `{"question_id": …, "code_list": [code]}`.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.samples import sample_items
from jaxscore.systems.samples.sample_items import Item, Result

OPENING = "```python"
CLOSING = "\n```"
UNKNOWN = "unknown_id"  # as published, for an item without a question_id
BLANKS = re.compile(r"\s*")


def code(response: str) -> str:
    r"""The Python blocks of a response, each stripped, with a blank line between them.

    A block goes from a line that ends in "```python" to the next line that starts with "```"; one
    that is never closed is none. Empty where there is no block. Takes time linear in the length:
    the pattern "```python\s*\n(.*?)\n```" would look for the end again from every start.
    """
    blocks = []
    last_closing = response.rfind(CLOSING)
    start = response.find(OPENING)
    while start >= 0:
        after = start + len(OPENING)
        blanks = BLANKS.match(response, after)
        body = response.rfind("\n", after, blanks.end() if blanks else after) + 1
        if 0 < body <= last_closing:
            end = response.index(CLOSING, body)
            blocks.append(response[body:end].strip())
            after = end + len(CLOSING)
        elif 0 < body == last_closing + 1 and "\n" in response[after:last_closing]:
            blocks.append("")  # only blank lines up to the last end
            after = last_closing + len(CLOSING)
        start = response.find(OPENING, after)
    return "\n\n".join(blocks)


def load(path: Path, limit: int | None = None) -> list[Item]:
    """The first `limit` items of a file, see `sample_items.load`."""
    return sample_items.load(path, limit)


def evaluate_select(items: Sequence[Item], best_n: int) -> list[Result]:
    """The code of the response with the highest confidence among the first N, the first of equal
    ones, whether or not there is code in it."""
    return [_evaluate(one, best_n) for one in items]


def evaluate_parse(items: Sequence[Item]) -> list[Result]:
    """The code of the first response."""
    return [_evaluate(one, None) for one in items]


def _evaluate(item: Item, best_n: int | None) -> Result:
    note, index = None, 0
    try:
        if best_n is None:
            response = sample_items.responses(item, "output", 1)[0]
        else:
            responses = sample_items.responses(item, "output", best_n)
            confidences = sample_items.confidences(item, best_n, len(responses))
            index = most_certain(confidences)
            response = responses[index]
            note = sample_items.oddities([], confidences)
        if response is None:
            raise InputError("the chosen response is no text")
    except InputError as problem:
        record = {**_record(item, ""), "error": str(problem)}
        return Result(item.name, record, str(problem))
    found = code(response)
    if "question_id" not in item.fields:
        missing = f'no field "question_id", written as {UNKNOWN!r}'
        note = f"{note}; {missing}" if note else missing
    return Result(item.name, _record(item, found), answered=bool(found), note=note, index=index)


def most_certain(confidences: Sequence[float | None]) -> int:
    """The place of the highest confidence, the first of equal ones and of unknown ones alone."""
    known = [value for value in confidences if value is not None]
    return confidences.index(max(known)) if known else 0


def _record(item: Item, found: str) -> dict[str, object]:
    return {"question_id": item.fields.get("question_id", UNKNOWN), "code_list": [found]}


def counts(results: Sequence[Result]) -> dict[str, Any]:
    """How many items have code, none, or failed."""
    found = sample_items.summarise(results)
    return {
        "n_items": found.n_items,
        "n_with_code": found.n_decided - found.n_unanswered,
        "n_without_code": found.n_unanswered,
        "n_failed": len(found.failures),
    }


def headline(summary: Mapping[str, Any]) -> str:
    """`counts` in one line."""
    n, n_items, without = (summary[k] for k in ("n_with_code", "n_items", "n_without_code"))
    return f"{n} of {n_items} items have code, {without} have none"

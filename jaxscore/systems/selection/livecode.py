"""`livecode-select` and `livecode-parse`: the code in a response, as LiveCodeBench reads it.

LiveCodeBench (arXiv 2403.07974) grades a file of `{"question_id": …, "code_list": [code]}`.
"""

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.systems import selection
from jaxscore.systems.selection import (
    HELP_OF_GOLD,
    CodeRecord,
    GradedSettings,
    compared,
    first_n,
)
from jaxscore.systems.selection.choosing import (
    Candidates,
    Result,
    Selection,
    certain_candidates,
    declare,
)
from jaxscore.systems.selection.grading import Chooser
from jaxscore.systems.selection.ranking import Choice
from jaxscore.systems.settings import Settings
from jaxscore.systems.system import ArrayOutput

EXIT_CODES = """
exit code: 0 all written, 1 some items failed (they hold `error`, and no code),
           2 unusable input or no usable item; nothing is written.
"""
HELP_OF_VERDICTS = HELP_OF_GOLD.format(
    holds="a list of true or false for each response, as a run of its code has shown",
    beside=" and an oracle's",
)
SELECT_HELP = (
    """\
For each problem take the response with the highest self-certainty among the
first N, with or without code in it, and write its code for LiveCodeBench.

input, a JSON array as `self-certainty` writes it:
  [{"question_id": "abc301_a", "confidence_list": [14.2, 17.9],
    "output": ["Use a loop:\\n```python\\nprint(1)\\n```",
               "```python\\nprint(2)\\n```"]}]

output, the response's ```python blocks, stripped and joined by a blank line:
  [{"question_id": "abc301_a", "code_list": ["print(2)"]}]
  N and what it leaves out are printed. Beside OUT lies OUT.run.json. The
  default name has -firstN with --limit N.

"""
    + f"{textwrap.fill(HELP_OF_VERDICTS, 80)}\n{EXIT_CODES}"
)
PARSE_HELP = (
    """\
Write the code of each problem's first response for LiveCodeBench. Confidences
are not read: this is for greedy outputs, and for files that another step has
selected already.

input, a JSON array:
  [{"question_id": "abc301_a",
    "output": ["Use a loop:\\n```python\\nprint(1)\\n```"]}]

output, the response's ```python blocks, stripped and joined by a blank line:
  [{"question_id": "abc301_a", "code_list": ["print(1)"]}]
  Beside OUT lies OUT.run.json. The default name has -firstN with --limit N.
"""
    + EXIT_CODES
)
OPENING = "```python"
CLOSING = "\n```"
UNKNOWN = "unknown_id"  # as published, for an item without a question_id
BLANKS = re.compile(r"\s*")


def code(response: str) -> str:
    r"""The Python blocks of a response, each stripped, with a blank line between them.

    A block goes from a line that ends in "```python" to the next line that starts with "```"; one
    that is never closed is none. Empty if there is no block. Takes time linear in the length:
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


class CodeSelection(Selection):
    """The code of a response, whether or not there is any in it."""

    field = "code_list"

    def choose(self, candidates: Candidates) -> Choice:
        """The response with the highest confidence, the first of equal or unknown ones."""
        index = most_certain(candidates.confidences)
        if candidates.responses[index] is None:
            return Choice(index, error="the chosen response is no text")
        notes = selection.oddities([], candidates.confidences)
        if "question_id" not in candidates.fields:
            notes.append(f'no field "question_id", written as {UNKNOWN!r}')
        return Choice(index, notes=notes)

    def record(self, candidates: Candidates, choice: Choice) -> dict[str, Any]:
        return _record(candidates.fields, candidates.responses[choice.index] or "")

    def failed_record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return _record(fields, "")

    def summary(self, results: Sequence[Result]) -> dict[str, Any]:
        """Counts of items with code, without and failed."""
        usable = [result for result in results if result.is_usable]
        n_with_code = sum(result.record["code_list"] != [""] for result in usable)
        return {
            "n_items": len(results),
            "n_with_code": n_with_code,
            "n_without_code": len(usable) - n_with_code,
            "n_failed": len(results) - len(usable),
        }

    def headline(self, summary: Mapping[str, Any]) -> str:
        n, n_items, without = (summary[k] for k in ("n_with_code", "n_items", "n_without_code"))
        return f"{n} of {n_items} items have code, {without} have none"


def _record(fields: Mapping[str, Any], response: str) -> dict[str, Any]:
    return {"question_id": fields.get("question_id", UNKNOWN), "code_list": [code(response)]}


class FirstCode(CodeSelection):
    """The first response."""

    def read(self, fields: Mapping[str, Any]) -> Candidates:
        return Candidates(fields, selection.responses(fields, "output", 1))


class MostCertainCode(CodeSelection):
    """The response with the highest confidence among the first N."""

    way = "most certain"

    def read(self, fields: Mapping[str, Any]) -> Candidates:
        return certain_candidates(fields, self.settings.best_n)

    def ways(self, candidates: Candidates, choice: Choice) -> dict[str, Chooser]:
        """This way alone: code has no answers to compare."""
        return {self.way: lambda n: most_certain(candidates.confidences[:n])}


def most_certain(confidences: Sequence[float | None]) -> int:
    """Index of the highest confidence, the first of equal ones and of unknown ones alone."""
    known = [value for value in confidences if value is not None]
    return confidences.index(max(known)) if known else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectSettings(GradedSettings):
    """Settings of `livecode-select`; N is 16 as in the published script."""

    best_n: int = first_n(16)


LIVECODE_SELECT = declare(
    MostCertainCode,
    name="livecode-select",
    help=SELECT_HELP,
    settings=SelectSettings,
    record=CodeRecord,
    array=ArrayOutput("-livecode-N[-firstN]", lambda chosen, _: f"-livecode-{chosen.best_n}"),
    compared=compared("code_list"),
)
LIVECODE_PARSE = declare(
    FirstCode,
    name="livecode-parse",
    help=PARSE_HELP,
    settings=Settings,
    record=CodeRecord,
    array=ArrayOutput("-livecode[-firstN]", lambda chosen, _: "-livecode"),
    report=None,
    reports_with=None,
    compared=compared("code_list"),
)

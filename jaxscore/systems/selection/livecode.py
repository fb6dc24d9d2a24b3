"""`livecode-select` and `livecode-parse`: the code in a response, as LiveCodeBench reads it.

LiveCodeBench (arXiv 2403.07974) grades a file of `{"question_id": …, "code_list": [code]}`.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.shell.settings import Settings
from jaxscore.shell.system import Layout, System
from jaxscore.systems import selection
from jaxscore.systems.selection import CodeRecord, GradedSettings, first_n
from jaxscore.systems.selection.choosing import (
    Candidates,
    Context,
    Selection,
    certain_candidates,
)
from jaxscore.systems.selection.grading import Chooser
from jaxscore.systems.selection.ranking import Choice

OPENING = "```python"
CLOSING = "\n```"
UNKNOWN = "unknown_id"  # the published id of an item without question_id
BLANKS = re.compile(r"\s*")


def code(response: str) -> str:
    r"""Return the Python blocks of a response, each stripped, with an empty line between them.

    A block extends from a line that ends in "```python" to the next line that starts with "```";
    unclosed ones do not count. The time is linear in the length: the pattern
    "```python\s*\n(.*?)\n```" would search for the end again from every start.
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
            blocks.append("")  # only empty lines up to the last end
            after = last_closing + len(CLOSING)
        start = response.find(OPENING, after)
    return "\n\n".join(blocks)


class CodeSelection(Selection):
    """A system that writes the code of a response, possibly empty."""

    record = CodeRecord
    field = "code_list"

    def choose(self, candidates: Candidates, context: Context) -> Choice:
        """Take the highest confidence, the first of equal or unknown ones."""
        index = most_certain(candidates.confidences)
        if candidates.responses[index] is None:
            return Choice(index, error="the chosen response is not text")
        notes = selection.list_oddities([], candidates.confidences)
        if "question_id" not in candidates.fields:
            notes.append(f'no field "question_id", written as {UNKNOWN!r}')
        return Choice(index, notes=notes)

    def chosen_record(self, candidates: Candidates, choice: Choice) -> dict[str, Any]:
        return _record(candidates.fields, candidates.responses[choice.index] or "")

    def failed_record(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a record with empty code, since the grader requires every problem."""
        return _record(fields, "")

    def label(self, index: int, record: Mapping[str, Any]) -> str:
        """Return the name of an item, without the id of a missing question_id."""
        return super().label(index, {} if record["question_id"] == UNKNOWN else record)

    def counts_forms(self, settings: Any) -> bool:
        """Return False: code lacks answers."""
        return False

    def count(self, records: Sequence[Mapping[str, Any]], settings: Any) -> dict[str, Any]:
        """Count items with code, without and failed."""
        codes = [record["code_list"] for record in records if "error" not in record]
        n_with_code = sum(code != [""] for code in codes)
        return {
            "n_items": len(records),
            "n_with_code": n_with_code,
            "n_without_code": len(codes) - n_with_code,
            "n_failed": len(records) - len(codes),
            **({"best_n": settings.best_n} if hasattr(settings, "best_n") else {}),
        }

    def headline(self, numbers: Mapping[str, Any]) -> str:
        n, n_items, without = (numbers[k] for k in ("n_with_code", "n_items", "n_without_code"))
        return f"{n} of {n_items} items have code, {without} have none"


def _record(fields: Mapping[str, Any], response: str) -> dict[str, Any]:
    return {"question_id": fields.get("question_id", UNKNOWN), "code_list": [code(response)]}


def most_certain(confidences: Sequence[float | None]) -> int:
    """Return the index of the highest confidence, the first of equal ones; 0 without any."""
    known_values = [value for value in confidences if value is not None]
    return confidences.index(max(known_values)) if known_values else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectSettings(GradedSettings):
    """Settings of `livecode-select`; N is 16 as in the published script."""

    best_n: int = first_n(16)


class LivecodeSelect(CodeSelection):
    """For each problem take the response with the highest self-certainty among the
    first N, with or without code in it, and write its code for LiveCodeBench.

    input, a JSON array as `self-certainty` writes it:
      [{"question_id": "abc301_a", "confidence_list": [14.2, 17.9],
        "output": ["Use a loop:\\n```python\\nprint(1)\\n```",
                   "```python\\nprint(2)\\n```"]}]

    output, the response's ```python blocks, stripped and joined by an empty line:
      [{"question_id": "abc301_a", "code_list": ["print(2)"]}]
      An irregular item also has `choice_notes`; with --gold each has `right` and
      `considered`, as in `select`.
      N and what it leaves out are printed. Next to OUT are OUT.run.json
      and the report: OUT_report.md, OUT_report.json and, for a browser,
      OUT_report.html (OUT.report.md where OUT does not end in .json). The default
      name has -firstN with --limit N.

    --gold FIELD grades the choices. FIELD of each item holds a list of true or
    false for each response, as a run of its code has shown. Items get `right` (null
    without gold); the share of right choices among the first 1, 2, 4, ... N
    responses is printed next to the first sample's and an oracle's, and is in the
    report.

    exit code: 0 all written, 1 some items failed (they hold `error`, and no code),
               2 unusable input or no usable item; nothing is written.
    """

    name = "livecode-select"
    settings = SelectSettings
    layout = Layout(
        is_ascii=True,
        ending="-livecode-N[-firstN]",
        ending_of=lambda _, settings: f"-livecode-{settings.best_n}",
    )
    way = "most certain"

    def candidates(self, fields: Mapping[str, Any], context: Context) -> Candidates:
        return certain_candidates(fields, context.settings.best_n)

    def ways(self, candidates: Candidates, choice: Choice, context: Context) -> dict[str, Chooser]:
        """Return only this way: code lacks answers to compare."""
        return {self.way: lambda n: most_certain(candidates.confidences[:n])}


class LivecodeParse(CodeSelection):
    """Write the code of each problem's first response for LiveCodeBench. Confidences
    are not read: this is for greedy outputs, and for files that another step has
    selected already.

    input, a JSON array:
      [{"question_id": "abc301_a",
        "output": ["Use a loop:\\n```python\\nprint(1)\\n```"]}]

    output, the response's ```python blocks, stripped and joined by an empty line:
      [{"question_id": "abc301_a", "code_list": ["print(1)"]}]
      An irregular item also has `choice_notes`, as in `select`.
      Next to OUT is OUT.run.json. The default name has -firstN with --limit N.

    exit code: 0 all written, 1 some items failed (they hold `error`, and no code),
               2 unusable input or no usable item; nothing is written.
    """

    name = "livecode-parse"
    settings = Settings
    layout = Layout(is_ascii=True, ending="-livecode[-firstN]", ending_of=lambda *_: "-livecode")
    report = System.report

    def candidates(self, fields: Mapping[str, Any], context: Context) -> Candidates:
        return Candidates(fields, selection.read_responses(fields, "output", 1))


LIVECODE_SELECT, LIVECODE_PARSE = LivecodeSelect(), LivecodeParse()

"""Records of a RAG benchmark: a question, its references and a response, as BERGEN writes them."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import NAMES, json_kind

FIELDS = ("q_id", "response", "label", "question", "instruction", "ranking_label")
SHOWN = 60  # characters of a q_id in a message


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A question with its response and its references.

    Attributes:
        index: place in the file from 0, by which columns are written.
        q_id: as the file has it; not necessarily unique.
        response: may be empty.
        label: one reference or more.
        question: "" where the file has none and `read` was not told to require it.
        ranking_label: as the file has it, whatever that is; None where it is absent.
    """

    index: int
    q_id: str | int
    response: str
    label: list[str]
    question: str
    ranking_label: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Rows of one file, or from Python. Iterating gives the rows.

    Attributes:
        where: the file, for messages; "" for rows from Python.
        rows: as they were given, usable or not.
        records: the usable ones, in their order.
        failures: (name, why) of the others.
    """

    where: str
    rows: list[Any]
    records: list[Record]
    failures: list[tuple[str, str]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def name(self, record: Record) -> str:
        """What to call a record in a list of failures."""
        return _name(self.where, record.index, record.q_id)


def read(rows: Iterable[Any], where: str = "", *, question: bool) -> Records:
    """Records from objects as the input file has them; `Records` stay as they are.

    A row that is not as expected is among the failures, and the others are kept.

    Args:
        where: the file, for messages.
        question: whether a record needs a question.

    Raises:
        InputError: the rows are one object or a text.
    """
    if isinstance(rows, Records):
        return rows
    if isinstance(rows, dict | str) or not isinstance(rows, Iterable):
        raise InputError(f"found {json_kind(rows)}, expected a list of records")
    known = list(rows)
    records, failures = [], []
    for index, row in enumerate(known):
        if problem := _problem(row, question):
            q_id = row.get("q_id") if isinstance(row, dict) else None
            failures.append((_name(where, index, q_id), problem))
            continue
        asked, ranking = row.get("question"), row.get("ranking_label")
        asked = asked if isinstance(asked, str) else ""
        records.append(Record(index, row["q_id"], row["response"], row["label"], asked, ranking))
    return Records(where=where, rows=known, records=records, failures=failures)


def _problem(row: Any, question: bool) -> str | None:
    """Why a row is no record; None where it is one."""
    if not isinstance(row, dict):
        return f"found {json_kind(row)}, expected an object with {', '.join(FIELDS[:4])}"
    expected = {"q_id": (str, int), "response": (str,), "label": (list,)}
    if question:
        expected["question"] = (str,)
    for name, kinds in expected.items():
        wanted = " or ".join(NAMES[kind] for kind in kinds)
        if name not in row:
            there = ", ".join(map(repr, row)) or "none"
            return f'no field "{name}", expected {wanted}; there are {there}'
        if type(row[name]) not in kinds:
            return f'field "{name}" is {json_kind(row[name])}, expected {wanted}'
    label = row["label"]
    if not label:
        return 'field "label" is empty, expected one reference answer or more'
    for place, one in enumerate(label, start=1):
        if not isinstance(one, str):
            return f'field "label", entry {place}: found {json_kind(one)}, expected a string'
    try:
        for text in (row["response"], row.get("question"), *label):
            str(text).encode("utf-8")
    except UnicodeEncodeError:
        return "a string has half a surrogate pair, which is no character"
    return None


def _name(where: str, index: int, q_id: Any) -> str:
    known = f" (q_id {q_id})" if isinstance(q_id, int) else ""
    if isinstance(q_id, str):
        known = f" (q_id {q_id[:SHOWN]!a}{'…' if len(q_id) > SHOWN else ''})"
    place = f"{where}: " if where else ""
    return f"{place}record {index + 1}{known}"

"""Records of a RAG benchmark: a question, its references and a response, as BERGEN writes them."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind, require_field
from jaxscore.systems.entries import Entry, usable
from jaxscore.systems.evaluation import Failure, unusable

FIELDS = ("q_id", "response", "label", "question", "instruction", "ranking_label")
SHOWN = 60  # characters of a q_id in a message


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with its response and its references.

    Attributes:
        q_id: not necessarily unique.
        response: may be empty.
        label: one reference or more.
        question: "" if the record has none and needs none.
        ranking_label: of any type; None if it is absent.
    """

    q_id: str | int
    response: str
    label: list[str]
    question: str = ""
    ranking_label: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Records of one file, or from Python.

    Attributes:
        where: the file, for messages; "" for records from Python.
        rows: as they were given, usable or not.
        entries: one per row, with its `index` from 0 as an extra field.
    """

    where: str
    rows: list[Any]
    entries: list[Entry[Item]]

    @property
    def usable(self) -> list[Entry[Item]]:
        """The entries that have an item."""
        return usable(self.entries)

    @property
    def failures(self) -> list[Failure]:
        """The other entries, and why they cannot be used."""
        return unusable(self.entries)


def read(rows: Iterable[Any], where: str = "", *, question: bool) -> Records:
    """Read records from objects as the input file has them; `Records` stay as they are.

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
    entries = [_entry(row, index, where, question) for index, row in enumerate(known)]
    return Records(where=where, rows=known, entries=entries)


def read_entries(rows: Iterable[Any], reserved: object, *, question: bool) -> Iterator[Entry[Item]]:
    """Entries of `read`, as `System.read_objects`."""
    yield from read(rows, question=question).entries


def record_of(entry: Entry[Item]) -> dict[str, Any]:
    """What an output record repeats of a usable entry."""
    assert entry.item is not None
    named = ("q_id", "question", "label", "response")
    return {**entry.extra, **{name: getattr(entry.item, name) for name in named}}


def record_name(record: Mapping[str, Any], place: int) -> str:
    """What `compare` calls a record: its q_id, and its question if it has one."""
    question = record.get("question")
    return f"{record['q_id']}: {question}" if question else str(record["q_id"])


def _entry(row: Any, index: int, where: str, question: bool) -> Entry[Item]:
    q_id = row.get("q_id") if isinstance(row, dict) else None
    shown = f" (q_id {q_id})" if isinstance(q_id, int) else ""
    if isinstance(q_id, str):
        shown = f" (q_id {q_id[:SHOWN]!a}{'…' if len(q_id) > SHOWN else ''})"
    name = f"{where}{': ' if where else ''}record {index + 1}{shown}"
    extra = {"index": index}
    try:
        item = _item(row, question, name)
    except InputError as problem:
        error = str(problem).removeprefix(f"{name}: ")
        id = q_id if isinstance(q_id, str | int) else name
        return Entry(name, id, None, error, extra)
    return Entry(name, item.q_id, item, None, extra)


def _item(row: Any, question: bool, name: str) -> Item:
    if not isinstance(row, dict):
        raise InputError(f"found {json_kind(row)}, expected an object with {', '.join(FIELDS[:4])}")
    kinds: dict[str, type | tuple[type, ...]] = {"q_id": (str, int), "response": str, "label": list}
    if question:
        kinds["question"] = str
    q_id, response, label, *_ = (require_field(row, field, kinds[field], name) for field in kinds)
    if not label:
        raise InputError('field "label" is empty, expected one reference answer or more')
    for place, reference in enumerate(label, start=1):
        if not isinstance(reference, str):
            raise InputError(
                f'field "label", entry {place}: found {json_kind(reference)}, expected a string'
            )
    try:
        for text in (response, row.get("question"), *label):
            str(text).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("a string has half a surrogate pair, which is no character") from None
    asked = row.get("question")
    return Item(
        q_id, response, label, asked if isinstance(asked, str) else "", row.get("ranking_label")
    )

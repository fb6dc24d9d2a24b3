"""Units of a run: the items, or their parts, read from records by the metadata of their fields."""

import dataclasses
import math
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from jaxscore.errors import InputError, one_line
from jaxscore.io.items import NAME_FIELDS, Row
from jaxscore.io.json_input import json_kind
from jaxscore.shell.fields import Decision, Metric, Paired, metadata_of, per_token_fields
from jaxscore.shell.items import read_entry
from jaxscore.shell.system import (
    System,
    id_field,
    item_fields,
    unit_fields,
    unit_title,
    unit_type,
)

MOST = 2**62  # a count is below it
# Raised by code that reads a record which is not as its system writes it.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
NAMED = 80  # characters of a unit's name
EXPECTED = {list: "a list", bool: "true, false or null", str: "a text"}  # types, for messages
Values = list[tuple[str, Paired]]


class Choice(NamedTuple):
    """A decision about one unit.

    Attributes:
        value: the decision: a text, or True if it is right; None without one.
        margin: its margin in the statistic of the `Decision`; None if it is unknown or infinite.
        within: True if the margin is within the run's noise floor; None if that is unknown.
    """

    value: str | bool | None
    margin: float | None = None
    within: bool | None = None


class Asked(NamedTuple):
    """The request of an item, from the input of its run.

    Attributes:
        id: the item's id, or None if only its text identifies it.
        text: see `Unit`.
    """

    id: str | int | None
    text: object


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """An item of a run, or a part of it that is compared separately.

    Attributes:
        id: the unit's id, or None if only its text identifies it.
        name: the name in messages.
        text: the input, as a value with a unique `repr`; None if unknown.
        others: the repeated input fields that may differ between the runs, likewise.
        group: the index of the item that the unit is a part of; None for an item.
        n_tokens: the number of scored tokens, if the record has it.
        error: the reason why the unit was not scored.
        unread: True if the error is that the record is not in its system's format.
        numbers: name -> a number, or a list with one for each part of the item.
        choices: name -> decision.
    """

    id: str | int | None
    name: str
    text: object = None
    others: object = None
    group: int | None = None
    n_tokens: int | None = None
    error: str | None = None
    unread: bool = False
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)


class Reader:
    """Reads the units of a system's records.

    Attributes:
        system: the system that wrote the records.
        title: the name of the units in the plural.
        metrics, decisions: name -> (field, metadata), in the order of the report.
        others: the input fields in records that do not identify a unit.
        has_texts: True if records include the input's texts.
        is_compared: True if records have a number or a decision.
    """

    def __init__(self, system: System) -> None:
        """Collect the metadata of all fields."""
        record, unit = system.record, unit_type(system)
        self.system, self.title = system, unit_title(system)
        metrics = {each.name or field: (field, each) for field, each in unit_fields(system, Metric)}
        self.metrics = dict(sorted(metrics.items(), key=lambda pair: not pair[1][1].is_main))
        decisions = {
            each.name or field: (field, each) for field, each in unit_fields(system, Decision)
        }
        self.decisions = dict(sorted(decisions.items(), key=lambda pair: not pair[1][1].is_right))
        self.is_compared = bool(self.metrics or self.decisions)
        per_token = per_token_fields(record)
        paired = metadata_of(record, Paired)
        if system.parts:
            self._part_id = unit_fields(system, Paired)[0][0]
            paired += unit_fields(system, Paired)
        self._texts = [pair for pair in paired if pair[0] not in per_token]
        self._tokens = [pair for pair in paired if pair[0] in per_token]
        self._item_texts = metadata_of(system.item, Paired)
        self.has_texts = bool(self._texts)
        declared = {*record.__annotations__, *item_fields(system)}
        names = [name for name in ("id", "q_id") if name in declared]
        self.ids = list(NAME_FIELDS) if typing.is_typeddict(system.item) else names
        described = {field for field, _ in (*paired, *metrics.values(), *decisions.values())}
        repeated = {*item_fields(system)} & {*record.__annotations__}
        self.others = sorted(repeated - described - {*self.ids})
        counts = (name for name in ("n_scored", "n_tokens") if name in unit.__annotations__)
        self._count = next(counts, "")
        self._types = [
            {name: hint for name, hint in typing.get_type_hints(declared_type).items()
             if name not in per_token and name != system.parts}
            for declared_type in (record, unit)
        ]  # fmt: skip

    def lists(self, *, by_tokens: bool) -> frozenset[str]:
        """Return the fields with lists that `units` needs; tables read those alone."""
        hints = typing.get_type_hints(self.system.record)
        lists = {name for name, hint in hints.items() if typing.get_origin(hint) is list}
        tokens = {name for name, _ in self._tokens} if by_tokens else set()
        return frozenset(lists - per_token_fields(self.system.record) | tokens)

    def title_of(self, metric: str) -> str:
        """Return a metric's title; one of a mapping has its name as title."""
        return self.metrics[metric][1].title if metric in self.metrics else metric

    def likeness(self, fields: set[str]) -> tuple[int, int, int] | None:
        """Rank the system by the fields of a record: None if it cannot have written that."""
        numbers = {field for field, _ in (*self.metrics.values(), *self.decisions.values())}
        numbers = {self.system.parts} if self.system.parts else numbers
        if not fields & numbers or (len(self.ids) == 1 and self.ids[0] not in fields):
            return None
        declared = {*self.system.record.__annotations__}
        results = fields & declared - {*item_fields(self.system)}
        return len(results), len(fields & numbers), -len(declared)

    def asked(self, rows: Iterable[Row]) -> Iterator[Asked] | None:
        """Yield the request of each row of the input; None if the item type declares no texts."""
        return map(self._asked, rows) if self._item_texts else None

    def _asked(self, row: Row) -> Asked:
        entry = read_entry(self.system, row.item, row.number, row.where, ())
        if entry.error is not None:
            return Asked(None, None)
        fields = entry.item if isinstance(entry.item, dict) else vars(entry.item)
        return Asked(self._id(row.item), _values(self._item_texts, fields))

    def units(
        self,
        records: Iterable[tuple[str, Any]],
        asked: Iterator[Asked] | None = None,
        *,
        by_tokens: bool = False,
    ) -> Iterator[Unit]:
        """Yield the units of a run, with `error` for a record not in its system's format.

        Args:
            records: the (position for messages, record) pairs.
            asked: the requests of all items, unless the records have them.
            by_tokens: if True, the scored tokens replace the text.
        """
        texts = self._tokens if by_tokens else self._texts
        for index, (where, record) in enumerate(records):
            request = None if asked is None else next(asked, Asked(None, None))
            try:
                for unit in self._read(record, index, texts):
                    if request is not None and unit.error is None:
                        unit = dataclasses.replace(unit, id=request.id, text=request.text)
                    yield unit
            except InputError as problem:
                fields = record if isinstance(record, dict) else {}
                id, error = self._id(fields), fields.get("error")
                yield Unit(
                    id=where if id is None else id,
                    name=shown(where if id is None else id),
                    error=f"{where}: {problem}" if error is None else str(error),
                    unread=error is None,  # an item that could not be used has no other fields
                )

    def _read(self, record: Any, index: int, texts: Values) -> Iterator[Unit]:
        if not isinstance(record, dict):
            raise InputError("expected an object")
        record_types, unit_types = self._types
        outer, parts_field = {**record, **_checked_fields(record_types, record)}, self.system.parts
        id = self._id(outer)
        if id is None and len(self.ids) == 1:
            raise InputError(
                f'field "{self.ids[0]}" is {json_kind(record.get(self.ids[0]))}, expected a text '
                "or a whole number"
            )
        if id is None and self.ids:
            id = f"item {index + 1}"
        if not parts_field:
            yield self._unit(outer, id, texts, None)
            return
        for element in _checked(list[Any], record.get(parts_field), parts_field):
            if not isinstance(element, dict):
                raise InputError(f'field "{parts_field}" has an entry that is not an object')
            inner = {**outer, **element, **_checked_fields(unit_types, element)}
            ending = inner.get(self._part_id)
            ending = " -> ".join(map(str, ending)) if isinstance(ending, list) else ending
            yield self._unit(inner, f"{id}: {ending}", texts, index)

    def _id(self, fields: Mapping[str, Any]) -> str | int | None:
        ids = (fields.get(name) for name in self.ids)
        return next((id for id in ids if type(id) in (str, int)), None)

    def _name(self, record: Mapping[str, Any], id: str | int | None) -> str:
        """Return the id; numbered records also show their text."""
        field = id_field(self.system) or "id"
        name = f"{field} {record.get(field)}" if id is None else str(id)
        values = (record.get(text) for text, _ in self._texts if field != "id")
        text = next((value for value in values if value and isinstance(value, str)), "")
        return shown(f"{name}: {text}" if text else name)

    def _unit(
        self, record: dict[str, Any], id: str | int | None, texts: Values, group: int | None
    ) -> Unit:
        name = self._name(record, id)
        if record.get("error") is not None:
            return Unit(id=id, name=name, group=group, error=str(record["error"]))
        numbers: dict[str, Any] = {}
        try:
            text = _values(texts, record)
            for metric_name, (field, metric) in self.metrics.items():
                if record.get(field) is not None:
                    value = metric.value(record) if metric.value else record[field]
                    numbers |= value if isinstance(value, Mapping) else {metric_name: value}
            choices = {
                decision_name: _choice(field, decision, record)
                for decision_name, (field, decision) in self.decisions.items()
                if record.get(field) is not None
            }
        except UNREADABLE as problem:  # lists of unequal lengths, a missing field
            raise InputError(
                f"the record is not as {self.system.name} writes it ({problem})"
            ) from None
        n_tokens = record.get(self._count)
        return Unit(
            id=id,
            name=name,
            text=text,
            others=[record.get(other) for other in self.others] or None,
            group=group,
            n_tokens=sum(n_tokens) if isinstance(n_tokens, list) else n_tokens,
            numbers={name: value for name, value in numbers.items() if value is not None},
            choices={name: choice for name, choice in choices.items() if choice.value is not None},
        )


def shown(text: object) -> str:
    """Return a unit's name on one line, of bounded length."""
    return one_line(" ".join(str(text).split())[:NAMED])


def _values(paired: Values, fields: Mapping[str, Any]) -> object:
    """Return all values of `Paired` fields; None if none is known."""
    values = [
        None if fields.get(name) is None else each.value(fields) if each.value else fields[name]
        for name, each in paired
    ]
    return None if all(value is None for value in values) else values


def _choice(field: str, decision: Decision, record: Mapping[str, Any]) -> Choice:
    margin = None if decision.margin is None else decision.margin(record)
    within = decision.within
    return Choice(
        record[field] if decision.value is None else decision.value(record),
        margin if margin is not None and math.isfinite(margin) else None,
        within(record) if callable(within) else record.get(within) if within else None,
    )


def _checked_fields(types: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the declared fields of a record; null in a table means that a field is missing."""
    return {
        name: _checked(hint, record[name], name)
        for name, hint in types.items()
        if record.get(name) is not None
    }


def _checked(hint: Any, value: Any, name: str) -> Any:
    """Return a value of a record's declared type, with infinities as numbers.

    Raises:
        InputError: it is of another type, as in an edited file.
    """
    arguments = typing.get_args(hint)
    types = [alternative for alternative in arguments if alternative is not type(None)]
    if len(types) < len(arguments) and value is None:
        return None
    if len(types) == 1 and len(arguments) == 2:  # X | None
        return _checked(types[0], value, name)
    expected = typing.get_origin(hint) or hint
    if expected is dict and isinstance(value, str):  # a table's cell
        value = read_json_text(value, name)
    if expected in (float, int):
        return _checked_number(expected, value, name)
    if expected in EXPECTED and not isinstance(value, expected):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected {EXPECTED[expected]}')
    return [_checked(types[0], entry, name) for entry in value] if expected is list else value


def read_json_text(text: str, name: str) -> Any:
    """Return the object of a table's cell.

    Raises:
        InputError: it is not JSON, as in an edited file.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InputError(f'field "{name}" is a text, expected an object') from None


def _checked_number(expected: type, value: Any, name: str) -> float:
    if value is None:
        raise InputError(f'field "{name}" is null or has entries that are null')
    if expected is float and value in ("Infinity", "-Infinity"):
        return float(value.replace("Infinity", "inf"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected a number or null')
    try:
        number = float(value)
    except OverflowError:
        raise InputError(f'field "{name}" is a number beyond 1e308') from None
    if expected is int and not abs(number) < MOST:
        raise InputError(f'field "{name}" is {number:g}, expected a whole number')
    return int(number) if expected is int else number

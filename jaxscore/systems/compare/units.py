"""What is compared: units of a run, read from its records by what their system declares."""

import dataclasses
import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxscore.errors import InputError, one_line
from jaxscore.io.json_input import json_kind
from jaxscore.shell.fields import Compared, Decision, Metric, metadata_of, per_token_fields

MOST = 2**62  # a count is below it
# Raised by code that reads a record which is not as its system writes it.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
NAMED = 80  # characters of a unit's name
EXPECTED = {list: "a list", bool: "true, false or null", str: "a text"}  # types, for messages


class Choice(NamedTuple):
    """A decision about one unit.

    Attributes:
        value: what was decided: a text, or whether it is right; None if nothing was.
        margin: by how much, in the statistic of its `Decision`; None if it is not known or not
            finite.
        within: whether it lies within the noise floor of its run; None if that is not known.
    """

    value: str | bool | None
    margin: float | None = None
    within: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One item of a run, or one part of it that is compared by itself.

    Attributes:
        id: by which it is matched; None if its text is all that identifies it.
        name: as displayed.
        text: the request, as one value whose `repr` says all of it; None if the file does not
            hold it.
        answer: what was judged, likewise, if that may differ between two runs on one text.
        group: place of the item in its run that it is a part of; None if it is a whole one.
        n_tokens: how many were scored, if the file says so.
        error: why it has no numbers.
        unread: its record is not as its system writes it, which is the error.
        numbers: name -> one number, or one per part of the item; None, or a number that is not
            finite, is left out.
        choices: name -> decision.
    """

    id: str | int | None
    name: str
    text: object = None
    answer: object = None
    group: int | None = None
    n_tokens: int | None = None
    error: str | None = None
    unread: bool = False
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)


class Comparison:
    """How records of one kind are compared.

    Attributes:
        compared: what the system declares of them.
        name: of the runs, as displayed and in the report.
        what: the units, in the plural.
        metrics, decisions: name -> (field, metadata), in the order of the report.
    """

    def __init__(self, system: Any, compared: Compared) -> None:
        """Args:
        system: what declares it; only `name`, `what` and `record` are read.
        """
        self.compared = compared
        self.name = compared.name_of_runs or system.name
        self.what = compared.what or system.what
        record = compared.record or system.record
        unit = _part_type(record, compared.parts) if compared.parts else record
        metrics = _by_name(metadata_of(unit, Metric))
        first = [name for name in compared.order if name in metrics]
        self.metrics = {name: metrics[name] for name in (*first, *metrics)}
        decisions = _by_name(metadata_of(unit, Decision))
        self.decisions = dict(sorted(decisions.items(), key=lambda pair: not pair[1][1].is_right))
        self._record_types = _compared_types(record, compared.parts)
        self._unit_types = _compared_types(unit, compared.parts)

    def title(self, metric: str) -> str:
        """A metric's title; a computed one has its name as title."""
        return self.metrics[metric][1].title if metric in self.metrics else metric

    def read(self, record: Any, place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
        """The units of a record.

        Args:
            place: of the record in its run, from 0.
            facts: of the run.

        Raises:
            InputError: the record is not as the system writes it.
        """
        if not isinstance(record, dict):
            raise InputError("found no object")
        outer = {name: facts.get(name) for name in self.compared.settings}
        outer |= {**record, **_checked_fields(self._record_types, record)}
        id, parts = self._id(outer, place), self.compared.parts
        if not parts:
            yield self._unit(outer, id, place)
            return
        for part in _checked(list[Any], record.get(parts), parts):
            if not isinstance(part, dict):
                raise InputError(f'field "{parts}" has an entry that is no object')
            inner = {**outer, **part, **_checked_fields(self._unit_types, part)}
            named = inner.get(self.compared.part_name)
            joined = " -> ".join(map(str, named)) if isinstance(named, list) else named
            yield self._unit(inner, f"{id}: {joined}", place)

    def _id(self, record: Mapping[str, Any], place: int) -> str | int | None:
        names = self.compared.id
        for name in names:
            if isinstance(value := record.get(name), str | int) and not isinstance(value, bool):
                return value
        if len(names) == 1:
            raise InputError(
                f'field "{names[0]}" is {json_kind(record.get(names[0]))}, expected a text or a '
                "whole number"
            )
        return f"item {place + 1}" if names else None

    def _unit(self, record: dict[str, Any], id: str | int | None, place: int) -> Unit:
        compared = self.compared
        error = record.get("error")
        try:
            if error is None and compared.error is not None:
                error = compared.error(record)
            unit = Unit(
                id=id,
                name=shown(id if compared.name is None else compared.name(record, place)),
                text=self._text(record, has_failed=error is not None),
                answer=None if compared.answer is None else record.get(compared.answer),
                group=place if compared.parts else None,
                error=None if error is None else str(error),
            )
            if error is not None:
                return unit
            numbers = {
                name: metric.value(record) if metric.value else record[field]
                for name, (field, metric) in self.metrics.items()
                if record.get(field) is not None
            }
            if compared.numbers is not None:
                numbers |= compared.numbers(record)
            choices = {
                name: _choice(field, decision, record)
                for name, (field, decision) in self.decisions.items()
                if record.get(field) is not None
            }
        except UNREADABLE as problem:  # lists of unequal lengths, a missing field
            raise InputError(f"the record is not as {self.name} writes it ({problem})") from None
        n_tokens = record.get(compared.n_tokens)
        return dataclasses.replace(
            unit,
            n_tokens=sum(n_tokens) if isinstance(n_tokens, list) else n_tokens,
            numbers={name: value for name, value in numbers.items() if value is not None},
            choices={name: one for name, one in choices.items() if one.value is not None},
        )

    def _text(self, record: Mapping[str, Any], *, has_failed: bool) -> object:
        """The request, or None if it is not known; a failed item may lack its fields."""
        text = self.compared.text
        if callable(text):
            try:
                return text(record)
            except UNREADABLE:
                if has_failed:
                    return None
                raise
        n_known = sum(record.get(name) is not None for name in text)
        if not n_known or (has_failed and n_known < len(text)):
            return None
        return tuple(record.get(name) for name in text)


def shown(text: object) -> str:
    """A unit's name, on one line and of bounded length."""
    return one_line(" ".join(str(text).split())[:NAMED])


def _by_name(found: list[tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    return {metadata.name or field: (field, metadata) for field, metadata in found}


def _part_type(record: type, field: str) -> type:
    """The type of the entries of a list of objects."""
    [entry] = typing.get_args(typing.get_type_hints(record)[field])
    return typing.cast(type, entry)


def _compared_types(record: type, without: str) -> dict[str, Any]:
    """Types of the fields of a record but for large ones, which are not compared."""
    omitted = {*per_token_fields(record), without}
    return {
        name: hint for name, hint in typing.get_type_hints(record).items() if name not in omitted
    }


def _choice(field: str, decision: Decision, record: Mapping[str, Any]) -> Choice:
    margin = None if decision.margin is None else decision.margin(record)
    within = decision.within
    return Choice(
        record[field] if decision.value is None else decision.value(record),
        margin if margin is not None and math.isfinite(margin) else None,
        within(record) if callable(within) else record.get(within) if within else None,
    )


def _checked_fields(types: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """The declared fields of a record; null in a table means that the record lacks the field."""
    return {
        name: _checked(hint, record[name], name)
        for name, hint in types.items()
        if record.get(name) is not None
    }


def _checked(hint: Any, value: Any, name: str) -> Any:
    """A value of a record's declared type, with infinities as numbers.

    Raises:
        InputError: it is of another type, as in an edited file.
    """
    arguments = typing.get_args(hint)
    parts = [part for part in arguments if part is not type(None)]
    if len(parts) < len(arguments) and value is None:
        return None
    if len(parts) == 1 and len(arguments) == 2:  # X | None
        return _checked(parts[0], value, name)
    kind = typing.get_origin(hint) or hint
    if kind in (float, int):
        return _checked_number(kind, value, name)
    if kind in EXPECTED and not isinstance(value, kind):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected {EXPECTED[kind]}')
    return [_checked(parts[0], entry, name) for entry in value] if kind is list else value


def _checked_number(kind: type, value: Any, name: str) -> float:
    if value is None:
        raise InputError(f'field "{name}" is null or has entries that are null')
    if kind is float and value in ("Infinity", "-Infinity"):
        return float(value.replace("Infinity", "inf"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected a number or null')
    try:
        number = float(value)
    except OverflowError:
        raise InputError(f'field "{name}" is a number beyond 1e308') from None
    if kind is int and not abs(number) < MOST:
        raise InputError(f'field "{name}" is {number:g}, expected a whole number')
    return int(number) if kind is int else number

"""Reads the records of a system for `compare` by what the system declares."""

import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind
from jaxscore.systems.compare import unit
from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, Title, Unit, shown
from jaxscore.systems.system import (
    Compared,
    Decision,
    Metric,
    System,
    metadata_of,
    per_token_fields,
)


def comparisons(system: System) -> list[unit.System]:
    """How runs of a system are compared, for each kind of records that it writes."""
    return [_comparison(system, compared) for compared in system.compared]


def _comparison(system: System, compared: Compared) -> unit.System:
    record_type = compared.record or system.record
    unit_type = _part_type(record_type, compared.parts) if compared.parts else record_type
    metrics = {
        metric.name or field: (field, metric) for field, metric in metadata_of(unit_type, Metric)
    }
    if compared.order:
        by_order = [name for name in compared.order if name in metrics]
        metrics = {name: metrics[name] for name in (*by_order, *metrics)}
    decisions = {
        decision.name or field: (field, decision)
        for field, decision in metadata_of(unit_type, Decision)
    }
    by_right = sorted(decisions.items(), key=lambda pair: not pair[1][1].is_right)
    record_hints, unit_hints = (
        _compared_hints(kind, without=compared.parts) for kind in (record_type, unit_type)
    )

    def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
        outer = {name: facts.get(name) for name in compared.settings}
        outer |= {**record, **_checked_fields(record_hints, record)}
        outer_id = _id(compared, outer, place)
        if not compared.parts:
            yield _unit(outer, outer_id, place)
            return
        for part in fields.listed(record, compared.parts):
            if not isinstance(part, dict):
                raise InputError(f'field "{compared.parts}" has an entry that is no object')
            inner = {**outer, **part, **_checked_fields(unit_hints, part)}
            named = inner.get(compared.part_name)
            joined = " -> ".join(map(str, named)) if isinstance(named, list) else named
            yield _unit(inner, f"{outer_id}: {joined}", place)

    def _unit(record: dict[str, Any], id: str | int | None, place: int) -> Unit:
        try:
            error = fields.error(record)
            if error is None and compared.error is not None:
                error = compared.error(record)
            described: dict[str, Any] = {
                "id": id,
                "name": shown(id if compared.name is None else compared.name(record, place)),
                "text": _text(compared, record, error),
                "answer": None if compared.answer is None else record.get(compared.answer),
                "group": place if compared.parts else None,
                "error": error,
            }
            if error is not None:
                return Unit(**described)
            numbers: dict[str, Any] = {
                name: metric.value(record) if metric.value else record[field]
                for name, (field, metric) in metrics.items()
                if record.get(field) is not None
            }
            if compared.numbers is not None:
                numbers |= compared.numbers(record)
            choices = {
                name: _choice(field, decision, record)
                for name, (field, decision) in decisions.items()
                if record.get(field) is not None
            }
        except (ValueError, LookupError) as problem:  # lists of unequal lengths, a missing field
            raise InputError(f"the record is not as {system.name} writes it ({problem})") from None
        n_tokens = record.get(compared.n_tokens)
        return Unit(
            **described,
            n_tokens=sum(n_tokens) if isinstance(n_tokens, list) else n_tokens,
            numbers={name: value for name, value in numbers.items() if value is not None},
            choices={name: one for name, one in choices.items() if one.value is not None},
        )

    return unit.System(
        name=compared.name_of_runs or system.name,
        what=compared.what or system.what,
        commands=(system.name,),
        read=read,
        numbers={name: metric.title for name, (_, metric) in metrics.items()},
        choices={
            name: Title(decision.title, decision.is_right, decision.statistic)
            for name, (_, decision) in by_right
        },
        fixed=compared.fixed,
        input_fields=compared.input_fields,
        signature=compared.signature,
        without=compared.without,
        list_in=compared.list_in,
        file=compared.file,
        version=system.version,
    )


def _part_type(record: type, field: str) -> type:
    """The type of the entries of a list of objects."""
    [entry] = typing.get_args(typing.get_type_hints(record)[field])
    return typing.cast(type, entry)


def _compared_hints(record: type, without: str) -> dict[str, Any]:
    """Types of the fields of a record but for large ones, which are not compared."""
    omitted = {*per_token_fields(record), without}
    return {
        name: hint for name, hint in typing.get_type_hints(record).items() if name not in omitted
    }


def _checked_fields(hints: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """The declared fields of a record; null in a table means that the record lacks the field."""
    return {
        name: _checked(hint, record[name], name)
        for name, hint in hints.items()
        if record.get(name) is not None
    }


def _id(compared: Compared, record: Mapping[str, Any], place: int) -> str | int | None:
    if not compared.id:
        return None
    known = [name for name in compared.id if isinstance(record.get(name), str | int)]
    if not known and len(compared.id) > 1:
        return f"item {place + 1}"
    return fields.name(record, known[0] if known else compared.id[0])


def _text(compared: Compared, record: Mapping[str, Any], error: str | None) -> object:
    """What was asked, or None if it is not known; a failed item may lack fields that say so."""
    if not compared.text:
        return None
    if callable(compared.text):
        try:
            return compared.text(record)
        except (ValueError, LookupError):
            if error is not None:
                return None
            raise
    known = [name for name in compared.text if record.get(name) is not None]
    if not known or (error is not None and len(known) < len(compared.text)):
        return None
    return tuple(record.get(name) for name in compared.text)


def _choice(field: str, decision: Decision, record: Mapping[str, Any]) -> Choice:
    margin = None if decision.margin is None else decision.margin(record)
    within = decision.within
    return Choice(
        record[field] if decision.value is None else decision.value(record),
        margin if margin is not None and math.isfinite(margin) else None,
        within(record) if callable(within) else record.get(within) if within else None,
    )


def _checked(hint: Any, value: Any, name: str) -> Any:
    """A value of a record's declared type, with infinities as numbers.

    Raises:
        InputError: it is of another type.
    """
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    is_optional = len(parts) < len(typing.get_args(hint))
    if is_optional and value is None:
        return None
    if is_optional and len(parts) == 1:
        return _checked(parts[0], value, name)
    if typing.get_origin(hint) is list:
        [entry] = parts
        return [_checked(entry, one, name) for one in fields.listed({name: value}, name)]
    if hint is float or hint is int:
        number = fields.number(value, name)
        if number is None:
            raise InputError(f'field "{name}" is null or has entries that are null')
        return int(number) if hint is int and math.isfinite(number) else number
    if hint is bool:
        return fields.mark({name: value}, name)
    if hint is str and not isinstance(value, str):
        raise InputError(f'field "{name}" is {json_kind(value)}, expected a text')
    return value

"""Reads the records of a system for `compare` by what the system declares."""

import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.compare import unit
from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, Title, Unit, shown
from jaxscore.systems.system import Decision, Metric, System, metadata_of, per_token_fields


def comparison(system: System) -> unit.System:
    """How two runs of a system are compared."""
    assert system.compared is not None
    order = system.compared.order
    metrics = {
        metric.name or field: (field, metric)
        for field, metric in sorted(
            metadata_of(system.record, Metric).items(),
            key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order),
        )
    }
    decisions = metadata_of(system.record, Decision)
    by_right = sorted(decisions.items(), key=lambda pair: not pair[1].is_right)
    per_token = per_token_fields(system.record)  # large, and not compared
    hints = {
        name: hint
        for name, hint in typing.get_type_hints(system.record).items()
        if name not in per_token
    }
    text_fields = system.compared.text

    def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
        id = fields.name(record, "id")
        if (error := fields.error(record)) is not None:
            yield Unit(id=id, name=shown(id), error=error)
            return
        checked = {
            name: _checked(hints[name], value, name)
            for name, value in record.items()
            if name in hints and value is not None  # null in a table: not in the record
        }
        try:
            numbers = {
                name: metric.value(checked) if metric.value else checked[field]
                for name, (field, metric) in metrics.items()
                if field in checked
            }
            choices = {
                field: _choice(field, decision, checked)
                for field, decision in decisions.items()
                if checked.get(field) is not None
            }
        except (ValueError, LookupError) as problem:  # lists of unequal lengths, a missing field
            raise InputError(f"the record is not as {system.name} writes it ({problem})") from None
        yield Unit(
            id=id,
            name=shown(id),
            text=tuple(checked.get(name) for name in text_fields) if text_fields else None,
            n_tokens=checked.get("n_scored"),
            numbers=numbers,
            choices=choices,
        )

    return unit.System(
        name=system.name,
        what=system.compared.what or system.what,
        commands=(system.name,),
        read=read,
        numbers={name: metric.title for name, (_, metric) in metrics.items()},
        choices={
            field: Title(decision.title, decision.is_right, decision.statistic)
            for field, decision in by_right
        },
        fixed=system.compared.fixed,
        input_fields=system.compared.input_fields,
    )


def _choice(field: str, decision: Decision, record: Mapping[str, Any]) -> Choice:
    margin = None if decision.margin is None else decision.margin(record)
    return Choice(
        record[field] if decision.value is None else decision.value(record),
        margin if margin is not None and math.isfinite(margin) else None,
        None if decision.within is None else record.get(decision.within),
    )


def _checked(hint: Any, value: Any, name: str) -> Any:
    """A value of a record's declared type, with infinities as numbers.

    Raises:
        InputError: it is of another type.
    """
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if len(parts) == 1 and typing.get_origin(hint) is not list:  # X | None
        [hint] = parts
    if typing.get_origin(hint) is list:
        values = fields.listed({name: value}, name)
        [entry] = typing.get_args(hint)
        return [_checked(entry, one, name) for one in values]
    if hint is float or hint is int:
        number = fields.number(value, name)
        if number is None:
            raise InputError(f'field "{name}" is null or has entries that are null')
        return int(number) if hint is int and math.isfinite(number) else number
    if hint is bool:
        return fields.mark({name: value}, name)
    if hint is str and not isinstance(value, str):
        return str(value)
    return value

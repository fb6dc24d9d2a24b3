"""Slices: the means over the items with each value of a field, such as a topic (`--by`).

They follow from the records, which repeat the fields of the input: a run, `merge` and `report`
compute them alike.
"""

import functools
import json
import typing
from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxscore.analysis.bootstrap import Estimate, proportion, ratio
from jaxscore.errors import InputError, near
from jaxscore.io.json_input import json_kind
from jaxscore.shell.fields import Mean, Total, arrow_type, metadata_of, scalar_fields
from jaxscore.shell.settings import Settings
from jaxscore.shell.system import Record, System

NONE = "(none)"  # value of the items without the field
LISTED = 20  # names of fields in a message

Numbers = dict[str, Any]  # `n_items`, totals, and `Estimate`s of means


def value_of(record: Mapping[str, Any], field: str) -> str:
    """Return an item's value of a field: a text as it is, another value as JSON writes it.

    Null, and a text of spaces alone, such as an empty cell of a table, is `NONE`.
    """
    value = record.get(field)
    if isinstance(value, str):
        return value if value.strip() else NONE
    return NONE if value is None else json.dumps(value, ensure_ascii=False)


def check_fields(
    system: System,
    settings: Any,
    items: Iterable[tuple[str, Mapping[str, Any]]],
    *,
    may_lack: bool = False,
) -> None:
    """Check that items have the fields of `settings.by`, with one value each.

    Args:
        items: name of each item, and the fields of the input that its record repeats.
        may_lack: True if items of other files may have a field that none of these has.

    Raises:
        InputError: an item has several values, or no item has the field.
    """
    fields, names = settings.by or (), dict[str, None]()
    results = scalar_fields(system.record) - settings.omitted_fields()
    for name, values in items:
        for field in fields:
            if isinstance(value := values.get(field), list | tuple | dict | np.ndarray):
                noun = json_kind(value if isinstance(value, dict) else [])
                raise InputError(
                    f"{name}: --by {field}: found {noun}, expected a text, a number, true, false "
                    "or null; give each item one value"
                )
        names.update(dict.fromkeys(values))
    others = [name for name in names if name not in system.record.__annotations__]
    for field in fields:
        if field not in names and field not in results and not may_lack:
            similar = near(field, {*names, *results})
            hint = f"is it {similar}? " if similar else ""
            listed = f"{', '.join(others[:LISTED])}{' …' if others[LISTED:] else ''}"
            raise InputError(
                f"--by {field}: no item has this field; {hint}expected one that the output "
                f"repeats, found {listed or 'none'}"
            )


def means_of(system: System, settings: Settings) -> list[tuple[str, str, Mean]]:
    """Return (name, field, declaration) of each mean, the main ones first.

    A field that the settings omit is the user's if a record has it.
    """
    omitted = settings.omitted_fields()
    means = [
        (mean.name or field, field, mean)
        for field, mean in metadata_of(system.record, Mean)
        if field not in omitted
    ]
    return sorted(means, key=lambda each: not each[2].is_main)


def slices_of(system: System, settings: Any, records: Iterable[Record]) -> dict[str, Numbers]:
    """Compute the means for each value of each field of `settings.by`, over the scored items.

    Returns:
        Field -> `n_without`, items without it; `all`, the numbers of all items; `macro`, name of a
        mean -> its mean over the values; `values`, value -> its numbers, that of most items first.
    """
    fields: dict[str, dict[str, int]] = {field: {} for field in getattr(settings, "by", None) or ()}
    if not fields:
        return {}
    table = _Table(system, settings)
    members = {field: array("q") for field in fields}
    for record in records:
        if "error" in record:
            continue
        table.add(record)
        for field, values in fields.items():
            members[field].append(values.setdefault(value_of(record, field), len(values)))
    overall = table.numbers(slice(None))
    out = {}
    for field, values in fields.items():
        order = np.argsort(members[field], kind="stable")
        sizes = np.bincount(members[field], minlength=len(values))
        ends = np.cumsum(sizes)
        by_size = np.argsort(-sizes, kind="stable").tolist()
        names = [*values]
        numbers = {names[k]: table.numbers(order[ends[k] - sizes[k] : ends[k]]) for k in by_size}
        out[field] = {
            "n_without": numbers.get(NONE, {}).get("n_items", 0),
            "all": overall,
            "macro": {
                name: _macro(each[name] for each in numbers.values()) for name in table.names
            },
            "values": numbers,
        }
    return out


def _macro(estimates: Iterable[Estimate]) -> float | None:
    """Return the mean of the means; None without any."""
    means = [each.mean for each in estimates if each.mean is not None]
    return sum(means) / len(means) if means else None


class _Table:
    """The numbers of all scored items, by column."""

    def __init__(self, system: System, settings: Any) -> None:
        self._settings, self._means = settings, means_of(system, settings)
        hints = typing.get_type_hints(system.record)
        self._shares = {
            name for name, field, _ in self._means if arrow_type(hints[field]) == "bool_"
        }
        self._columns = {name: array("d") for name, _, _ in self._means}
        self._weights = {mean.over: array("d") for _, _, mean in self._means}
        self._totals = {name: array("q") for name, _ in metadata_of(system.record, Total)}

    def add(self, record: Record) -> None:
        """Add a record without `error`."""
        for name, field, mean in self._means:
            value = record.get(field)
            if value is not None and mean.value is not None:
                value = mean.value(record)
            self._columns[name].append(np.nan if value is None else float(value))
        for field, weights in self._weights.items():
            weights.append(record[field] if field else 1)
        for field, total in self._totals.items():
            total.append(record[field])

    @functools.cached_property
    def names(self) -> list[str]:
        """The means of which an item has a number."""
        return [name for name, column in self._columns.items() if not np.isnan(column).all()]

    def numbers(self, rows: Any) -> Numbers:
        """Return the numbers of some rows."""
        first = next(iter(self._columns.values()))
        out: Numbers = {"n_items": len(np.asarray(first)[rows])}
        out |= {name: int(np.asarray(total)[rows].sum()) for name, total in self._totals.items()}
        for name, _, mean in self._means:
            if name in self.names:
                values = np.asarray(self._columns[name])[rows]
                weights = np.asarray(self._weights[mean.over])[rows]
                is_counted = ~np.isnan(values) & (weights > 0)
                out[name] = self._estimate(name, mean, values[is_counted], weights[is_counted])
        return out

    def _estimate(self, name: str, mean: Mean, values: np.ndarray, weights: np.ndarray) -> Estimate:
        if name in self._shares:
            return proportion(values)
        sums = values * weights
        estimate = ratio(sums, weights, self._settings.n_bootstrap, self._settings.seed)
        return estimate if mean.change is None else estimate.changed_by(mean.change)

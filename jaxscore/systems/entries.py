"""Items of a system from a file or from Python: typed, each with its place, and failing alone."""

import contextlib
import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from jaxscore.errors import InputError, NoItems, one_line
from jaxscore.io.items import NOTHING, named
from jaxscore.io.json_input import json_kind, require_field
from jaxscore.io.json_output import to_json_value
from jaxscore.systems.prompt_settings import PromptSettings
from jaxscore.systems.settings import Settings
from jaxscore.systems.system import System

SHOWN = 60  # characters of an id in a message
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Entry(Generic[T]):
    """One object of the input.

    Attributes:
        name: what messages call it: file, line and id.
        id: its own, else its line or place from 1.
        item: None if the object cannot be used; the object if the system's item is a TypedDict.
        error: why not.
        extra: its other fields, which its record repeats.
        given: all fields of an object that cannot be used, without `id` and those that have the
            name of a result.
    """

    name: str
    id: str | int
    item: T | None = None
    error: str | None = None
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def value(self) -> T:
        """The item of a usable entry."""
        assert self.item is not None
        return self.item


def iterate_file(
    system: System,
    path: Path,
    limit: int | None = None,
    columns: Mapping[str, str] = NOTHING,
    settings: Settings | None = None,
    prefix: str = "",
) -> Iterator[Entry[Any]]:
    """Read the items of a file one by one, in order.

    Args:
        path: in a form that the system reads.
        limit: read only the first so many; None reads all.
        columns: field -> its name in the file.
        settings: of the run, which decide the names that other fields may not have; None is all
            names of the record.
        prefix: of the ids of items without one, which are then text.

    Raises:
        InputError: the file cannot be read, or a strict system cannot use an item.
    """
    lists = _list_fields(system.item)
    if settings is not None:
        lists = (*lists, *settings.list_fields)
    rows = system.read_rows(path, columns, lists)
    reserved = system.result_fields(settings)
    for row in itertools.islice(rows, limit):
        number = f"{prefix}{row.number}" if prefix else row.number
        entry = read_entry(system, row.item, number, row.where, reserved)
        if system.is_strict and entry.error is not None:
            raise InputError(f"{row.where}: {entry.error}")
        yield entry


def check_file(
    system: System,
    path: Path,
    limit: int | None = None,
    columns: Mapping[str, str] = NOTHING,
    settings: Settings | None = None,
    prefix: str = "",
) -> int:
    """Read a file once, so that what is unusable is known before a model is loaded.

    Returns:
        The number of items.

    Raises:
        InputError: the file cannot be read, or can be read only once; no item is usable; or as
            `iterate_file`.
    """
    with contextlib.suppress(OSError):  # reading it explains what cannot be looked at
        if path.is_fifo():
            raise InputError(f"{path}: found a pipe, which can be read only once; give a file")
    first, n, n_usable = None, 0, 0
    try:
        for entry in iterate_file(system, path, limit, columns, settings, prefix):
            first, n, n_usable = first or entry, n + 1, n_usable + (entry.item is not None)
    except MemoryError:
        raise InputError(f"{path}: a line does not fit in memory") from None
    _check_usable(first, n_usable, system, f"{path}: ")
    return n


def read_file(
    system: System,
    path: Path,
    limit: int | None = None,
    columns: Mapping[str, str] = NOTHING,
    settings: Settings | None = None,
    prefix: str = "",
) -> list[Entry[Any]]:
    """Read the items of a file as `iterate_file` does, all at once.

    Raises:
        InputError: the file cannot be read, no item is usable, or the system refuses the items.
    """
    entries = list(iterate_file(system, path, limit, columns, settings, prefix))
    return _selected(system, entries, settings, f"{path}: ")


def iterate_objects(
    system: System, objects: Any, settings: Settings | None = None
) -> Iterator[Entry[Any]]:
    """Read items from objects as the input file has them.

    Raises:
        InputError: one item in place of a list of them.
    """
    reserved = system.result_fields(settings)
    if system.read_objects is not None:
        yield from system.read_objects(objects, reserved)
        return
    if isinstance(objects, str | Mapping):
        raise InputError(
            f"found one {_singular(system)}, expected a list of them; put it in brackets"
        )
    for place, value in enumerate(objects, start=1):
        converted = value if system.from_value is None else system.from_value(value)
        yield read_entry(system, converted, place, f"item {place}", reserved)


def read_objects(
    system: System, objects: Any, settings: Settings | None = None
) -> list[Entry[Any]]:
    """Read items as `iterate_objects` does, all at once.

    Raises:
        InputError: none is usable, or the system refuses them.
    """
    return _selected(system, list(iterate_objects(system, objects, settings)), settings)


def _selected(
    system: System, entries: list[Entry[Any]], settings: Settings | None, where: str = ""
) -> list[Entry[Any]]:
    """The entries of a run, see `System.select`; `where` is what messages begin with."""
    _check_usable(next(iter(entries), None), len(usable(entries)), system, where)
    if system.select is None or settings is None:
        return entries
    try:
        return list(system.select(entries, settings))
    except InputError as problem:
        raise InputError(f"{where}{problem}") from None


def usable(entries: Iterable[Entry[T]]) -> list[Entry[T]]:
    """The entries that have an item."""
    return [entry for entry in entries if entry.item is not None]


def _check_usable(first: Entry[Any] | None, n_usable: int, system: System, where: str = "") -> None:
    if first is None:
        raise NoItems(f"{where}found no {system.what}, expected at least one")
    if not n_usable:
        raise InputError(
            f"{where}no {_singular(system)} is usable; the first, {first.name}: {first.error}"
        )


def _singular(system: System) -> str:
    return system.what.removesuffix("s")


def read_entry(
    system: System, value: Any, number: int | str, where: str, reserved: Collection[str]
) -> Entry[Any]:
    """One item from an object.

    Args:
        number: the id of an item without `id`, such as its line or place from 1.
        where: file and line, for messages.
        reserved: names that its other fields may not have.
    """
    if typing.is_typeddict(system.item):
        if not isinstance(value, dict):
            raise InputError(f"item {number} is {json_kind(value)}, expected an object")
        return Entry(named(where, value), number, to_json_value(value))
    name = where if system.label is None else system.label(value, where)
    id: str | int = number
    extra: dict[str, Any] = {}
    try:
        if not isinstance(value, dict):
            expected = "an object" if system.from_value is None else "a text or an object"
            raise InputError(f"{where}: found {json_kind(value)}, expected {expected}")
        if system.has_ids and "id" in value:
            id = require_field(value, "id", (str, int), where)
            if Path(where).name != str(id):  # a file that is one item is called by its path
                name = f"{where} (id {one_line(str(id), SHOWN)})"
        if system.has_ids:
            extra = {field: v for field, v in value.items() if field not in system.item_fields}
        if clashing := sorted(extra.keys() & reserved):
            raise InputError(f"{where}: {taken_field(clashing[0])}")
        return Entry(name, id, _item(system.item, value, where), None, extra)
    except InputError as problem:
        given = {}
        if system.has_ids and isinstance(value, dict):
            given = {field: v for field, v in value.items() if field not in {"id", *reserved}}
        return Entry(name, id, error=str(problem).removeprefix(f"{where}: "), given=given)


def read_item(system: System, value: Any, number: int, where: str) -> Any:
    """The item of an object whose other fields do not matter, or of an item as it is.

    Raises:
        InputError: it cannot be used, with its place.
    """
    if isinstance(value, system.item):
        return value
    entry = read_entry(system, value, number, where, ())
    if entry.item is None:
        raise InputError(f"{where}: {entry.error}")
    return entry.item


def with_examples(system: System, settings: Any) -> Any:
    """The settings with their few-shot examples read as items of the system, if they have any.

    Raises:
        InputError: an example cannot be used.
    """
    if not isinstance(settings, PromptSettings):
        return settings
    return settings.with_examples(system.read_example or functools.partial(read_item, system))


def taken_field(name: str) -> str:
    """Message about a field of the input with the name of a field of the record."""
    return (
        f'field "{name}" is one of the results that the output line has; rename it, or leave it out'
    )


def _item(kind: type[T], value: dict[str, Any], where: str) -> T:
    """An item from an object; `kind` checks what its types do not say."""
    arguments: dict[str, Any] = {}
    for name, is_required, kinds in _fields(kind):  # type: ignore[arg-type]
        if is_required or name in value:
            found: Any = (
                value.get(name) if kinds is None else require_field(value, name, kinds, where)
            )
            arguments[name] = tuple(found) if kinds == (list,) else found
    try:
        return kind(**arguments)
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None


@functools.cache
def _fields(kind: type) -> list[tuple[str, bool, tuple[type, ...] | None]]:
    """Of each field of an item the name, whether it is required, and the types of `_json_types`."""
    hints = typing.get_type_hints(kind)
    return [
        (field.name, field.default is dataclasses.MISSING, _json_types(hints[field.name]))
        for field in dataclasses.fields(kind)
    ]


def _json_types(hint: Any) -> tuple[type, ...] | None:
    """Python types that JSON gives for a declared type; None for any."""
    if hint is Any:
        return None
    if isinstance(hint, types.UnionType):
        parts = [_json_types(part) for part in typing.get_args(hint)]
        return None if None in parts else tuple(t for part in parts if part for t in part)
    origin = typing.get_origin(hint) or hint
    return {tuple: (list,), Sequence: (list,), Mapping: (dict,)}.get(origin, (origin,))


def _list_fields(kind: type) -> tuple[str, ...]:
    """Fields that hold a list, which a table may have as JSON text."""
    hints = typing.get_type_hints(kind)
    return tuple(
        name
        for name, hint in hints.items()
        if any(typing.get_origin(part) in (tuple, list) for part in (hint, *typing.get_args(hint)))
    )

"""The input of a run: typed items, each with its place; an unusable one fails alone."""

import contextlib
import dataclasses
import functools
import itertools
import random
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError, NoItems, NothingUsable, one_line
from jaxscore.io.items import NOTHING, Row, named
from jaxscore.io.json_input import NAMES, json_kind, require_field
from jaxscore.io.json_output import json_line, to_json_value
from jaxscore.io.tables import plain_row
from jaxscore.shell.prompts import ExampleItem, PromptSettings
from jaxscore.shell.settings import Settings
from jaxscore.shell.slices import check_fields
from jaxscore.shell.system import SHOWN, Record, System, id_field, item_fields


class NullError(InputError):
    """A required field is null, as in a table with a missing value."""


MISSING = ("NaTType", "NAType")  # types of pandas for a missing value


@dataclasses.dataclass(frozen=True)
class Entry:
    """One object of the input.

    Attributes:
        name: its name in messages: file, line and id.
        id: its own, else its line or place from 1.
        item: None if the object cannot be used.
        error: why not.
        is_null: a required field is null, so that the object is not of another form.
        extra: fields that its record repeats: the other ones; of an object that cannot be used all
            that its record does not declare.
    """

    name: str
    id: str | int
    item: Any = None
    error: str | None = None
    is_null: bool = dataclasses.field(default=False, kw_only=True)
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Items(Sequence[Any]):
    """The usable items of an input. Each iteration reads it anew, so that memory stays bounded.

    Attributes:
        n_all, n_usable: number of objects, and of those with an item.
        is_file: a file has the objects, not Python.
        recalled: place from 0 -> record of an earlier output that stays, see `recall`.
    """

    def __init__(
        self,
        system: System,
        rows: Callable[[], Iterable[Row]],
        settings: Settings,
        *,
        prefix: str = "",
        limit: int | None = None,
        is_file: bool = True,
    ) -> None:
        """Read all objects once.

        Args:
            rows: reads them.
            prefix: prefix of the ids of items without one, which are then text.
            limit: use only so many first objects; None uses all.

        Raises:
            InputError: from `rows`.
        """
        self._system, self._rows, self._prefix, self._limit = system, rows, prefix, limit
        self._reserved = result_fields(system, settings)
        self._settings = settings
        self.is_file = is_file
        self._undrawn: Collection[int] = ()
        self.recalled: dict[int, Record] = {}
        self._first: Entry | None = None
        self._malformed: Entry | None = None
        self.n_all = self.n_usable = 0
        for entry in self.entries():
            self.n_all, self.n_usable = self.n_all + 1, self.n_usable + (entry.error is None)
            if self._first is None or (self._first.error is None and entry.error is not None):
                self._first = entry
            if self._malformed is None and entry.error is not None and not entry.is_null:
                self._malformed = entry

    def entries(self) -> Iterator[Entry]:
        """All objects, unusable ones included."""
        for place, row in enumerate(itertools.islice(self._rows(), self._limit)):
            if place in self._undrawn:
                continue
            number = f"{self._prefix}{row.number}" if self._prefix else row.number
            entry = read_entry(
                self._system, row.item, number, row.where, self._reserved, is_row=self.is_file
            )
            item = self._settings.complete(entry.item, entry.extra)
            yield entry if item is entry.item else dataclasses.replace(entry, item=item)

    def require_usable(self, *, all_of_them: bool = False) -> None:
        """Refuse an input without a usable item.

        Args:
            all_of_them: refuse an unusable item too, unless a required field is null there.

        Raises:
            InputError: names the first unusable item.
        """
        what = self._system.what
        if self._first is None:
            raise NoItems(f"found no {what}, expected at least one")
        if all_of_them and (bad := self._malformed) is not None:
            raise InputError(f"{bad.name}: {bad.error}")
        if not self.n_usable:
            raise InputError(
                f"no {what.removesuffix('s')} is usable; the first, {self._first.name}: "
                f"{self._first.error}"
            )

    def check_slices(self, *, may_lack: bool = False) -> None:
        """Check the fields of the setting `by`; see `check_fields`."""
        if getattr(self._settings, "by", None):
            items = ((entry.name, entry.extra) for entry in self.entries())
            check_fields(self._system, self._settings, items, may_lack=may_lack)

    def draw(self, n: int, seed: int) -> None:
        """Keep n of the usable items, drawn by a seed, and all unusable ones, in their order."""
        self._undrawn = ()
        usable = [place for place, entry in enumerate(self.entries()) if entry.error is None]
        drawn = random.Random(seed).sample(range(len(usable)), min(n, len(usable)))
        self._undrawn = frozenset(usable) - {usable[k] for k in drawn}
        self.n_all, self.n_usable = self.n_all - self.n_usable + len(drawn), len(drawn)

    def recall(self, earlier: Sequence[Record], settings: Settings, made: Mapping[str, Any]) -> int:
        """Find the records of an earlier output that may stay, see `System.recall`.

        Args:
            earlier: item k's record at place k.
            made: facts of this run's records, as far as they are known, see `made.record_facts`.

        Returns:
            The number of records of other items than those in their places.

        Raises:
            InputError: the output is not of this input, or was made in another way.
        """
        if len(earlier) > self.n_all:
            raise InputError(
                f"holds {len(earlier)} items and the input {self.n_all}, so it is not of this input"
            )
        self.recalled, n_changed = {}, 0
        records = itertools.chain(earlier, itertools.repeat({}))
        for place, (entry, record) in enumerate(zip(self.entries(), records, strict=False)):
            stays = self._system.recall(entry, record, settings, made)
            n_changed += stays is None and place < len(earlier)
            if stays:
                self.recalled[place] = record
        if n_changed and n_changed == len(earlier):
            raise InputError("none of its items is the one in the same place of this input")
        return n_changed

    def named_model(self, field: str) -> tuple[str, int]:
        """The model that the first object names, and the number of objects that name another.

        Raises:
            InputError: it names none.
        """
        first, n_others = None, 0
        for entry in self.entries():
            name = (entry.item or {}).get(field)
            if first is None and not isinstance(name, str):
                raise InputError(
                    f'{entry.name} has no string "{field}" that names the model; give --model'
                )
            first = first or name
            n_others += name != first
        return str(first), n_others

    def __len__(self) -> int:
        return self.n_usable

    def __iter__(self) -> Iterator[Any]:
        return (entry.item for entry in self.entries() if entry.error is None)

    def __getitem__(self, place: Any) -> Any:
        raise TypeError("items are read in order")


def read_file(
    system: System,
    path: Path,
    settings: Any,
    *,
    columns: Mapping[str, str] = NOTHING,
    prefix: str = "",
    limit: int | None = None,
) -> Items:
    """The items of a file, checked before a model is loaded.

    Args:
        columns: see `System.read`.
        prefix, limit: see `Items`.

    Raises:
        InputError: the file cannot be read, or its items cannot be used.
    """
    with contextlib.suppress(OSError):  # reading it explains what cannot be looked at
        if path.is_fifo():
            raise InputError(f"{path}: found a pipe, which can be read only once; give a file")
    lists = list_fields(system, settings)
    try:
        items = Items(
            system, lambda: system.read(path, columns, lists), settings, prefix=prefix, limit=limit
        )
        system.check(items, settings)
        items.check_slices(may_lack=bool(prefix))
    except MemoryError:
        raise InputError(f"{path}: a line does not fit in memory") from None
    except InputError as problem:
        if str(problem).startswith(str(path)):
            raise
        raise type(problem)(f"{path}: {problem}") from None
    return items


def check_usable(errors: Iterable[tuple[str, str | None]]) -> None:
    """Check that not all items have an error.

    Args:
        errors: name and error of each item.

    Raises:
        NothingUsable: every item has an error.
    """
    first = None
    for name, error in errors:
        if error is None:
            return
        first = first or f"no item can be used; {name}: {error}"
    raise NothingUsable(str(first))


def scored(
    system: System, lm: Any, items: Items, settings: Settings
) -> Iterator[tuple[Entry, Record]]:
    """All objects of the input, each with its record, which has their ids and other fields."""
    records, field = iter(system.score(lm, items, settings)), id_field(system)
    for entry in items.entries():
        record = next(records) if entry.error is None else {"error": entry.error}
        yield entry, record if field is None else {field: entry.id, **record, **entry.extra}
    if next(records, None) is not None:
        raise AssertionError(f"{system.name}: more records than items")


def read_entry(
    system: System,
    value: Any,
    number: int | str,
    where: str,
    reserved: Collection[str],
    *,
    is_row: bool = False,
) -> Entry:
    """One item from an object, which may be an `Entry` already if it is unusable.

    Args:
        number: the id of an item without `id`, such as its line or place from 1.
        where: file and line, for messages.
        reserved: names that its other fields may not have.
        is_row: it is of a file, whose other fields the record has even without an id.
    """
    if isinstance(value, Entry):
        return value
    if typing.is_typeddict(system.item):
        if not isinstance(value, dict):
            raise InputError(f"{where} is {json_kind(value)}, expected an object")
        return Entry(named(where, value), number, to_json_value(json_fields(value, where)))
    name = where
    id: str | int = number
    extra: dict[str, Any] = {}
    has_ids = id_field(system) == "id"
    has_extra = has_ids or is_row
    try:
        if not isinstance(value, dict):
            raise InputError(f"{where}: found {json_kind(value)}, expected an object")
        if has_ids and value.get("id") is not None:
            id = require_field(value, "id", (str, int), where)
            if Path(where).name != str(id):  # a file that is one item is called by its path
                name = f"{where} (id {one_line(str(id), SHOWN)})"
        if has_extra:
            fields = item_fields(system)
            extra = json_fields({k: v for k, v in value.items() if k not in fields}, where)
        if clashing := sorted(extra.keys() & reserved):
            raise InputError(f"{where}: {taken_field(clashing[0])}")
        if system.layout is not None and not system.layout.repeats:
            extra = {}
        return Entry(name, id, item_of(system.item, value, where), None, extra)
    except InputError as problem:
        extra = {}
        if has_extra and system.layout is None and isinstance(value, dict):
            declared = {*reserved, *system.record.__annotations__}
            with contextlib.suppress(InputError):  # the problem itself
                extra = json_fields({k: v for k, v in value.items() if k not in declared}, where)
        error = str(problem).removeprefix(f"{where}: ")
        return Entry(name, id, None, error, extra, is_null=isinstance(problem, NullError))


def result_fields(system: System, settings: Settings) -> frozenset[str]:
    """Return the names that an input object may not use, since the record has them."""
    if system.layout is not None and not system.layout.repeats:
        return frozenset()
    names = frozenset(system.record.__annotations__) - {*item_fields(system)} | {"error"}
    return names - settings.omitted_fields()


def json_fields(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert fields from Python that JSON cannot hold as `io.tables.plain_row` does.

    Raises:
        InputError: one cannot be converted.
    """
    with contextlib.suppress(TypeError):
        json_line(fields)
        return fields
    if len(fields) > 1:
        each = (json_fields({name: value}, where) for name, value in fields.items())
        return {name: value for field in each for name, value in field.items()}
    if any(type(value).__name__ in MISSING for value in fields.values()):
        return dict.fromkeys(fields)
    return plain_row(fields, where)


def taken_field(name: str) -> str:
    """Message about a field of the input with the name of a field of the record."""
    return (
        f'field "{name}" is one of the results that the output line has; rename it, or leave it out'
    )


def item_of(kind: type, value: dict[str, Any], where: str) -> Any:
    """An item from an object; `kind` checks what its types do not say.

    Raises:
        InputError: the object cannot be used, with its place.
    """
    arguments: dict[str, Any] = {}
    try:
        value = kind.normalize(value) if hasattr(kind, "normalize") else value
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None
    for name, is_required, kinds in _fields(kind):
        if is_required and name not in value and kinds is not None:
            raise InputError(_missing(name, kinds, value, where))
        if not is_required and value.get(name) is None:  # null is missing, as tables have it
            continue
        if kinds is None:
            arguments[name] = value.get(name)
            continue
        try:
            field = require_field(value, name, kinds, where)
        except InputError as problem:
            raise (NullError if value[name] is None else InputError)(str(problem)) from None
        arguments[name] = tuple(field) if kinds == (list,) else field
    try:
        return kind(**arguments)
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None


# Names that other data sets have for a field.
LIKELY = {
    "context": "question prompt query input stem sentence premise",
    "continuation": "answer sentence text completion response target output",
    "options": "choices endings answers candidates",
    "question": "query prompt input",
    "text": "document content sentence body",
    "prompt": "question query input instruction",
    "response": "answer output prediction completion",
}


def _missing(name: str, kinds: tuple[type, ...], value: Mapping[str, Any], where: str) -> str:
    """Return the message about a required field that an object lacks."""
    expected = " or ".join(NAMES[kind] for kind in kinds)
    names = sorted(value)
    similar = [field for field in names if field != "id" and isinstance(value[field], kinds)]
    likely = LIKELY.get(name, "").split()
    similar.sort(key=lambda field: field.lower() not in likely)
    hint = f"; if it is {similar[0]!r}, add --column {name}={similar[0]}" if similar else ""
    fields = ", ".join(map(repr, names)) or "none"
    return f'{where}: no field "{name}", expected {expected}; there are {fields}{hint}'


def with_examples(system: System, settings: Any) -> Any:
    """The settings with their few-shot examples read as items of the system, if they have any.

    Raises:
        InputError: an example cannot be used.
    """

    def read(value: Any, position: int, where: str) -> Any:
        if not isinstance(value, system.item | dict):
            raise InputError(f"{where}: found {json_kind(value)}, expected an object")
        item = item_of(system.item, value, where) if isinstance(value, dict) else value
        if isinstance(item, ExampleItem):
            try:
                item.check_example()
            except InputError as problem:
                raise InputError(f"{where}: {problem}") from None
        return item

    return settings.with_examples(read) if isinstance(settings, PromptSettings) else settings


@functools.cache
def _fields(kind: Any) -> list[tuple[str, bool, tuple[type, ...] | None]]:
    """Return (name, True if it is required, types of `_json_types`) of each field of an item."""
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


def list_fields(system: System, settings: Settings) -> tuple[str, ...]:
    """Fields that hold a list, which a table may have as JSON text."""
    hints = typing.get_type_hints(system.item)
    own = (
        name
        for name, hint in hints.items()
        if any(
            typing.get_origin(part) in (tuple, list, Sequence)
            for part in (hint, *typing.get_args(hint))
        )
    )
    return (*own, *settings.list_fields)

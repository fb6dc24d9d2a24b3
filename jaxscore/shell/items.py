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
from jaxscore.io.json_input import (
    NAMES,
    check_regular,
    json_kind,
    read_lines,
    read_text,
    require_field,
)
from jaxscore.io.json_output import json_line, to_json_value
from jaxscore.io.streams import form_of
from jaxscore.io.tables import is_dataset, plain_row
from jaxscore.shell.prompts import ExampleItem, PromptSettings
from jaxscore.shell.settings import Settings
from jaxscore.shell.slices import check_fields
from jaxscore.shell.system import SHOWN, Record, System, id_field, item_fields


class NullError(InputError):
    """A required field is null, as in a table with a missing value."""


UNLESS = "unless"  # metadata: the field that an object may have in place of a required one
MISSING = ("NaTType", "NAType")  # types of pandas for a missing value
TABLES = frozenset({".jsonl", ".json", ".csv", ".tsv", ".parquet"})


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
            self._settings = self._settings.adapted(entry.item)
            if self._first is None or (self._first.error is None and entry.error is not None):
                self._first = entry
            if self._malformed is None and entry.error is not None and not entry.is_null:
                self._malformed = entry

    @property
    def settings(self) -> Any:
        """The settings with the defaults that the items need."""
        return self._settings

    def entries(self) -> Iterator[Entry]:
        """All objects, unusable ones included."""
        for index, row in enumerate(itertools.islice(self._rows(), self._limit)):
            if index in self._undrawn:
                continue
            number = f"{self._prefix}{row.number}" if self._prefix else row.number
            entry = read_entry(
                self._system, row.item, number, row.where, self._reserved, is_row=self.is_file
            )
            try:
                item = self._settings.complete(entry.item, entry.extra)
            except InputError as problem:
                is_null = isinstance(problem, NullError)
                yield dataclasses.replace(entry, item=None, error=str(problem), is_null=is_null)
                continue
            yield entry if item is entry.item else dataclasses.replace(entry, item=item)

    def shared_columns(self) -> dict[str, str]:
        """Return name -> Arrow type of what `shared` returns for all objects."""
        columns: dict[str, str] = {}
        for entry in self.entries():
            for name, value in self.shared(entry).items():
                kinds = columns.get(name, "null"), _column_type(value)
                columns[name] = _JOINT_TYPES.get(frozenset(kinds), "json")
        return columns

    def shared(self, entry: Entry) -> dict[str, Any]:
        """Return what all rows of an object have: its id, and fields that no setting reads."""
        read = self._settings.further_fields
        others = {name: value for name, value in entry.extra.items() if name not in read}
        return {"id": entry.id, **others}

    def require_usable(self, *, all_of_them: bool = False) -> None:
        """Refuse an input without a usable item.

        Args:
            all_of_them: refuse an unusable item too, unless a required field is null there.

        Raises:
            InputError: names the first unusable item.
        """
        items = self._system.what
        if self._first is None:
            raise NoItems(f"found no {items}, expected at least one")
        if all_of_them and (bad := self._malformed) is not None:
            raise InputError(f"{bad.name}: {bad.error}")
        if not self.n_usable:
            raise InputError(
                f"no {items.removesuffix('s')} is usable; the first, {self._first.name}: "
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
        usable = [index for index, entry in enumerate(self.entries()) if entry.error is None]
        drawn = random.Random(seed).sample(range(len(usable)), min(n, len(usable)))
        self._undrawn = frozenset(usable) - {usable[k] for k in drawn}
        self.n_all, self.n_usable = self.n_all - self.n_usable + len(drawn), len(drawn)

    def recall(
        self, earlier: Sequence[Record], settings: Settings, facts: Mapping[str, Any]
    ) -> int:
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
        for index, (entry, record) in enumerate(zip(self.entries(), records, strict=False)):
            stays = self._system.recall(entry, record, settings, facts)
            n_changed += stays is None and index < len(earlier)
            if stays:
                self.recalled[index] = record
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
                    f'{entry.name} lacks the string "{field}" that names the model; give --model'
                )
            first = first or name
            n_others += name != first
        return str(first), n_others

    def __len__(self) -> int:
        return self.n_usable

    def __iter__(self) -> Iterator[Any]:
        return (entry.item for entry in self.entries() if entry.error is None)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("items are read in order")


_JOINT_TYPES = {
    frozenset({"null", name}): name for name in ("null", "bool_", "int64", "float64", "string")
} | {frozenset({name}): name for name in ("bool_", "int64", "float64", "string")}
_JOINT_TYPES[frozenset({"int64", "float64"})] = "float64"


def _column_type(value: Any) -> str:
    """Return Arrow's name of a JSON value's type; objects and lists are JSON text."""
    if isinstance(value, bool):
        return "bool_"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "json"
    kinds = {type(None): "null", float: "float64", str: "string"}
    return kinds.get(type(value), "json")


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
    lists, by_line = list_fields(system, settings), getattr(settings, "lines", False)
    try:
        items = Items(
            system,
            lambda: rows_of(system, path, columns, lists, by_line=by_line),
            settings,
            prefix=prefix,
            limit=limit,
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


def rows_of(
    system: System,
    path: Path,
    columns: Mapping[str, str] = NOTHING,
    lists: Sequence[str] = (),
    *,
    by_line: bool = False,
) -> Iterator[Row]:
    """Read the objects of a file, which may be plain text if the system declares a `text_field`.

    Args:
        columns, lists: see `System.read`.
        by_line: each line of a plain text is an item; otherwise the file is one.

    Raises:
        InputError: the file cannot be read, or is not plain text although `by_line` is set.
    """
    field = system.text_field
    is_folder = path.is_dir() and not is_dataset(path)
    files = sorted(path.glob("*.txt")) if is_folder else [path]
    if not field or not files or not (is_folder or form_of(path) == ".txt"):
        if by_line:
            raise InputError(
                f"{path}: --lines reads plain text, whose name ends in .txt; leave it out"
            )
        try:
            yield from system.read(path, columns, lists)
        except InputError as problem:
            if (
                not field
                or path.is_dir()
                or form_of(path) in TABLES
                or isinstance(problem, NoItems)
            ):
                raise
            raise InputError(f"{problem}; the name of a plain text ends in .txt") from None
        return
    if columns:
        raise InputError(f"{path}: --column names fields of a table, and text files have none")
    for number, file in enumerate(files, start=1):
        check_regular(file)
        if not by_line:
            yield Row(number, str(file), {"id": file.name, field: read_text(file)})
            continue
        for line, text in read_lines(file):
            if text.strip():
                ids = {"id": f"{file.name}:{line}"} if is_folder else {}
                yield Row(line, f"{file}:{line}", {**ids, field: text})


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
    names = {*settings.record_fields(system.record), *settings.row_columns()}
    return frozenset(names - {*item_fields(system)} | {"error"})


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


def item_of(item_type: type, value: dict[str, Any], where: str) -> Any:
    """An item from an object; `kind` checks what its types do not say.

    Raises:
        InputError: the object cannot be used, with its place.
    """
    arguments: dict[str, Any] = {}
    try:
        value = item_type.normalize(value) if hasattr(item_type, "normalize") else value
    except InputError as problem:
        raise InputError(f"{where}: {problem}") from None
    for name, is_always_required, unless, kinds in _fields(item_type):
        is_required = is_always_required or (unless is not None and value.get(unless) is None)
        if is_required and name not in value and kinds is not None:
            raise InputError(_missing(name, kinds, value, where, unless))
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
        return item_type(**arguments)
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


def _missing(
    name: str,
    kinds: tuple[type, ...],
    value: Mapping[str, Any],
    where: str,
    unless: str | None = None,
) -> str:
    """Return the message about a required field that an object lacks.

    Args:
        unless: the field of a list of objects that the object may have instead, if any.
    """
    objects = [k for k, v in value.items() if isinstance(v, list) and v and isinstance(v[0], dict)]
    if unless is not None and objects:
        return (
            f'{where}: no field "{name}" or "{unless}"; if the list of {unless} is {objects[0]!r}, '
            f"add --column {unless}={objects[0]}"
        )
    expected = " or ".join(NAMES[json_type] for json_type in kinds)
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
def _fields(item_type: Any) -> list[tuple[str, bool, str | None, tuple[type, ...] | None]]:
    """Return (name, True if it is required, `UNLESS`, types of `_json_types`) of each field."""
    hints = typing.get_type_hints(item_type)
    return [
        (
            field.name,
            field.default is dataclasses.MISSING,
            field.metadata.get(UNLESS),
            _json_types(hints[field.name]),
        )
        for field in dataclasses.fields(item_type)
    ]


def _json_types(hint: Any) -> tuple[type, ...] | None:
    """Python types that JSON gives for a declared type; None for any."""
    if hint is Any:
        return None
    if isinstance(hint, types.UnionType):
        parts = [_json_types(argument) for argument in typing.get_args(hint)]
        return (
            None if None in parts else tuple(t for argument in parts if argument for t in argument)
        )
    origin = typing.get_origin(hint) or hint
    return {tuple: (list,), Sequence: (list,), Mapping: (dict,)}.get(origin, (origin,))


def list_fields(system: System, settings: Settings) -> tuple[str, ...]:
    """Fields that hold a list, which a table may have as JSON text."""
    hints = typing.get_type_hints(system.item)
    names = (
        name
        for name, hint in hints.items()
        if any(
            typing.get_origin(argument) in (tuple, list, Sequence)
            for argument in (hint, *typing.get_args(hint))
        )
    )
    return (*names, *settings.list_fields)

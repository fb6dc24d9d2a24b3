"""The declaration of a system: items in, records out, and a summary of the records.

    items ── score(lm, items, settings) ──> records ── summarize ──> Summary ── report ──> Document
             streams, resumes, shards       on disk     pure, streaming

The end of a run, `merge`, `report` and `compare` read the records with the same two functions.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jaxscore.errors import InputError, one_line
from jaxscore.io.items import NOTHING, Row, read_lenient_rows, read_rows
from jaxscore.shell.fields import (
    Paired,
    Result,
    arrow_type,
    is_per_token,
    metadata_of,
)
from jaxscore.shell.settings import Settings
from jaxscore.types.requests import Request

if TYPE_CHECKING:
    from jaxscore.report.document import Document
    from jaxscore.shell.items import Entry, Items
    from jaxscore.shell.report import Report

Record = dict[str, Any]
T = typing.TypeVar("T")
SHOWN = 60  # characters of an id in a message
PAGE = "_page"  # field of a record that the page displays, and that no file has
ROWS = "_rows"  # field of a record with its rows, some at a time: column -> values


@dataclasses.dataclass(frozen=True, slots=True)
class Aside(Request):
    """A request of no item, such as an option after a premise: no audit counts or draws it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rewritten(Request):
    """A request that is another text under other boundaries, which their audit cannot see.

    Attributes:
        boundaries: their names.
    """

    boundaries: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of the records.

    Attributes:
        headline: the result in one line.
        numbers: `Estimate`s and counts by name.
        details: further fields of the report's JSON file.
        failures: (name, why) of what has an error.
        warnings: about valid but suspicious input.
        lines: lines that the command prints before its closing block.
        is_complete: False if something other than an item is missing; the exit code is then 1.
    """

    headline: str
    numbers: Mapping[str, Any]
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failures: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    lines: Sequence[str] = ()
    is_complete: bool = True


class Layout(NamedTuple):
    """An output that is one JSON array, as published scripts write it.

    Attributes:
        is_ascii: other characters are escaped and the indentation is 4; otherwise it is 2.
        repeats: records have the other fields of the input.
        ending: end of the default name next to the input, without `.json`; empty if --output is
            required.
        ending_of: computes it from the items and the settings; `ending` is then for --help.
    """

    is_ascii: bool
    repeats: bool = True
    ending: str = ""
    ending_of: Callable[["Items", Any], str] | None = None


class System:
    """One evaluation. A subclass declares three types and two functions; the rest has defaults.

    Attributes:
        name: the command, and the name in `evaluate`. The docstring is the help.
        what: its items, in the plural.
        item, settings, record: types of an input object (a frozen dataclass that checks itself, or
            a TypedDict to get the object as it is), of the settings, and of an output line. The
            shell fills the first field of the record: `id`, or a name for the item's place. The
            record of a TypedDict is whole.
        parts: field of the record with a list of objects that each have numbers.
        text_field: field of an item that a plain text is; empty if `.txt` files are not read.
        layout: layout of an output that is one JSON array; None if the output's name decides.
    """

    name: ClassVar[str]
    what: ClassVar[str] = "items"
    item: ClassVar[type]
    settings: ClassVar[type[Settings]]
    record: ClassVar[type]
    parts: ClassVar[str] = ""
    text_field: ClassVar[str] = ""
    layout: ClassVar[Layout | None] = None

    def score(self, lm: Any, items: Sequence[Any], settings: Any) -> Iterator[Record]:
        """Yield one record per item, in order, without its id and the item's other fields.

        `items` may be iterated several times, and is read anew each time. A record may have
        `PAGE`, and `ROWS` if the settings have `row_columns`. An item that cannot be scored has a
        record with `error`.
        """
        raise NotImplementedError

    def summarize(self, records: Sequence[Record], settings: Any) -> Summary:
        """Summarize finished records. Pure; reads them as often as it needs.

        Records are as JSON has them: NaN is null, infinities are "Infinity" and "-Infinity".
        """
        raise NotImplementedError

    def report(self, run: "Report") -> "Document | None":
        """The Markdown report and the page, or None."""
        return None

    def findings(self, run: "Report") -> Sequence[str]:
        """Sentences without a full stop that say how the headline is to be read."""
        return ()

    def needs(self, settings: Any) -> tuple[str | type, ...]:
        """Return the model's capabilities, see `lm.Capabilities`, or its type; empty for no model.

        Args:
            settings: None for those of any settings.
        """
        return ("scores",)

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """Read the objects of an input: of a file, by its path, or from Python.

        Args:
            columns, lists: see `io.items.read_rows`.

        Raises:
            InputError: a file that cannot be read, or one object in place of a list of them.
        """
        if isinstance(source, Path):
            yield from read_rows(source, columns, lists)
            return
        if isinstance(source, str | Mapping):
            raise InputError(
                f"found one {self.what.removesuffix('s')}, expected a list of them; put it in "
                "brackets"
            )
        for number, value in enumerate(source, start=1):
            yield Row(number, f"item {number}", value)

    def check(self, items: "Items", settings: Any) -> None:
        """Refuse or draw items before a model is loaded; by default refuse if none is usable."""
        items.require_usable()

    def recall(
        self, entry: "Entry", record: Record, settings: Any, current: Mapping[str, Any]
    ) -> bool | None:
        """Decide if a record of an earlier output may stay; `score` finds it in `Items.recalled`.

        By default outputs are made anew; finished requests come from the journal in any case.

        Args:
            record: at the entry's place in that output; empty beyond its end.
            made: see `Items.recall`.

        Returns:
            True if the entry needs no model, False if the record is of the entry and has to be
            made again, None if it is of another entry.

        Raises:
            InputError: it was made in another way.
        """
        return False

    def name_of(self, record: Record) -> str:
        """Return the name of a failed record, as `summarize` gives it."""
        return name_of(record, id_field(self) or "id")

    def rows(self, record: Record) -> Iterable[Record]:
        """Return the rows of a record in a data frame; by default one for each part."""
        if not self.parts:
            return [record]
        shared = {name: value for name, value in record.items() if name != self.parts}
        return [{**shared, **entry} for entry in record.get(self.parts, ())]


class LenientSystem(System):
    """A system whose files may have NaN and infinities, as Python's `json` writes them."""

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """See `System.read`."""
        if isinstance(source, Path):
            return read_lenient_rows(source, columns, lists)
        return super().read(source, columns, lists)


def id_field(system: System) -> str | None:
    """Return the field of a record with the item's id, its first; None if `score` makes it."""
    return None if typing.is_typeddict(system.item) else next(iter(system.record.__annotations__))


@functools.cache
def item_fields(system: System) -> tuple[str, ...]:
    """Return the names of the input's fields."""
    ids = ("id",) if id_field(system) == "id" else ()
    return tuple(dict.fromkeys((*ids, *typing.get_type_hints(system.item))))


def table_columns(system: System, settings: Settings) -> dict[str, str]:
    """Return column -> Arrow type of the records as a table, see `io.records`; none of an array."""
    if system.layout is not None:
        return {}
    summary_only = getattr(settings, "summary_only", False)
    return {
        name: arrow_type(hint)
        for name, hint in settings.record_fields(system.record).items()
        if name != "id" and not (summary_only and is_per_token(hint))
    }


def units(system: System, record: Record) -> Iterable[Record]:
    """Return the units of numbers: the record, or each of its parts; none of a failed record."""
    if "error" in record:
        return ()
    return record[system.parts] if system.parts else (record,)


def unit_type(system: System) -> type:
    """Return the declared type of a unit."""
    if not system.parts:
        return system.record
    (unit,) = typing.get_args(typing.get_type_hints(system.record)[system.parts])
    return typing.cast(type, unit)


def unit_title(system: System) -> str:
    """Return the name of the units in the plural: of items, or of what identifies a part."""
    return f"{unit_fields(system, Paired)[0][0]}s" if system.parts else system.what


def unit_fields(system: System, metadata_type: type[T]) -> list[tuple[str, T]]:
    """Fields of a unit with their metadata of a type, such as `Decision`."""
    return metadata_of(unit_type(system), metadata_type)


def result_of(system: System) -> tuple[str, str]:
    """Return field and title of a unit's `Result`; both are empty without one."""
    return next(((name, result.title) for name, result in unit_fields(system, Result)), ("", ""))


def name_of(record: Mapping[str, Any], id_field: str = "id") -> str:
    """Return the name of a record in messages: its id, or such as "line 3" without ids."""
    id = record.get(id_field)
    is_place = id_field != "id" and not isinstance(id, str)
    return one_line(f"{id_field} {id}" if is_place else str(id), SHOWN)


def failed(records: Iterable[Mapping[str, Any]], id_field: str = "id") -> list[tuple[str, str]]:
    """(name, why) of the records that have an `error`."""
    return [(name_of(record, id_field), record["error"]) for record in records if "error" in record]

"""The declaration of a system: items in, records out, and a summary of the records.

    items ── score(lm, items, settings) ──> records ── summarize ──> Summary ── report ──> Document
             streams, resumes, shards       on disk     pure, streaming

The end of a run, `merge`, `report` and `compare` read the records with the same two functions.
"""

import dataclasses
import functools
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jaxscore.errors import InputError, one_line
from jaxscore.io.items import NOTHING, Row, read_rows
from jaxscore.io.tables import is_dataset
from jaxscore.shell.fields import (
    Paired,
    PublishedFlags,
    arrow_type,
    metadata_of,
    per_token_fields,
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
FORMS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt")
FILES = frozenset({"markdown", "json", "page"})


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
        ending: end of the default name next to the input, for --help; empty if --output is
            required. See `System.ending`.
    """

    is_ascii: bool
    repeats: bool = True
    ending: str = ""


class System:
    """One evaluation. A subclass declares three types and two functions; the rest has defaults.

    Attributes:
        name: the command, and the name in `evaluate`. The docstring is the help.
        what: its items, in the plural.
        item, settings, record: types of an input object (a frozen dataclass that checks itself, or
            a TypedDict to get the object as it is), of the settings, and of an output line.
        version: version of the record; raised when a field changes its meaning.
        id_field: field of the record with the item's id, or with its place if items have no ids.
        parts: field of the record with a list of objects that each have numbers.
        result: the number that the system is about, a field of a record or of a part, for audits.
        result_title: its name in audits.
        layout: layout of an output that is one JSON array; None if the output's name decides.
        forms: endings of the files that are taken from a folder.
        aliases: flag without its hyphens -> further spellings, as published.
        source: type of `lm` if `needs` is empty, such as a classifier's; NoneType for none. It has
            `describe`, as an `LM` has.
        model_field: field of the items that names the model if --model does not; empty if --model
            is required.
        published_flags: further flags of the published script; None if there are none.
    """

    name: ClassVar[str]
    what: ClassVar[str] = "items"
    item: ClassVar[type]
    settings: ClassVar[type[Settings]]
    record: ClassVar[type]
    version: ClassVar[int] = 1
    id_field: ClassVar[str] = "id"
    parts: ClassVar[str] = ""
    result: ClassVar[str] = ""
    result_title: ClassVar[str] = ""
    layout: ClassVar[Layout | None] = None
    forms: ClassVar[tuple[str, ...]] = FORMS
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    source: ClassVar[type] = type(None)
    model_field: ClassVar[str] = ""
    published_flags: ClassVar[PublishedFlags | None] = None

    def score(self, lm: Any, items: Sequence[Any], settings: Any) -> Iterator[Record]:
        """Yield one record per item, in order, without its id and the item's other fields.

        `items` may be iterated several times, and is read anew each time. A record may have
        `PAGE`. An item that cannot be scored has a record with `error`.
        """
        raise NotImplementedError

    def unusable(self, entry: "Entry") -> Record:
        """Return the record of an object that cannot be used."""
        return {self.id_field: entry.id, "error": entry.error}

    def summarize(self, records: Sequence[Record], settings: Any) -> Summary:
        """Summarize finished records. Pure; reads them as often as it needs.

        Records are as JSON has them: NaN is null, infinities are "Infinity" and "-Infinity".
        """
        raise NotImplementedError

    def report(self, run: "Report") -> "Document | None":
        """The Markdown report and the page, or None."""
        return None

    def files(self, settings: Any) -> frozenset[str]:
        """Files of the report that a run with these settings writes, of `FILES`."""
        return FILES if type(self).report is not System.report else frozenset()

    def findings(self, run: "Report") -> Sequence[str]:
        """Sentences without a full stop that say how the headline is to be read."""
        return ()

    def needs(self, settings: Any) -> tuple[str, ...]:
        """Capabilities of the model, see `lm.Capabilities`; none if `source` is used.

        Args:
            settings: None for those of any settings.
        """
        return ("scores",)

    def read(
        self, path: Path, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """The objects of an input file.

        Args:
            columns, lists: see `io.items.read_rows`.
        """
        return read_rows(path, columns, lists)

    def takes_folder(self, path: Path) -> bool:
        """Return True if a folder is one input of `read`; otherwise its files are inputs."""
        return is_dataset(path)

    def rows_of(self, objects: Iterable[Any]) -> Iterator[Row]:
        """The objects that Python gives, as the input file has them.

        Raises:
            InputError: one object in place of a list of them.
        """
        if isinstance(objects, str | Mapping):
            raise InputError(
                f"found one {self.what.removesuffix('s')}, expected a list of them; put it in "
                "brackets"
            )
        for place, value in enumerate(objects, start=1):
            yield Row(place, f"item {place}", value)

    def example(self, item: Any, where: str) -> Any:
        """Check an item that is a few-shot example; by default each can be one.

        Raises:
            InputError: it cannot, with its place.
        """
        return item

    def companions(self, name: str) -> Sequence[str]:
        """Names that a file may have that is read with an input of a name, from its folder."""
        return ()

    def ending(self, items: "Items", settings: Any) -> str:
        """Return the end of the output's default name, without `.json`; empty without one."""
        return "" if self.layout is None else self.layout.ending

    def check(self, items: "Items", settings: Any) -> None:
        """Refuse or draw items before a model is loaded; by default refuse if none is usable."""
        items.require_usable()

    def recall(
        self, entry: "Entry", record: Record, settings: Any, made: Mapping[str, Any]
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

    def rows(self, record: Record) -> Iterable[Record]:
        """Return the rows of a record in a data frame; by default one for each part."""
        if not self.parts:
            return [record]
        shared = {name: value for name, value in record.items() if name != self.parts}
        return [{**shared, **part} for part in record.get(self.parts, ())]

    @property
    def has_ids(self) -> bool:
        """True if records have the item's id and its other fields."""
        return typing.is_typeddict(self.item) or "id" in self.record.__annotations__

    @functools.cached_property
    def item_fields(self) -> tuple[str, ...]:
        """Names of the input's fields."""
        ids = ("id",) if self.has_ids else ()
        return tuple(dict.fromkeys((*ids, *typing.get_type_hints(self.item))))

    def result_fields(self, settings: Settings | None = None) -> frozenset[str]:
        """Names that an input object may not use, since the record has them.

        Args:
            settings: settings of the run; None for any run.
        """
        if self.layout is not None and not self.layout.repeats:
            return frozenset()
        names = frozenset(self.record.__annotations__) - set(self.item_fields) | {"error"}
        return names if settings is None else names - settings.omitted_fields()

    def columns(self, settings: Settings) -> dict[str, str]:
        """Column -> Arrow type of the record as a table, see `io.records`; none of an array."""
        if self.layout is not None:
            return {}
        omitted = settings.omitted_fields()
        if getattr(settings, "summary_only", False):
            omitted |= per_token_fields(self.record)
        return {
            name: arrow_type(hint)
            for name, hint in typing.get_type_hints(self.record).items()
            if name != "id" and name not in omitted
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
    (part,) = typing.get_args(typing.get_type_hints(system.record)[system.parts])
    return typing.cast(type, part)


def unit_title(system: System) -> str:
    """Return the name of the units in the plural: of items, or of what identifies a part."""
    return f"{unit_fields(system, Paired)[0][0]}s" if system.parts else system.what


def unit_fields(system: System, kind: type[T]) -> list[tuple[str, T]]:
    """Fields of a unit with their metadata of a type, such as `Decision`."""
    return metadata_of(unit_type(system), kind)


def name_of(record: Mapping[str, Any], id_field: str = "id") -> str:
    """Return the name of a record in messages: its id, or such as "line 3" without ids."""
    id = record.get(id_field)
    is_place = id_field != "id" and not isinstance(id, str)
    return one_line(f"{id_field} {id}" if is_place else str(id), SHOWN)


def failed(records: Iterable[Mapping[str, Any]], id_field: str = "id") -> list[tuple[str, str]]:
    """(name, why) of the records that have an `error`."""
    return [(name_of(record, id_field), record["error"]) for record in records if "error" in record]

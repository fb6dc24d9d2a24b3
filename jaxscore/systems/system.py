"""What a system declares, once; shared code derives the rest.

    Item      a frozen dataclass: the fields of an input object
    Settings  a frozen dataclass of `setting`s: flags, keys of --config, arguments of `evaluate`
    Record    a TypedDict: the fields of an output line, columns of a table, metrics of `compare`
    evaluate  (lm, entries, settings) -> Evaluation
    report    (run) -> Document, the Markdown report and the page

`SYSTEM = System(...)` at the end of `jaxscore/systems/<name>/system.py` puts them together.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxscore.io.items import Row, read_rows


@dataclasses.dataclass(frozen=True)
class Metric:
    """Metadata of a number of a record that `compare` compares.

    Attributes:
        title: for people, with the unit.
        name: in the comparison, if it is not the field's.
        value: computes it from the record if the field itself is not the number.
    """

    title: str
    name: str | None = None
    value: Callable[[Mapping[str, Any]], float | None] | None = None


@dataclasses.dataclass(frozen=True)
class Decision:
    """Metadata of a decision of a record, which rounding could change.

    Attributes:
        title: for people.
        is_right: it says right or wrong, so that its share is a metric.
        statistic: what its margin is a difference of; None without a margin.
        value: computes what was decided from the record if the field itself does not say it.
        margin: computes by how much, in units of the statistic; None or infinite if the scores do
            not decide it.
        within: field that says whether the margin lies within the noise floor.
    """

    title: str
    is_right: bool = False
    statistic: str | None = None
    value: Callable[[Mapping[str, Any]], str | bool | None] | None = None
    margin: Callable[[Mapping[str, Any]], float] | None = None
    within: str | None = None


@dataclasses.dataclass(frozen=True)
class Compared:
    """How `compare` pairs the records of two runs.

    Attributes:
        text: fields that say what was asked: two runs are compared where these agree.
        order: metrics that come before the others; the first one is the headline.
        fixed: settings that decide what is counted: runs in which they differ are not compared.
    """

    text: tuple[str, ...]
    order: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ("boundary",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """One evaluation system.

    Attributes:
        name: the command, and the name in `evaluate`.
        what: its items, in the plural.
        help: what it computes, its input and output, for `--help`: at most 80 columns.
        item, settings, record: the declared types.
        version: of the record; raised when a field changes its meaning.
        evaluate: `(lm, entries, settings) -> Evaluation`, see `systems.evaluation`; entries are
            the usable `Entry`s of `item`.
        is_lazy: the entries come as an iterator, unusable ones among them, and `evaluate` gives
            a record of each, so that memory stays bounded.
        forms: further forms of the input, before those of every table, for `--help`.
        read_rows: reads a file, as `io.items.read_rows` does.
        from_value: turns an item that Python gives into an object as the file has it.
        report: `(run) -> Document`, see `report.document`.
        needs: capabilities of the model, see `lm.Capabilities`; none if no model is used.
        compared: how two runs are paired; None if they are not compared.
    """

    name: str
    what: str
    help: str
    item: type
    settings: type
    record: type
    version: int = 1
    evaluate: Callable[..., Any]
    report: Callable[[Any], Any]
    is_lazy: bool = False
    forms: str = ""
    read_rows: Callable[..., Iterator[Row]] = read_rows
    from_value: Callable[[Any], Any] | None = None
    needs: tuple[str, ...] = ()
    compared: Compared | None = None

    @property
    def item_fields(self) -> tuple[str, ...]:
        """Names of the input's fields."""
        return ("id", *(field.name for field in dataclasses.fields(self.item)))

    @property
    def result_fields(self) -> frozenset[str]:
        """Names that an input object may not use, since the record has them."""
        return frozenset(self.record.__annotations__) - set(self.item_fields) | {"error"}

    @property
    def columns(self) -> dict[str, str]:
        """Column -> Arrow type of the record as a table, see `io.records`."""
        hints = typing.get_type_hints(self.record, include_extras=False)
        return {name: arrow_type(hint) for name, hint in hints.items() if name != "id"}


def metadata_of(record: type, kind: type[Any]) -> dict[str, Any]:
    """Field -> its metadata of a kind (`Metric`, `Decision`), in the order of the record."""
    hints = typing.get_type_hints(record, include_extras=True)
    return {
        name: extra
        for name, hint in hints.items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, kind)
    }


ARROW_TYPES = {str: "string", int: "int64", float: "float64", bool: "bool_"}


def arrow_type(hint: Any) -> str:
    """Arrow's name of a type, in brackets for a list: `list[float]` -> `[float64]`.

    Raises:
        TypeError: a table has no column of this type.
    """
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) in (list, Sequence):
        return f"[{arrow_type(parts[0])}]"
    if parts:  # X | None
        return arrow_type(parts[0])
    if hint not in ARROW_TYPES:
        raise TypeError(f"{hint}: expected one of {', '.join(t.__name__ for t in ARROW_TYPES)}")
    return ARROW_TYPES[hint]

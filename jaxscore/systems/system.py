"""What a system declares, once, and all systems by name; shared code derives the rest.

    Item      a frozen dataclass: the fields of an input object
    Settings  a frozen dataclass of `setting`s: flags, keys of --config, arguments of `evaluate`
    Record    a TypedDict: the fields of an output line, columns of a table, metrics of `compare`
    evaluate  (lm, entries, settings) -> Evaluation
    report    (run) -> Document, the Markdown report and the page

`SYSTEM = System(...)` at the end of the system's module puts them together, and `SYSTEMS` below
names the module, which is imported on first use.
"""

import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import numpy as np

from jaxscore.io.items import Row, read_rows
from jaxscore.systems.settings import Settings

T = TypeVar("T")
PER_TOKEN = "per token"
PerToken = Annotated[list[T], PER_TOKEN]
"""Type of a record's field with a value for each token, null if it is not known."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """Metadata of a number of a record that `compare` compares.

    A field may have several. A list is one number for each part of the item:

        scores: Annotated[list[float], Metric("log-probability of an answer", "answer_logprob")]

    Attributes:
        title: as displayed, with the unit.
        name: in the comparison, if it is not the field's.
        value: computes it from the record if the field itself is not the number; the record then
            has this field. None if the item does not have the number.
    """

    title: str
    name: str | None = None
    value: Callable[[Mapping[str, Any]], float | Sequence[float | None] | None] | None = None


@dataclasses.dataclass(frozen=True)
class Decision:
    """Metadata of a decision of a record, which rounding could change.

    A field may have several, each with a name.

    Attributes:
        title: as displayed.
        is_right: it says right or wrong, so that its share is a metric.
        statistic: what its margin is a difference of; None without a margin.
        value: computes what was decided from the record if the field itself does not say it.
        margin: computes by how much, in units of the statistic; None or infinite if the scores do
            not decide it.
        within: field that says whether the margin lies within the noise floor, or computes it.
        name: in the comparison, if it is not the field's.
        spread: key of the noise's spread by which the margin is judged.
    """

    title: str
    is_right: bool = False
    statistic: str | None = None
    value: Callable[[Mapping[str, Any]], str | bool | None] | None = None
    margin: Callable[[Mapping[str, Any]], float | None] | None = None
    within: str | Callable[[Mapping[str, Any]], bool | None] | None = None
    name: str | None = None
    spread: str = "sum_logprob"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """How `compare` finds the units of two runs and pairs them: by id and by text.

    A unit is a record, or an entry of a list that the record holds. Functions take the unit with
    all fields of its record, those that the user added included:

        Compared(
            signature=("path_evaluations",),
            text=("question", "path"),
            parts="path_evaluations",  # list[PathRecord], which declares the metrics
            part_name="path",  # ["A", "in", "B"]: the unit's id is "q1: A -> in -> B"
        )

        Compared(  # of a report's file {"questions": [...], "settings": {...}}
            signature=("answers", "truth"),
            list_in="questions",
            text=("question", "answers", "truth"),
            id=(),
            name=lambda record, place: f"line {record.get('line')}: {record['question']}",
            n_tokens="n_tokens",
        )

    Attributes:
        text: fields of the request, or a function of them: two units are a pair if these agree.
            Empty if the records do not have it.
        id: field that identifies a record; of several the first that it has, otherwise its place.
            Empty if the text is all that identifies it.
        name: takes the unit and the place of its record from 0 and names it for people; the
            default is the id.
        parts: field with a list of objects, each of them a unit; the units of a record are one
            group in intervals and tests. Empty if the record is the unit.
        part_name: field of a part that completes its id; a list is joined by arrows.
        answer: field with what was judged; pairs in which it differs are counted.
        n_tokens: field with the number of scored tokens, or a list of such numbers.
        error: computes why a unit has no numbers, if its field `error` does not say so.
        numbers: computes metrics that are not declared, by name, such as a user's columns.
        settings: names of settings that the functions need: the unit has them as fields.
        order: metrics that come before the others; the first one is the headline.
        fixed: settings that decide what is counted: runs in which they differ are not compared.
        input_fields: of the input's lines, whose texts are compared if the records do not have
            them.
        what: the units, in the plural, if they are not the system's items.
        name_of_runs: what the records are called, if several systems write records that can be
            compared with each other, or one system writes records of two kinds.
        record: the declared type of the records, if it is not the system's.
        signature: fields that identify the records in a file without a manifest. Of several
            systems that fit, the one with the most fields is taken.
        without: fields that such a record does not have.
        list_in: field of the report's file that holds the records; empty if the output file has
            them.
        file: pattern of the file's name, for messages.
    """

    text: tuple[str, ...] | Callable[[Mapping[str, Any]], object]
    signature: tuple[str, ...]
    without: tuple[str, ...] = ()
    id: tuple[str, ...] = ("id",)
    name: Callable[[Mapping[str, Any], int], object] | None = None
    parts: str = ""
    part_name: str = ""
    answer: str | None = None
    n_tokens: str = "n_scored"
    error: Callable[[Mapping[str, Any]], str | None] | None = None
    numbers: Callable[[Mapping[str, Any]], Mapping[str, float | None]] | None = None
    settings: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ("boundary",)
    input_fields: tuple[str, ...] | None = None
    what: str = ""
    name_of_runs: str = ""
    record: type | None = None
    list_in: str = ""
    file: str = ""


@dataclasses.dataclass(frozen=True)
class ArrayOutput:
    """Output that is one JSON array.

    Attributes:
        name: how its default name, beside the input, ends, for `--help`.
        ending: computes that from the settings and the entries, without `.json`; None if
            `--output` is required.
        is_ascii: other characters are escaped, and the indentation is 4, as some published
            scripts write it; otherwise they stand as they are, and it is 2.
    """

    name: str = ""
    ending: Callable[[Any, Sequence[Any]], str] | None = None
    is_ascii: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class System:
    """One evaluation system.

    Attributes:
        name: the command, and the name in `evaluate`.
        what: its items, in the plural.
        help: what it computes, its input and output, for `--help`: at most 80 columns.
        item, settings, record: the declared types. If the item is a TypedDict, `evaluate` gets
            the object as it is, named by its place, and checks it.
        version: of the record; raised when a field changes its meaning, so that `compare` refuses
            the files of another version.
        evaluate: `(lm, entries, settings) -> Evaluation`, see `systems.evaluation`; entries are
            the usable `Entry`s of `item`. If it has a parameter `on_item`, that takes each record
            as it is finished, its values per token as NumPy arrays in which NaN stands for null,
            and the evaluation retains no record.
        is_lazy: the entries come as an iterator, unusable ones among them, and `evaluate` gives
            a record of each, so that memory stays bounded.
        is_strict: an unusable item of a file ends the run before a model is loaded.
        page_items: makes, from the settings, what collects the items of the page as records pass;
            `evaluate` then has a parameter `page_items`. None if the page has the records.
        repeats_fields: the records repeat the other fields of the input.
        limit_aliases: further spellings of `--limit`.
        has_report_files: the command writes OUT.report.md and OUT.report.json beside the page;
            or the name of the setting with which it does.
        label: names an item in messages, from its object and the place that else names it.
        select: takes all entries and the settings, and returns those to evaluate and the unusable
            ones; it runs before a model is loaded, and may refuse the entries.
        forms: further forms of the input, before those of every table, for `--help`.
        read_rows: reads a file, as `io.items.read_rows` does.
        file_forms: endings of the files that are taken from a folder; empty for all of a table.
        beside: names that a file may have that is read with an input of a name, from its folder:
            the first one that exists. None if an input is read alone.
        from_value: turns an item that Python gives into an object as the file has it.
        read_objects: reads the items that Python gives in a way of its own; takes them and the
            names of `result_fields`.
        read_example: makes an item of (a few-shot example, its position, what to call it), or
            refuses it; None if each item can be an example.
        array: the output if it is one JSON array, as published scripts write it; None if its
            name decides the form.
        report: `(run) -> Document`, see `report.document`; None if the system has no report.
        merge: `(records, settings) -> Evaluation` of all records of finished runs, which come one
            by one, as one run would find it; None if the records do not say all that it needs.
        merge_rereads: `merge` reads the records several times, so that they come as a sequence,
            stored on disk; the evaluation may refer to it.
        mark: `(records, noise, settings) -> decisions` marks in place the records that rounding
            could change; `merge` marks those of all runs by their common noise floor. None if no
            record is marked.
        merge_lists: makes lists of the worst from the JSON reports of the runs, which come one by
            one; None if the records of `merge` say all that the report lists.
        page_only: what the page displays and no record has, such as "tokens"; `merge` says that
            it is left out.
        merge_rewrites: the records of `merge` are written in place of those of the runs, which
            say their places in a run.
        reports_with: setting without which the command writes no report and no page; None if it
            always does.
        source: what `evaluate` takes in place of a model, such as a classifier; None for a model.
        work: a `systems.resuming.Work`, if the same command continues its output; `evaluate` gets
            it in place of the entries.
        model_field: of the items, which names the model if --model does not; empty if --model has
            to be given.
        published_flags: adds the published script's flags to a command; None if there are none.
        needs: capabilities of the model, see `lm.Capabilities`; none if no model is used.
        needs_of_mode: value of the setting `mode` -> capabilities in place of `needs`.
        compared: how two runs are paired, for each kind of records that the system writes; empty
            if they are not compared.
    """

    name: str
    what: str
    help: str
    item: type
    settings: type
    record: type
    version: int = 1
    evaluate: Callable[..., Any]
    read_example: Callable[[Any, int, str], Any] | None = None
    array: ArrayOutput | None = None
    report: Callable[[Any], Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    merge_rereads: bool = False
    mark: Callable[[Sequence[dict[str, Any]], Any, Any], Sequence[Any]] | None = None
    merge_lists: Callable[[Iterable[Mapping[str, Any]]], Mapping[str, Any]] | None = None
    page_only: str = ""
    merge_rewrites: bool = False
    reports_with: str | None = None
    is_lazy: bool = False
    is_strict: bool = False
    page_items: Callable[[Any], Any] | None = None
    repeats_fields: bool = True
    limit_aliases: tuple[str, ...] = ()
    has_report_files: bool | str = True
    work: type[Any] | None = None
    model_field: str = ""
    published_flags: Callable[[Any], Any] | None = None
    label: Callable[[Any, str], str] | None = None
    select: Callable[[Sequence[Any], Any], Sequence[Any]] | None = None
    forms: str = ""
    read_rows: Callable[..., Iterator[Row]] = read_rows
    file_forms: tuple[str, ...] = ()
    beside: Callable[[str], Sequence[str]] | None = None
    from_value: Callable[[Any], Any] | None = None
    read_objects: Callable[[Any, Collection[str]], Iterator[Any]] | None = None
    source: type | None = None
    needs: tuple[str, ...] = ()
    needs_of_mode: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    compared: tuple[Compared, ...] = ()

    def needs_with(self, settings: Settings) -> tuple[str, ...]:
        """Capabilities of the model that a run with these settings needs."""
        return self.needs_of_mode.get(getattr(settings, "mode", ""), self.needs)

    @property
    def has_ids(self) -> bool:
        """Whether records have the item's id and its other fields; otherwise both are ignored."""
        return typing.is_typeddict(self.item) or "id" in self.record.__annotations__

    @functools.cached_property
    def streams(self) -> bool:
        """Whether `evaluate` takes `on_item`, and then retains no record."""
        return "on_item" in inspect.signature(self.evaluate).parameters

    @functools.cached_property
    def item_fields(self) -> tuple[str, ...]:
        """Names of the input's fields."""
        ids = ("id",) if self.has_ids else ()
        return tuple(dict.fromkeys((*ids, *typing.get_type_hints(self.item))))

    def result_fields(self, settings: Settings | None = None) -> frozenset[str]:
        """Names that an input object may not use, since the record has them.

        Args:
            settings: of the run; None for any run.
        """
        if not self.repeats_fields:
            return frozenset()
        names = frozenset(self.record.__annotations__) - set(self.item_fields) | {"error"}
        return names if settings is None else names - settings.omitted_fields()

    def columns(self, settings: Settings) -> dict[str, str]:
        """Column -> Arrow type of the record as a table, see `io.records`."""
        omitted = settings.omitted_fields()
        if getattr(settings, "summary_only", False):
            omitted |= per_token_fields(self.record)
        return {
            name: arrow_type(hint)
            for name, hint in typing.get_type_hints(self.record).items()
            if name != "id" and name not in omitted
        }


def per_token_fields(record: type) -> frozenset[str]:
    """The fields of a record that are declared as `PerToken`."""
    return frozenset(name for name, _ in metadata_of(record, str))


@functools.cache  # `merge` marks records one by one
def _annotations(record: type) -> Mapping[str, Any]:
    return typing.get_type_hints(record, include_extras=True)


def metadata_of(record: type, kind: type[T]) -> list[tuple[str, T]]:
    """Fields with their metadata of a kind (`Metric`, `Decision`), in the order of the record."""
    return [
        (name, extra)
        for name, hint in _annotations(record).items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, kind)
    ]


ARROW_TYPES = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool_",
    np.int32: "int32",
    np.float32: "float32",
}


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


# Module below `jaxscore.systems`, with the name of its declaration if that is not SYSTEM
SYSTEMS = {
    "score": "score",
    "choose": "choose",
    "perplexity": "perplexity",
    "divergence": "divergence",
    "preferences": "preferences",
    "paths": "paths",
    "chronologic": "chronologic",
    "probsem": "probsem",
    "sample": "sample",
    "self-certainty": "self_certainty",
    "select": "selection.select_and_vote:SELECT",
    "vote": "selection.select_and_vote:VOTE",
    "livecode-select": "selection.livecode:LIVECODE_SELECT",
    "livecode-parse": "selection.livecode:LIVECODE_PARSE",
    "usc-generate": "usc_generate",
    "usc-select": "selection.usc_select",
    "judge": "rag.judge",
    "bem": "rag.bem",
    "metrics": "rag.metrics",
    "compare": "compare",
}


def declaration(system: str) -> System:
    """What a system of `SYSTEMS` declares."""
    module, _, name = SYSTEMS[system].partition(":")
    declared: System = getattr(
        importlib.import_module(f"jaxscore.systems.{module}"), name or "SYSTEM"
    )
    return declared

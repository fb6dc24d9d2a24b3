"""Records of a RAG benchmark, as BERGEN writes them: question, references, response; judgements.

A judgement has a `kind`, how its scores came about:

    logits     probabilities of the labels' first tokens
    sequence   probabilities of whole labels
    text       the label in a written answer
    pairwise   a written answer says which of two responses is better
    bem        a classifier's probability
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypedDict

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.io.items import NOTHING, Row, read_rows
from jaxscore.io.json_input import json_kind
from jaxscore.io.json_output import where
from jaxscore.report.counts import counted
from jaxscore.shell.fields import PAIRED
from jaxscore.shell.items import Entry, Items, read_entry
from jaxscore.shell.system import Record, Summary, System

FIELDS = ("q_id", "response", "label", "question", "instruction", "ranking_label")
REPEATED = ("q_id", "question", "label", "response")  # fields of an item in its record
SHOWN = 60  # characters of a q_id in a message


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with its response and its references.

    Attributes:
        q_id: not necessarily unique.
        response: may be empty.
        label: one reference, or a list of one or more.
        question: "" if the record has no text there.
        ranking_label: of any type; None if it is absent.
    """

    q_id: str | int
    response: str
    label: Sequence[str] | str
    question: Any = ""
    ranking_label: Any = None

    def __post_init__(self) -> None:
        """Check all texts.

        Raises:
            InputError: no reference, or a text that cannot be used.
        """
        if not isinstance(self.question, str):
            object.__setattr__(self, "question", "")
        label = (self.label,) * bool(self.label) if isinstance(self.label, str) else self.label
        object.__setattr__(self, "label", tuple(label))
        if not self.label:
            raise InputError('field "label" is empty, expected one reference answer or more')
        for place, reference in enumerate(self.label, start=1):
            if not isinstance(reference, str):
                raise InputError(
                    f'field "label", entry {place}: found {json_kind(reference)}, expected a string'
                )
        if not all(map(is_valid_unicode, (self.response, self.question, *self.label))):
            raise InputError("a string contains a lone surrogate (invalid Unicode)")

    def repeated(self) -> Record:
        """The fields that its record repeats."""
        fields = {name: getattr(self, name) for name in REPEATED}
        return {**fields, "label": [*self.label]}


@dataclasses.dataclass(frozen=True)
class AskedItem(Item):
    """An item whose question is needed."""

    question: str = dataclasses.field()  # required, unlike that of `Item`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Records of one file, or from Python.

    Attributes:
        where: the file, for messages; "" for records from Python.
        rows: as they were given, usable or not.
    """

    where: str
    rows: list[Any]

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """All rows, the unusable ones included, whether they have a question or not."""
        return RESPONSES.entries(self)

    @property
    def usable(self) -> list[Item]:
        """The items of the other rows."""
        return [entry.item for entry in self.entries if entry.error is None]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """(name, why) of the rows that cannot be used."""
        return [(entry.name, entry.error) for entry in self.entries if entry.error is not None]


def read(rows: Any, where: str = "") -> Records:
    """Records from objects as the input file has them; `Records` stay as they are.

    Args:
        where: the file, for messages.

    Raises:
        InputError: the rows are one object or a text.
    """
    if isinstance(rows, Records):
        return rows
    if isinstance(rows, dict | str) or not isinstance(rows, Iterable):
        raise InputError(f"found {json_kind(rows)}, expected a list of records")
    return Records(where=where, rows=list(rows))


class RecordBase(TypedDict, total=False):
    """Fields that the records of all systems have."""

    index: int
    q_id: str | int
    question: Annotated[str, PAIRED]
    label: Annotated[list[str], PAIRED]
    response: str


class RecordSystem(System):
    """A system whose items are the records of a benchmark."""

    what = "records"
    item: ClassVar[type] = Item
    record: ClassVar[type] = RecordBase

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """See `System.read`; objects are rows, or `Records`. A row of a file needs no `q_id`."""
        if isinstance(source, Path):
            for index, row in enumerate(read_rows(source, columns, lists)):
                ids = (row.item.get("q_id"), row.item.get("id"), row.number)
                item = row.item | {"q_id": next(id for id in ids if id is not None)}
                yield Row(index, f"{row.where}{_shown_id(item['q_id'])}", item)
            return
        records = read(source)
        prefix = records.where and f"{records.where}: "
        for index, row in enumerate(records.rows):
            name = row_name(index, row.get("q_id") if isinstance(row, dict) else None)
            yield Row(index, f"{prefix}{name}", row)

    def check(self, items: Items, settings: Any) -> None:
        """Refuse a file without a usable record; in a folder these have a report of their own."""
        if items.is_file or not items.n_all:
            items.require_usable()

    def name_of(self, record: Record) -> str:
        """See `System.name_of`."""
        return row_name(record["index"], record.get("q_id"))

    def entries(self, objects: Any) -> list[Entry]:
        """The rows as entries, the unusable ones included."""
        return [read_entry(self, row.item, row.number, row.where, ()) for row in self.read(objects)]


RESPONSES = RecordSystem()


def row_name(index: int | str, q_id: object) -> str:
    """Return the name of a record in messages; in a shard its index has the shard's name."""
    return f"record {index + 1 if isinstance(index, int) else index}{_shown_id(q_id)}"


def _shown_id(q_id: object) -> str:
    if isinstance(q_id, str) and q_id:
        return f" (q_id {q_id[:SHOWN]!a}{'…' if len(q_id) > SHOWN else ''})"
    return f" (q_id {q_id})" if isinstance(q_id, int) else ""


def failed(records: Iterable[Record]) -> list[tuple[str, str]]:
    """(name, why) of the records that have an `error`."""
    return [
        (row_name(record["index"], record.get("q_id")), record["error"])
        for record in records
        if "error" in record
    ]


SHARES = ("outside", "agree", "first")  # of a summary, beside its counts


@dataclasses.dataclass(frozen=True)
class Findings:
    """Verdicts on some records.

    Attributes:
        estimates: "mean", or "win", "tie" and "lose" as shares: the numbers of the summary.
        summary: what the report says, as JSON.
        warnings: what people should know before they trust the means.
    """

    kind: str
    estimates: Mapping[str, Estimate]
    summary: Mapping[str, Any]
    warnings: Sequence[str]


def judged(records: Sequence[Record]) -> Sequence[Record]:
    """Records with a verdict, or whose request to the judge failed."""
    return where(records, lambda record: "known" in record)


def summary_of_findings(found: Findings, records: Sequence[Record], metric: str) -> Summary:
    """Findings in the shape of every system."""
    failures = failed(records)
    summary = {**found.summary, "n_failed": len(failures)}
    return Summary(
        headline=_headline(found.kind, summary),
        numbers={
            **found.estimates,
            **{k: v for k, v in summary.items() if k.startswith("n_") or k in SHARES},
        },
        details={"metric": metric, "kind": found.kind, "summary": summary},
        failures=failures,
        warnings=found.warnings,
    )


def score_of(record: Record) -> float:
    """The score of a judged record; NaN is null in JSON."""
    return math.nan if record["score"] is None else float(record["score"])


def mean_of(
    values: Sequence[float], n_bootstrap: int, seed: int, *, is_share: bool = False
) -> Estimate:
    """The mean of scores, exact in any order, with its interval; a share has Wilson's."""
    if not values:
        return Estimate(0, None, None, None)
    if is_share:
        found = proportion([value == 1.0 for value in values])
    else:
        finite = [value for value in values if math.isfinite(value)]
        found = estimate(finite, n_bootstrap, seed)
    return dataclasses.replace(found, mean=math.fsum(values) / len(values))


def summary_of(mean: Estimate, *, is_share: bool = False) -> dict[str, Any]:
    """A mean and its interval as the summary has them."""
    return {
        "n": mean.n,
        "mean": mean.mean,
        "interval": [mean.low, mean.high],
        "interval_by": "wilson" if is_share else "bootstrap",
    }


def _headline(kind: str, summary: Mapping[str, Any]) -> str:
    if kind == "pairwise":
        if not summary["n"]:
            return "no pair was judged"
        rates = (f"{name} {one['percent']:.1f} %" for name, one in summary["rates"].items())
        return f"{', '.join(rates)} over {counted(summary['n'], 'records')}"
    if summary["mean"] is None:
        return "no record was judged"
    low, high = summary["interval"]
    span = "" if low is None else f" [{low:.5f}, {high:.5f}]"
    outside = summary.get("outside")
    rest = "" if outside is None else f", {outside:.4f} of the probability outside the labels"
    return f"{summary['mean']:.5f}{span} over {counted(summary['n'], 'records')}{rest}"


def metric_means(metric: str, details: Mapping[str, Any]) -> dict[str, float | None]:
    """The means of a metric as the metrics file has them; rates are percentages."""
    summary = details["summary"]
    if details["kind"] == "pairwise":
        return {f"{metric}_{name}": one["percent"] for name, one in summary["rates"].items()}
    return {metric: summary["mean"]}

"""Records of a RAG benchmark in BERGEN's format: question, references, response; judgements.

The `kind` of a judgement is the source of its scores:

    logits     probabilities of the labels' first tokens
    sequence   probabilities of whole labels
    text       the label in a written answer
    pairwise   the better of two responses, named in a written answer
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
        q_id: the question's id, not necessarily unique.
        response: the response, possibly empty.
        label: one reference answer, or a list of one or more.
        question: the question, or "" if the record's is not a string.
        ranking_label: the ids of the relevant documents, unchecked; None if it is absent.
    """

    q_id: str | int
    response: str
    label: Sequence[str] | str
    question: Any = ""
    ranking_label: Any = None

    def __post_init__(self) -> None:
        """Check all texts.

        Raises:
            InputError: no reference, a reference that is not a string, or a lone surrogate.
        """
        if not isinstance(self.question, str):
            object.__setattr__(self, "question", "")
        label = (self.label,) * bool(self.label) if isinstance(self.label, str) else self.label
        object.__setattr__(self, "label", tuple(label))
        if not self.label:
            raise InputError('field "label" is empty, expected one reference answer or more')
        for k, reference in enumerate(self.label, start=1):
            if not isinstance(reference, str):
                raise InputError(
                    f'field "label", entry {k}: found {json_kind(reference)}, expected a string'
                )
        if not all(map(is_valid_unicode, (self.response, self.question, *self.label))):
            raise InputError("a string contains a lone surrogate (invalid Unicode)")

    def repeated(self) -> Record:
        """Return the fields that the item's record repeats."""
        fields = {name: getattr(self, name) for name in REPEATED}
        return {**fields, "label": [*self.label]}


@dataclasses.dataclass(frozen=True)
class AskedItem(Item):
    """An item with a required question."""

    question: str = dataclasses.field()  # required, unlike that of `Item`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Records of one file, or from Python.

    Attributes:
        where: the file, for messages; "" for records from Python.
        rows: the unchecked rows, usable or not.
    """

    where: str
    rows: list[Any]

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """All rows, unusable ones included, with or without a question."""
        return RESPONSES.entries(self)

    @property
    def usable(self) -> list[Item]:
        """The items of the usable rows."""
        return [entry.item for entry in self.entries if entry.error is None]

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The (name, reason) of each unusable row."""
        return [(entry.name, entry.error) for entry in self.entries if entry.error is not None]


def read_records(rows: Any, where: str = "") -> Records:
    """Return `Records` of objects in the format of the input file, or `Records` unchanged.

    Args:
        where: the file, for messages.

    Raises:
        InputError: the rows are a single object or a string.
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
        records = read_records(source)
        prefix = records.where and f"{records.where}: "
        for index, row in enumerate(records.rows):
            name = row_name(index, row.get("q_id") if isinstance(row, dict) else None)
            yield Row(index, f"{prefix}{name}", row)

    def check(self, items: Items, settings: Any) -> None:
        """Refuse a file without a usable record; a folder's run reports these itself."""
        if items.is_file or not items.n_all:
            items.require_usable()

    def name_of(self, record: Record) -> str:
        """See `System.name_of`."""
        return row_name(record["index"], record.get("q_id"))

    def entries(self, objects: Any) -> list[Entry]:
        """Return all rows as entries, unusable ones included."""
        return [read_entry(self, row.item, row.number, row.where, ()) for row in self.read(objects)]


RESPONSES = RecordSystem()


def row_name(index: int | str, q_id: object) -> str:
    """Return the name of a record in messages; in a shard its index has the shard's name."""
    return f"record {index + 1 if isinstance(index, int) else index}{_shown_id(q_id)}"


def _shown_id(q_id: object) -> str:
    if isinstance(q_id, str) and q_id:
        return f" (q_id {q_id[:SHOWN]!a}{'…' if len(q_id) > SHOWN else ''})"
    return f" (q_id {q_id})" if isinstance(q_id, int) else ""


def list_failures(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Return the (name, reason) of the records that have an `error`."""
    return [
        (row_name(record["index"], record.get("q_id")), record["error"])
        for record in records
        if "error" in record
    ]


SHARES = ("outside", "agree", "first")  # numbers of a summary in addition to its counts


@dataclasses.dataclass(frozen=True)
class Findings:
    """Verdicts on some records.

    Attributes:
        estimates: the numbers of the summary: "mean", or the shares "win", "tie" and "lose".
        summary: the report's JSON summary.
        warnings: reasons to distrust the means.
    """

    score_source: str
    estimates: Mapping[str, Estimate]
    summary: Mapping[str, Any]
    warnings: Sequence[str]


def judged(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records with a verdict, or whose request to the judge failed."""
    return where(records, lambda record: "known" in record)


def summary_of_findings(findings: Findings, records: Sequence[Record], metric: str) -> Summary:
    """Findings in the shape of every system."""
    failures = list_failures(records)
    summary = {**findings.summary, "n_failed": len(failures)}
    return Summary(
        headline=_headline(findings.score_source, summary),
        numbers={
            **findings.estimates,
            **{k: v for k, v in summary.items() if k.startswith("n_") or k in SHARES},
        },
        details={"metric": metric, "kind": findings.score_source, "summary": summary},
        failures=failures,
        warnings=findings.warnings,
    )


def score_of(record: Record) -> float:
    """Return the score of a judged record; NaN is null in JSON."""
    return math.nan if record["score"] is None else float(record["score"])


def mean_of(
    values: Sequence[float], n_bootstrap: int, seed: int, *, is_share: bool = False
) -> Estimate:
    """Return the mean of scores (in any order the same) with its interval, Wilson's for a share."""
    if not values:
        return Estimate(0, None, None, None)
    if is_share:
        interval = proportion([value == 1.0 for value in values])
    else:
        finite = [value for value in values if math.isfinite(value)]
        interval = estimate(finite, n_bootstrap, seed)
    return dataclasses.replace(interval, mean=math.fsum(values) / len(values))


def summary_of(mean: Estimate, *, is_share: bool = False) -> dict[str, Any]:
    """Return the fields of a summary for a mean and its interval."""
    return {
        "n": mean.n,
        "mean": mean.mean,
        "interval": [mean.low, mean.high],
        "interval_by": "wilson" if is_share else "bootstrap",
    }


def _headline(score_source: str, summary: Mapping[str, Any]) -> str:
    if score_source == "pairwise":
        if not summary["n"]:
            return "no pair was judged"
        rates = (f"{name} {rate['percent']:.1f} %" for name, rate in summary["rates"].items())
        return f"{', '.join(rates)} over {counted(summary['n'], 'records')}"
    if summary["mean"] is None:
        return "no record was judged"
    low, high = summary["interval"]
    span = "" if low is None else f" [{low:.5f}, {high:.5f}]"
    outside = summary.get("outside")
    rest = "" if outside is None else f", {outside:.4f} of the probability outside the labels"
    return f"{summary['mean']:.5f}{span} over {counted(summary['n'], 'records')}{rest}"


def metric_means(metric: str, details: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the means of a metric for the metrics file; rates are percentages."""
    summary = details["summary"]
    if details["kind"] == "pairwise":
        return {f"{metric}_{name}": rate["percent"] for name, rate in summary["rates"].items()}
    return {metric: summary["mean"]}

"""Records of a RAG benchmark, as BERGEN writes them: question, references, response; judgements.

A judgement has a `kind`, how its scores came about:

    logits     probabilities of the labels' first tokens
    sequence   probabilities of whole labels
    text       the label in a written answer
    pairwise   a written answer says which of two responses is better
    bem        a classifier's probability
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate, estimate, proportion
from jaxscore.errors import InputError
from jaxscore.io.json_input import json_kind, require_field
from jaxscore.systems.entries import Entry, usable
from jaxscore.systems.evaluation import Evaluation, Failure, unusable

FIELDS = ("q_id", "response", "label", "question", "instruction", "ranking_label")
SHOWN = 60  # characters of a q_id in a message


@dataclasses.dataclass(frozen=True)
class Item:
    """A question with its response and its references.

    Attributes:
        q_id: not necessarily unique.
        response: may be empty.
        label: one reference or more.
        question: "" if the record has none and needs none.
        ranking_label: of any type; None if it is absent.
    """

    q_id: str | int
    response: str
    label: list[str]
    question: str = ""
    ranking_label: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Records of one file, or from Python.

    Attributes:
        where: the file, for messages; "" for records from Python.
        rows: as they were given, usable or not.
        entries: one per row, with its `index` from 0 as an extra field.
    """

    where: str
    rows: list[Any]
    entries: list[Entry[Item]]

    @property
    def usable(self) -> list[Entry[Item]]:
        """The entries that have an item."""
        return usable(self.entries)

    @property
    def failures(self) -> list[Failure]:
        """The other entries, and why they cannot be used."""
        return unusable(self.entries)


def read(rows: Iterable[Any], where: str = "", *, question: bool) -> Records:
    """Read records from objects as the input file has them; `Records` stay as they are.

    Args:
        where: the file, for messages.
        question: whether a record needs a question.

    Raises:
        InputError: the rows are one object or a text.
    """
    if isinstance(rows, Records):
        return rows
    if isinstance(rows, dict | str) or not isinstance(rows, Iterable):
        raise InputError(f"found {json_kind(rows)}, expected a list of records")
    known = list(rows)
    entries = [_entry(row, index, where, question) for index, row in enumerate(known)]
    return Records(where=where, rows=known, entries=entries)


def read_entries(rows: Iterable[Any], reserved: object, *, question: bool) -> Iterator[Entry[Item]]:
    """Entries of `read`, as `System.read_objects`."""
    yield from read(rows, question=question).entries


def record_of(entry: Entry[Item]) -> dict[str, Any]:
    """What an output record repeats of a usable entry."""
    assert entry.item is not None
    named = ("q_id", "question", "label", "response")
    return {**entry.extra, **{name: getattr(entry.item, name) for name in named}}


def record_name(record: Mapping[str, Any], place: int) -> str:
    """What `compare` calls a record: its q_id, and its question if it has one."""
    question = record.get("question")
    return f"{record['q_id']}: {question}" if question else str(record["q_id"])


def _entry(row: Any, index: int, where: str, question: bool) -> Entry[Item]:
    q_id = row.get("q_id") if isinstance(row, dict) else None
    shown = f" (q_id {q_id})" if isinstance(q_id, int) else ""
    if isinstance(q_id, str):
        shown = f" (q_id {q_id[:SHOWN]!a}{'…' if len(q_id) > SHOWN else ''})"
    name = f"{where}{': ' if where else ''}record {index + 1}{shown}"
    extra = {"index": index}
    try:
        item = _item(row, question, name)
    except InputError as problem:
        error = str(problem).removeprefix(f"{name}: ")
        id = q_id if isinstance(q_id, str | int) else name
        return Entry(name, id, None, error, extra)
    return Entry(name, item.q_id, item, None, extra)


def _item(row: Any, question: bool, name: str) -> Item:
    if not isinstance(row, dict):
        raise InputError(f"found {json_kind(row)}, expected an object with {', '.join(FIELDS[:4])}")
    kinds: dict[str, type | tuple[type, ...]] = {"q_id": (str, int), "response": str, "label": list}
    if question:
        kinds["question"] = str
    q_id, response, label, *_ = (require_field(row, field, kinds[field], name) for field in kinds)
    if not label:
        raise InputError('field "label" is empty, expected one reference answer or more')
    for place, reference in enumerate(label, start=1):
        if not isinstance(reference, str):
            raise InputError(
                f'field "label", entry {place}: found {json_kind(reference)}, expected a string'
            )
    try:
        for text in (response, row.get("question"), *label):
            str(text).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("a string contains a lone surrogate (invalid Unicode)") from None
    asked = row.get("question")
    return Item(
        q_id, response, label, asked if isinstance(asked, str) else "", row.get("ranking_label")
    )


SHARES = ("outside", "agree", "first")  # of a summary, beside its counts
FLAT = ("index", "q_id", "question", "response", "opponent", "score", "known", "outside", "best")


@dataclasses.dataclass(frozen=True)
class Findings:
    """Verdicts on some records.

    Attributes:
        estimates: "mean", or "win", "tie" and "lose" as shares: the numbers of the summary.
        summary: what the report says, as JSON.
        fields: of each record, behind those that it repeats. `known` is False if an answer names
            no label or several, and None if the request to the judge failed.
        errors: why the request to the judge failed, by record.
        remarks: what people should know before they trust the means.
    """

    kind: str
    estimates: Mapping[str, Estimate]
    summary: Mapping[str, Any]
    fields: list[dict[str, Any]]
    errors: Sequence[str | None]
    remarks: Sequence[str]


def evaluation(
    found: Findings,
    judged: Sequence[Entry[Item]],
    failures: Sequence[Failure],
    *,
    metric: str,
    n_items: int,
    asked: Sequence[Mapping[str, str]] = (),
    **more: Any,
) -> Evaluation:
    """Findings in the shape of every system.

    Args:
        judged: the entry of each record.
        failures: entries that were not judged.
        asked: the judge's prompt, see `Question.template`; empty of BEM, which has none.
    """
    every = [
        *failures,
        *(
            Failure(entry.name, error)
            for entry, error in zip(judged, found.errors, strict=True)
            if error is not None
        ),
    ]
    records = [
        {**record_of(entry), **fields} for entry, fields in zip(judged, found.fields, strict=True)
    ]
    summary = {**found.summary, "n_failed": len(every)}
    details = {"metric": metric, "kind": found.kind, "summary": summary}
    return Evaluation(
        summary={
            **found.estimates,
            **{k: v for k, v in summary.items() if k.startswith("n_") or k in SHARES},
        },
        items=records,
        n_items=n_items,
        rows=[{k: v for k, v in record.items() if k in FLAT} for record in records],
        details={**details, "asked": [*asked]} if asked else details,
        long={"records": records},
        headline=_headline(found.kind, summary),
        failures=every,
        remarks=found.remarks,
        **more,
    )


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
        return f"{', '.join(rates)} over {summary['n']} records"
    if summary["mean"] is None:
        return "no record was judged"
    low, high = summary["interval"]
    span = "" if low is None else f" [{low:.5f}, {high:.5f}]"
    outside = summary.get("outside")
    rest = "" if outside is None else f", {outside:.4f} of the probability outside the labels"
    return f"{summary['mean']:.5f}{span} over {summary['n']} records{rest}"


def metric_means(metric: str, details: Mapping[str, Any]) -> dict[str, float | None]:
    """The means of a metric as the metrics file has them; rates are percentages."""
    summary = details["summary"]
    if details["kind"] == "pairwise":
        return {f"{metric}_{name}": one["percent"] for name, one in summary["rates"].items()}
    return {metric: summary["mean"]}

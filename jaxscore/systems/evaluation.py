"""What every system gives back: one shape for reports, files, notebooks and closing lines."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.analysis import margins
from jaxscore.analysis.margins import Decisions
from jaxscore.errors import InputError, one_line
from jaxscore.systems.entries import SHOWN, Entry
from jaxscore.systems.rounding_audit import Noise
from jaxscore.systems.system import Decision, metadata_of
from jaxscore.types.results import Strip


class Failure(NamedTuple):
    """An item that could not be evaluated: what to call it, and why."""

    name: str
    error: str


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a system found.

    Attributes:
        summary: name -> number, `Estimate` or a dict of them: what is said of all items together.
        items: one record per item, as the system's output file has it; empty where the caller
            took each item as it came.
        n_items: how many items there were, failed ones included.
        rows: one flat record per row of `Report.to_frame`.
        details: fields of the report's JSON file that come before failures and settings.
        long: its fields that come last, since they hold all items.
        headline: the result in one line.
        failures: items that could not be evaluated.
        findings: sentences without a full stop that say how the headline is to be read; printed
            before it.
        remarks: what is legal and still worth a remark; see `systems.remarks`.
        lines: what the command prints before its closing block.
        counts: what the manifest has beside the usual.
        is_complete: False if something other than an item is missing, so that the command's exit
            code is 1.
        boundary: the boundary audit, see `audits.boundary_line`; None without one.
        boundary_effect: of its sample, for `merge`, also if no boundary changes anything.
        noise: the noise floor; None without an audit, or where nothing was scored.
        audited: whether a noise audit was requested.
        decisions: those that the noise floor marks.
        seconds: wall time of scoring and generation.
        prompting: what the prompts were made of, beyond what the system writes, for settings and
            manifest.
        strips: the scored texts of each item of `long`, in its order; empty where no page shows
            tokens.
        vocabulary: columns of the model's distribution; None if it is not known.
        page_items: the items of the page if `long` does not have them: what collected them as
            records passed, see `System.page_items`, or the records.
    """

    summary: Mapping[str, Any]
    n_items: int
    headline: str
    failures: Sequence[Failure]
    items: Sequence[Mapping[str, Any]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    long: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    findings: Sequence[str] = ()
    remarks: Sequence[str] = ()
    lines: Sequence[str] = ()
    counts: Mapping[str, int | str | None] = dataclasses.field(default_factory=dict)
    is_complete: bool = True
    boundary: str | None = None
    boundary_effect: Mapping[str, Any] | None = None
    noise: Noise | None = None
    audited: bool = False
    decisions: Sequence[Decisions] = ()
    seconds: float = 0.0
    prompting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    strips: Sequence[Sequence[Strip]] = ()
    vocabulary: int | None = None
    page_items: Any = None


def failures_of(
    entries: Sequence[Entry[Any]], records: Sequence[Mapping[str, Any]]
) -> list[Failure]:
    """The entries whose records have an `error`."""
    return [
        Failure(entry.name, record["error"])
        for entry, record in zip(entries, records, strict=True)
        if "error" in record
    ]


def failed_records(
    records: Iterable[Mapping[str, Any]],
    name: Callable[[Mapping[str, Any]], str] = lambda record: one_line(str(record["id"]), SHOWN),
) -> list[Failure]:
    """The records of a finished run that have an `error`, by their ids or another name."""
    return [Failure(name(record), record["error"]) for record in records if "error" in record]


def mark_noise(
    records: Iterable[dict[str, Any]],
    kind: type,
    noise: Noise | None,
    statistic: str,
    what: Mapping[str, str],
    described: str | None = None,
) -> list[Decisions]:
    """Add to each record that did not fail whether rounding could change its decisions.

    A declared `Decision` has its mark in the field `within`: whether its margin lies within the
    noise floor; None if nothing was decided.

    Args:
        kind: declared type of the records.
        noise: of the run; None marks nothing.
        statistic: which margins are a difference of, a key of `noise.spread`.
        what: field `within` -> what is decided, for messages.
        described: the statistic's displayed name, if another.
    """
    if noise is None:
        return []
    spread = noise.spread[statistic].largest
    good = [record for record in records if "error" not in record]
    for field, decision in metadata_of(kind, Decision):
        if decision.within in what and decision.margin is not None:
            for record in good:
                if field in record:
                    margin = None if record[field] is None else decision.margin(record)
                    mark = None if margin is None else margins.within(margin, spread)
                    record[str(decision.within)] = mark
    return [
        margins.count(name, described or statistic, spread, [record.get(field) for record in good])
        for field, name in what.items()
    ]


def unusable(entries: Iterable[Entry[Any]]) -> list[Failure]:
    """The entries that could not be read, and why."""
    return [Failure(entry.name, str(entry.error)) for entry in entries if entry.item is None]


def with_unusable(
    entries: Sequence[Entry[Any]], found: Evaluation, has_ids: bool = True
) -> Evaluation:
    """Add the entries that could not be read, in their places, to what was found of the others.

    Args:
        entries: all; `found` has one record for each usable one.
        has_ids: whether records have ids; otherwise unusable entries have no record.
    """
    if all(entry.item is not None for entry in entries):
        return found
    place = {entry.name: k for k, entry in enumerate(entries)}
    items = list(found.items)
    if has_ids:
        records = iter(found.items)
        items = [
            next(records) if entry.item is not None else {"id": entry.id, "error": entry.error}
            for entry in entries
        ]
    failures = [*found.failures, *unusable(entries)]
    return dataclasses.replace(
        found,
        items=items,
        n_items=len(entries),
        rows=[flat(record) for record in items],
        long={name: items if value is found.items else value for name, value in found.long.items()},
        failures=sorted(failures, key=lambda failure: place[failure.name]),
    )


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its lists, as one row of `Report.to_frame`."""
    return {name: value for name, value in record.items() if not isinstance(value, list)}


def check_found(n_items: int, what: str = "items") -> None:
    """Refuse an evaluation of nothing: its report would hold no number.

    Raises:
        InputError: there are none.
    """
    if not n_items:
        raise InputError(f"found no {what}, expected at least one")


def refuse_source(system: str, source: object) -> None:
    """Refuse a model for a system that uses none: the report would name it.

    Raises:
        InputError: one is given.
    """
    if source is not None:
        raise InputError(f"{system} computes nothing with a model; give None in place of a scorer")

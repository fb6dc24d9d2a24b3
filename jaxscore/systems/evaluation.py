"""What every system gives back: one shape for reports, files, notebooks and closing lines."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.analysis.margins import Decisions
from jaxscore.engine.rounding_audit import Noise
from jaxscore.errors import InputError, check_choice
from jaxscore.systems.entries import Entry
from jaxscore.text.tokenize_requests import Truncate
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
        remarks: what is legal and still worth telling.
        boundary: the boundary audit, see `ScoringRun.boundary_line`; None without one.
        noise: the noise floor; None without an audit, or where nothing was scored.
        audited: whether a noise audit was asked for.
        decisions: those that the noise floor marks.
        seconds: wall time of scoring and generation.
        prompting: what the prompts were made of, beyond what the system writes, for settings and
            manifest.
        strips: the scored texts of each item of `long`, in its order; empty where no page shows
            tokens.
        vocabulary: columns of the model's distribution; None where it is not known.
    """

    summary: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    n_items: int
    rows: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]
    long: Mapping[str, Any]
    headline: str
    failures: Sequence[Failure]
    findings: Sequence[str] = ()
    remarks: Sequence[str] = ()
    boundary: str | None = None
    noise: Noise | None = None
    audited: bool = False
    decisions: Sequence[Decisions] = ()
    seconds: float = 0.0
    prompting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    strips: Sequence[Sequence[Strip]] = ()
    vocabulary: int | None = None


def failures_of(
    entries: Sequence[Entry[Any]], records: Sequence[Mapping[str, Any]]
) -> list[Failure]:
    """The entries whose records have an `error`."""
    return [
        Failure(entry.name, record["error"])
        for entry, record in zip(entries, records, strict=True)
        if "error" in record
    ]


def with_unusable(entries: Sequence[Entry[Any]], found: Evaluation) -> Evaluation:
    """Add the entries that could not be read, in their places, to what was found of the others.

    Args:
        entries: all; `found` has one record for each usable one.
    """
    if all(entry.item is not None for entry in entries):
        return found
    place = {entry.name: k for k, entry in enumerate(entries)}
    unusable = [entry for entry in entries if entry.item is None]
    records = iter(found.items)
    items = [
        next(records) if entry.item is not None else {"id": entry.id, "error": entry.error}
        for entry in entries
    ]
    failures = [*found.failures, *(Failure(entry.name, str(entry.error)) for entry in unusable)]
    return dataclasses.replace(
        found,
        items=items,
        n_items=len(items),
        rows=[flat(record) for record in items],
        long={name: items if value is found.items else value for name, value in found.long.items()},
        failures=sorted(failures, key=lambda failure: place[failure.name]),
    )


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without its lists, as one row of `Report.to_frame`."""
    return {name: value for name, value in record.items() if not isinstance(value, list)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoringSettings:
    """Settings that every system which scores text has.

    Attributes:
        truncate: "left" drops the oldest context tokens of a request that is longer than the
            model's positions; None fails that request.
        seed: of whatever is drawn at random: samples, orders, bootstrap intervals, the audit.
        audit_noise: requests that are scored again in other layouts; 0 for none.
    """

    truncate: Truncate | None = None
    seed: int = 0
    audit_noise: int = 0

    def __post_init__(self) -> None:
        """Check the values that every system has.

        Raises:
            InputError: naming the setting, what it is and what is expected.
        """
        check_setting("truncate", self.truncate, (None, "left"))
        check_seed(self.seed)
        check_at_least("audit_noise", self.audit_noise, 0)

    def record(self) -> dict[str, Any]:
        """The settings as a report has them, without those that say nothing of the result."""
        out = dataclasses.asdict(self)
        del out["audit_noise"]
        return {name: list(v) if isinstance(v, tuple) else v for name, v in out.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonSettings(ScoringSettings):
    """`ScoringSettings` of a system whose means have bootstrap intervals.

    Attributes:
        n_bootstrap: draws for 95% intervals.
    """

    n_bootstrap: int = 1000

    def __post_init__(self) -> None:
        """Check all values; see `ScoringSettings`."""
        super().__post_init__()
        check_at_least("n_bootstrap", self.n_bootstrap, 1)


def check_setting(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a setting that is none of its choices.

    Raises:
        InputError: naming the setting, its value and the choices.
    """
    try:
        check_choice(f"setting {name}", value, choices)
    except ValueError as error:
        raise InputError(str(error)) from None


def check_at_least(name: str, value: object, least: int) -> None:
    """Refuse a setting that is no whole number or below `least`.

    Raises:
        InputError: naming the setting and its value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(
            f"setting {name} is {value!r}, expected a whole number of at least {least}"
        )


def check_seed(value: object) -> None:
    """Refuse a seed that is no whole number.

    Raises:
        InputError: naming the setting and its value.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"setting seed is {value!r}, expected a whole number")


def check_list(name: str, value: object) -> tuple[Any, ...]:
    """A setting that is a list, as a tuple.

    Raises:
        InputError: it is a string, or no list at all, naming the setting.
    """
    if isinstance(value, str):
        raise InputError(f"setting {name} is a string, expected a list of strings")
    if not isinstance(value, Iterable):
        raise InputError(f"setting {name} is {value!r}, expected a list of strings")
    return tuple(value)


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


def settings_of(kind: type[Any], given: Mapping[str, Any]) -> Any:
    """A system's settings from keyword arguments.

    Raises:
        InputError: a name that the system does not have, with the nearest one it has; or a value
            that it does not take.
    """
    known = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"is it {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise InputError(f"no setting {name!r}; {hint}")
    return kind(**given)

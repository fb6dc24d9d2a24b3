"""Two finished runs as one call: an `Evaluation` of their differences."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.io.printable import one_line
from jaxscore.systems.compare import facts as run_facts
from jaxscore.systems.compare import flips, matching, reading, remarks, statistics, verdicts
from jaxscore.systems.compare.flips import Decided
from jaxscore.systems.compare.matching import Matched
from jaxscore.systems.compare.pairs import MOST_CHANGED, Pairs
from jaxscore.systems.compare.reading import Opened
from jaxscore.systems.compare.run import Run
from jaxscore.systems.compare.settings import Settings
from jaxscore.systems.compare.statistics import Draws, Values
from jaxscore.systems.compare.unit import System
from jaxscore.systems.evaluation import Evaluation, Failure, refuse_source

__all__ = ["Settings", "evaluate"]


def evaluate(source: None, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Compare two finished runs of one system on the same items.

    Args:
        source: None: nothing is computed on a device.
        items: the two runs, A and B: paths of their files, or what `reading.open_run` gives.

    Raises:
        InputError: a run cannot be read, they are of two systems or differ in what they count,
            or no item of one is in the other.
    """
    refuse_source("compare", source)
    given = tuple(items)
    if len(given) != 2:
        raise InputError(f"found {len(given)} runs, expected two")
    opened_a, opened_b = (
        one if isinstance(one, Opened) else reading.open_run(Path(one)) for one in given
    )
    system = opened_a.system
    _check_systems(opened_a, opened_b)
    differences = run_facts.differences(opened_a.facts, opened_b.facts)
    counted = remarks.counted_otherwise(system, differences)
    if counted is not None and not settings.force:
        raise InputError(
            f"{counted}; run one again with the setting of the other, or compare them with --force"
        )
    same_input = reading.same_input(opened_a, opened_b)
    a, b = (one.load(with_texts=not same_input) for one in (opened_a, opened_b))
    matched = matching.match(a, b)
    if not len(matched.a):
        raise InputError(_no_pair(a, b, matched, system))
    if settings.limit is not None:
        matched = dataclasses.replace(
            matched, a=matched.a[: settings.limit], b=matched.b[: settings.limit]
        )
    by = "text" if matched.by_text else "input" if same_input else "id"
    draws = Draws(settings.n_bootstrap, settings.n_resamples, settings.seed)
    columns = _columns(system, a, b, matched)
    found = statistics.corrected(
        [
            (statistics.right if is_right else statistics.number)(name, title, values, draws)
            for name, (title, is_right, values) in columns.items()
        ]
    )
    decisions = _decisions(system, a, b, matched, draws)
    failures = [
        Failure(f"{run}: {name}", error)
        for run, opened, own in (("A", opened_a, a), ("B", opened_b, b))
        for name, error in _failed(opened, own)
    ]
    told = [verdicts.verdict(one, sum(other.p is not None for other in found)) for one in found]
    pairs = Pairs(a, b, matched)
    counts = {
        "compared": len(matched.a),
        "units_a": a.n,
        "units_b": b.n,
        "failed_pairs": matched.n_failed_pairs,
        "only_a": len(matched.only_a),
        "only_b": len(matched.only_b),
        "other_text": len(matched.other_text),
        "repeated": matched.n_repeated,
        "matched_by": by,
    }
    return Evaluation(
        summary={
            **{one.name: one for one in found},
            "n_pairs": len(matched.a),
            "n_tests": sum(one.p is not None for one in found),
        },
        items=pairs,
        n_items=len(matched.a),
        rows=pairs,
        details={
            "system": system.name,
            "what": system.what,
            "runs": {"a": _about(opened_a), "b": _about(opened_b)},
            "differences": differences,
            "pairs": counts,
            "results": [
                {**_plain(one), "verdict": text} for one, text in zip(found, told, strict=True)
            ],
            "decisions": [
                {k: v for k, v in _plain(one).items() if k != "flips"} for one in decisions
            ],
        },
        long={
            "flips": {one.name: one.flips for one in decisions},
            "most_changed": _most_changed(columns, matched, a),
            "without_partner": {"a": matched.only_a, "b": matched.only_b},
            "other_text": matched.other_text,
        },
        headline=told[0] if told else "no number and no decision is in both runs",
        failures=failures,
        remarks=[
            *([f"{counted}; they are compared by --force"] if counted is not None else []),
            *remarks.remarks(system, (opened_a, opened_b), (a, b), matched, by),
        ],
    )


def _plain(one: Any) -> dict[str, Any]:
    """The fields of a dataclass; those that are dataclasses stay."""
    return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}


def _check_systems(a: Opened, b: Opened) -> None:
    if a.system.name != b.system.name:
        raise InputError(
            f"A is of {a.system.name} and B of {b.system.name}; expected two runs of one system"
        )


def _no_pair(a: Run, b: Run, matched: Matched, system: System) -> str:
    other = len(matched.other_text)
    why = f"{other} have the same id and another text; " if other else ""
    first = ", ".join(repr(run.names[0]) for run in (a, b) if run.n)
    return (
        f"no pair of {system.what}: of {a.n} in A and {b.n} in B none is in both without a "
        f"failure; {why}the first are {first}; expected two runs on the same items"
    )


def _failed(opened: Opened, run: Run) -> list[tuple[str, str]]:
    """(name, why) of a run's failures: as its report lists them, and what cannot be read."""
    if opened.failures is None:
        return [(run.names[k], error) for k, error in run.errors.items()]
    return [*opened.failures, *((run.names[k], run.errors[k]) for k in sorted(run.unread))]


def _columns(
    system: System, a: Run, b: Run, matched: Matched
) -> dict[str, tuple[str, bool, Values]]:
    """Name -> title, whether it is right or wrong, and the values, in the order of the report."""
    places = matched.a, matched.b
    groups = None if a.groups is None else a.groups[matched.a]
    out: dict[str, tuple[str, bool, Values]] = {}
    for name, title in system.choices.items():
        if title.right and name in a.choices and name in b.choices:
            one, other = (statistics.as_column(run.choices[name]) for run in (a, b))
            out[name] = (title.title, True, statistics.values(one, other, places, groups))
    names = [*system.numbers, *(name for name in a.numbers if name not in system.numbers)]
    for name in names:
        if name in a.numbers and name in b.numbers:
            found = statistics.values(a.numbers[name], b.numbers[name], places, groups)
            out[name] = (system.numbers.get(name, name), False, found)
    return out


def _decisions(system: System, a: Run, b: Run, matched: Matched, draws: Draws) -> list[Decided]:
    places = matched.a, matched.b
    groups = None if a.groups is None else a.groups[matched.a]
    return [
        flips.decided(name, title, a.choices[name], b.choices[name], places, a.names, groups, draws)
        for name, title in system.choices.items()
        if name in a.choices and name in b.choices
    ]


def _most_changed(
    columns: Mapping[str, tuple[str, bool, Values]], matched: Matched, a: Run
) -> dict[str, list[dict[str, Any]]]:
    """Of each number the values that differ most, with the names of their items."""
    out = {}
    for name, (_, is_right, found) in columns.items():
        moved = np.abs(found.b - found.a)
        if is_right or not moved.any():
            continue
        most = np.argsort(-moved, kind="stable")[:MOST_CHANGED]
        out[name] = [
            {
                "name": a.names[int(matched.a[found.pair[k]])],
                "a": float(found.a[k]),
                "b": float(found.b[k]),
                "difference": float(found.b[k] - found.a[k]),
            }
            for k in most.tolist()
            if moved[k] > 0
        ]
    return out


def _about(opened: Opened) -> dict[str, Any]:
    """What the report says of a run at its top; the differences have the rest."""
    names = ("command", "model", "dtype", "boundary")
    return {
        "path": None if opened.path is None else one_line(str(opened.path)),
        "has_manifest": opened.has_manifest,
        **{name: opened.facts[name] for name in names if opened.facts.get(name) is not None},
    }

"""Which system wrote a file: by its manifest, otherwise by the fields of a record."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.compare.units import Comparison
from jaxscore.systems.system import SYSTEMS, declaration

NAMED = 8  # fields in a message


@functools.cache
def comparisons_of(name: str) -> tuple[Comparison, ...]:
    """How the runs of a system are compared; none if they are not, or if there is no such name."""
    if name not in SYSTEMS:
        return ()
    system = declaration(name)
    return tuple(Comparison(system, compared) for compared in system.compared)


def _all_comparisons() -> list[tuple[str, Comparison]]:
    """All systems' comparisons, each with the system's name."""
    return [(name, comparison) for name in SYSTEMS for comparison in comparisons_of(name)]


def expected() -> str:
    """The files that can be compared, for messages."""
    patterns = {name: comparison.compared.file for name, comparison in _all_comparisons()}
    files = (f"{name} ({file})" if file else name for name, file in patterns.items())
    return f"the output of {', '.join(files)}"


def _best_fit(comparisons: Iterable[Comparison], record: object) -> Comparison | None:
    """The comparison whose signature a record has; of several that with the most fields."""
    fields = record.keys() if isinstance(record, Mapping) else set()
    fitting = [
        comparison
        for comparison in comparisons
        if fields >= set(comparison.compared.signature)
        and not fields & set(comparison.compared.without)
    ]
    return max(fitting, key=lambda fit: len(fit.compared.signature), default=None)


def of_report(report: Mapping[str, Any], path: Path) -> tuple[Comparison, list[Any]]:
    """How the items of a report's JSON file are compared, and the items.

    Raises:
        InputError: it is the report of no system whose items it holds.
    """
    if isinstance(report.get("settings"), dict):
        holding = [
            comparison
            for _, comparison in _all_comparisons()
            if isinstance(report.get(comparison.compared.list_in), list)
        ]
        if holding:
            items = report[holding[0].compared.list_in]
            return _best_fit(holding, next(iter(items), {})) or holding[0], items
    hint = ""
    if "by_length" in report:
        hint = "; this is the report of paths, give the file beside it that --output named"
    elif "command" in report and "flags" in report:
        hint = "; this is a manifest, give the file without .run.json"
    raise InputError(f"{path}: found an object with {_fields(report)}, expected {expected()}{hint}")


def of_command(command: str, first: object) -> Comparison:
    """How the records of a command, or of `evaluate`, are compared.

    Args:
        first: a record of the run that is no failed item.

    Raises:
        InputError: they are not.
    """
    if not (comparisons := comparisons_of(command)):
        raise InputError(f"results of {command} are not compared; expected {expected()}")
    return _best_fit(comparisons, first) or comparisons[0]


def of_records(command: str | None, first: Mapping[str, Any], path: Path) -> Comparison:
    """How the records of a file with one per item are compared.

    Args:
        command: what the manifest says wrote it; None without one.
        first: a record that is no failed item.

    Raises:
        InputError: they are records of no system, or of one whose results are not compared.
    """
    if command is not None:
        try:
            return of_command(command, first)
        except InputError as problem:
            raise InputError(f"{path}: by its manifest, {problem}") from None
    of_files = (found for _, found in _all_comparisons() if not found.compared.list_in)
    comparison = _best_fit(of_files, first)
    if comparison is None:
        raise InputError(
            f"{path}: found records with the fields {_fields(first)}, expected {expected()}"
        )
    return comparison


def _fields(record: Mapping[str, Any]) -> str:
    """Names of a record's first fields, for messages."""
    return ", ".join(map(repr, sorted(map(str, record))[:NAMED])) or "nothing"

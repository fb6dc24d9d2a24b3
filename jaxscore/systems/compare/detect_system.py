"""Which system wrote a file: by its manifest, otherwise by the fields of a record."""

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.compare.declared import comparisons
from jaxscore.systems.compare.unit import System
from jaxscore.systems.registry import SYSTEMS, declaration


@functools.cache
def comparisons_of(name: str) -> tuple[System, ...]:
    """How the runs of a system are compared; none if they are not, or if there is no such name."""
    declared = declaration(name) if name in SYSTEMS else None
    return () if declared is None else tuple(comparisons(declared))


def _all() -> list[System]:
    return [system for name in SYSTEMS for system in comparisons_of(name)]


def expected() -> str:
    """The files that can be compared, for messages."""
    files = (
        f"{name} ({system.file})" if system.file else name
        for name in SYSTEMS
        for system in comparisons_of(name)
    )
    return f"the output of {', '.join(dict.fromkeys(files))}"


def _fitting(systems: Iterable[System], record: object) -> System | None:
    """The system whose signature a record has; of several that with the most fields."""
    there = record.keys() if isinstance(record, Mapping) else set()
    fitting = [
        system
        for system in systems
        if there >= set(system.signature) and not there & set(system.without)
    ]
    return max(fitting, key=lambda system: len(system.signature), default=None)


def of_report(found: Mapping[str, Any], path: Path) -> tuple[System, list[Any]]:
    """The system of a report's JSON file, and its items.

    Raises:
        InputError: it is the report of no system whose items it holds.
    """
    if isinstance(found.get("settings"), dict):
        holding = [
            system
            for system in _all()
            if system.list_in and isinstance(found.get(system.list_in), list)
        ]
        if holding:
            items = found[holding[0].list_in]
            return _fitting(holding, next(iter(items), {})) or holding[0], items
    hint = ""
    if "by_length" in found:
        hint = "; this is the report of paths, give the file beside it that --output named"
    elif "command" in found and "flags" in found:
        hint = "; this is a manifest, give the file without .run.json"
    there = ", ".join(map(repr, sorted(map(str, found))[:8])) or "nothing"
    raise InputError(f"{path}: found an object with {there}, expected {expected()}{hint}")


def of_command(command: str, first: object) -> System:
    """The system of a command, or of `evaluate`.

    Args:
        first: a record of the run that is no failed item.

    Raises:
        InputError: its results are not compared.
    """
    if not (systems := comparisons_of(command)):
        raise InputError(f"results of {command} are not compared; expected {expected()}")
    return _fitting(systems, first) or systems[0]


def of_records(command: str | None, first: Mapping[str, Any], path: Path) -> System:
    """The system of a file with one record per item.

    Args:
        command: what the manifest says wrote it; None without one.
        first: a record that is no failed item.

    Raises:
        InputError: no system, or one whose results are not compared.
    """
    if command is not None:
        try:
            return of_command(command, first)
        except InputError as problem:
            raise InputError(f"{path}: by its manifest, {problem}") from None
    system = _fitting([system for system in _all() if not system.list_in], first)
    if system is None:
        there = ", ".join(map(repr, sorted(map(str, first))[:8])) or "none"
        raise InputError(f"{path}: found records with the fields {there}, expected {expected()}")
    return system

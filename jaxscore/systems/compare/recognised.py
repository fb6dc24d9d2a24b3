"""Which system wrote a file: what its manifest says, else what a record looks like."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.choose.system import SYSTEM as CHOOSE
from jaxscore.systems.compare.declared import comparison
from jaxscore.systems.compare.systems import (
    chronologic,
    paths,
    probsem,
    rag,
    samples,
)
from jaxscore.systems.compare.unit import System
from jaxscore.systems.perplexity.system import SYSTEM as PERPLEXITY
from jaxscore.systems.score.system import SYSTEM as SCORE

_CHOOSE, _PERPLEXITY, _SCORE = map(comparison, (CHOOSE, PERPLEXITY, SCORE))
SYSTEMS = (
    _SCORE,
    paths.SYSTEM,
    chronologic.SYSTEM,
    chronologic.LETTERS,
    probsem.SYSTEM,
    rag.JUDGE,
    rag.METRICS,
    samples.SELF_CERTAINTY,
    samples.CHOICE,
    _CHOOSE,
    _PERPLEXITY,
)
# Fields of a record that one system alone writes; the first that fits.
RECORDS: tuple[tuple[frozenset[str], System], ...] = (
    (frozenset({"path_evaluations"}), paths.SYSTEM),
    (frozenset({"options", "sum_logprob"}), _CHOOSE),
    (frozenset({"bits_per_byte"}), _PERPLEXITY),
    (frozenset({"sum_logprob", "n_scored"}), _SCORE),
    (frozenset({"q_id", "response"}), rag.METRICS),
    (frozenset({"code_list"}), samples.CHOICE),
    (frozenset({"output", "confidence"}), samples.CHOICE),
    (frozenset({"confidence_list"}), samples.SELF_CERTAINTY),
    (frozenset({"output", "model_input"}), samples.CHOICE),
)
# Reports that hold the items of a run: the field with the items, and the system.
REPORTS: tuple[tuple[str, System], ...] = (
    ("questions", chronologic.SYSTEM),
    ("contexts", probsem.SYSTEM),
    ("records", rag.JUDGE),
)
EXPECTED = (
    "the output of score, paths, probsem (…_results.json), judge (eval_…_judge_….json), metrics "
    "(eval_…_out.json), self-certainty, select, vote, usc-select, livecode-select, choose or "
    "perplexity, or the eval_results_….json of chronologic"
)


def of_report(found: Mapping[str, Any], path: Path) -> tuple[System, list[Any]]:
    """The system of a report's JSON file, and its items.

    Raises:
        InputError: it is the report of no system whose items it holds.
    """
    if isinstance(found.get("settings"), dict):
        for field, system in REPORTS:
            items = found.get(field)
            if isinstance(items, list):
                letters = system is chronologic.SYSTEM and _of_letters(found, items)
                return (chronologic.LETTERS if letters else system), items
    hint = ""
    if "by_length" in found:
        hint = "; this is the report of paths, give the file beside it that --output named"
    elif "command" in found and "flags" in found:
        hint = "; this is a manifest, give the file without .run.json"
    there = ", ".join(map(repr, sorted(map(str, found))[:8])) or "nothing"
    raise InputError(f"{path}: found an object with {there}, expected {EXPECTED}{hint}")


def _of_letters(found: Mapping[str, Any], items: list[Any]) -> bool:
    return found["settings"].get("mode") == "mcq" or any(
        isinstance(one, dict) and "choices" in one for one in items[:1]
    )


def of_command(facts: Mapping[str, Any]) -> System:
    """The system of a command, or of `evaluate`.

    Args:
        facts: of its run: `command`, and of `chronologic` its `mode`.

    Raises:
        InputError: its results are not compared.
    """
    command = facts["command"]
    if command == "chronologic" and facts.get("mode") == "mcq":
        return chronologic.LETTERS
    for system in SYSTEMS:
        if command in system.commands:
            return system
    raise InputError(f"results of {command} are not compared; expected {EXPECTED}")


def of_records(command: object, first: Mapping[str, Any], path: Path) -> System:
    """The system of a file with one record per item.

    Args:
        command: what the manifest says wrote it; None without one.
        first: a record that is no failed item.

    Raises:
        InputError: no system, or one whose results are not compared.
    """
    if command is not None:
        try:
            return of_command({"command": command})
        except InputError as problem:
            raise InputError(f"{path}: by its manifest, {problem}") from None
    for fields, system in RECORDS:
        if fields <= first.keys():
            return system
    there = ", ".join(map(repr, sorted(map(str, first))[:8])) or "none"
    raise InputError(f"{path}: found records with the fields {there}, expected {EXPECTED}")

"""The block that every command ends with on stdout: done, shared, result, files, journal."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxscore.analysis.margins import Decisions
from jaxscore.cli.messages import remark, tell_failures
from jaxscore.engine.rounding_audit import Noise
from jaxscore.evaluate import Report
from jaxscore.io.printable import one_line
from jaxscore.io.streams import NOWHERE

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

GONE = (
    " was removed or replaced during the run: it does not hold what this run finished, and the "
    "same command computes it again"
)
WIDTH = 9  # columns of a line's title


def close(
    args: argparse.Namespace,
    report: Report,
    what: str,
    files: Iterable[Path],
    scorer: "Scorer | None" = None,
) -> int:
    """Close a command that evaluated something; see `block`.

    Remarks go to stderr first.

    Args:
        what: its items, as "questions".
        files: everything that was written.
        scorer: what computed; None for a command that computes nothing on a device.
    """
    found = report.evaluation
    for line in found.remarks:
        remark(args, line)
    return block(
        done=f"{found.n_items} {what}",
        failures=found.failures,
        results=[found.headline, *noise_lines(found.noise, found.audited, found.decisions)],
        boundary=found.boundary,
        files=files,
        scorer=scorer,
        seconds=None if scorer is None else found.seconds,
    )


def block(
    *,
    done: str,
    failures: Sequence[tuple[object, str]],
    results: Sequence[str] = (),
    boundary: str | None = None,
    files: Iterable[Path] = (),
    scorer: "Scorer | None" = None,
    seconds: float | None = None,
) -> int:
    """List failures on stderr, print the block on stdout and give the exit code.

    Args:
        done: what was done, with its count: "12 requests".
        failures: (name, why) of items that failed.
        results: the headline number, and what else is a result.
        boundary: the boundary audit, see `ScoringRun.boundary_line`.
        files: everything that was written.
        scorer: what computed; None for a command that computes nothing on a device.
        seconds: of computing.
    """
    took = "" if seconds is None else f" in {seconds:.1f} s"
    lines = [("done", f"{done}, {len(failures)} failed{took}")]
    if scorer is not None:
        if scorer.statistics.tokens_given:  # writing texts alone counts none
            lines.append(("shared", shared(scorer)))
        lines.append(("model", model(scorer)))
    lines += _titled("result", results)
    if boundary is not None:
        lines += _titled("boundary", boundary.split("\n"))
    lines += _titled("files", (str(path) for path in files if path != NOWHERE))
    if scorer is not None and scorer.journal is not None and scorer.journal.is_lost:
        lines.append(("journal", f"{scorer.journal.path}{GONE}"))
    elif scorer is not None and scorer.journal is not None and scorer.journal.path.is_file():
        counted = scorer.statistics
        found = f"{counted.sequences_restored} of {counted.sequences} texts come from it"
        if counted.sampled_with_blank:
            found += (
                f"; the texts include sampled answers with a blank: {counted.sampled_with_blank}"
            )
        lines.append(("journal", f"{scorer.journal.path}, {found}"))
    _print(lines)
    return tell_failures(failures)


def print_findings(report: Report) -> None:
    """Print how the numbers are to be read, before any of them."""
    _print(_titled("finding", report.evaluation.findings))


def _print(lines: Iterable[tuple[str, str]]) -> None:
    for title, text in lines:
        print(f"{title:{WIDTH}}{one_line(text)}")


def _titled(title: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    return [(title if k == 0 else "", text) for k, text in enumerate(texts)]


def shared(scorer: "Scorer") -> str:
    """What prefix sharing saved."""
    counted = scorer.statistics
    given, unique, n_scored = counted.tokens_given, counted.tokens_unique, counted.tokens_scored
    ratio = f", {given / unique:.1f} given per computed token" if unique else ""
    return f"{given} tokens given, {unique} computed{ratio}, {n_scored} scored"


def model(scorer: "Scorer") -> str:
    """Which model, or which two, and how it was computed."""
    return " against ".join(
        f"{one.model_type}, {one.implementation}, {one.dtype}{', int8' if one.quantized else ''}"
        for one in scorer.models
    )


def noise_lines(noise: Noise | None, audited: bool, decisions: Sequence[Decisions]) -> list[str]:
    """The noise floor in one line, where an audit was asked for: it is a result."""
    if not audited:
        return []
    if noise is None:
        return ["noise floor: no request was scored, so none was scored again"]
    parts = [
        f"noise floor: {noise.n_requests} requests in {len(noise.layouts)} layouts move by at most "
        + ", ".join(f"{one.largest:.2g} ({name})" for name, one in noise.spread.items())
    ]
    if noise.n_tokens is not None:
        parts.append(f"greedy differs on {noise.n_greedy_differs} of {noise.n_tokens} tokens")
    if decisions:
        told = (f"{one.what} {one.n_within} of {one.n}" for one in decisions)
        parts.append(f"decisions within that: {', '.join(told)}")
    return ["; ".join(parts)]

"""What commands print: remarks on stderr, failed items, and the closing block on stdout."""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jaxscore.analysis.margins import Decisions
from jaxscore.errors import one_line
from jaxscore.io import processes
from jaxscore.io.remote import displayed
from jaxscore.io.streams import NOWHERE
from jaxscore.report.counts import counted
from jaxscore.shell.flags import flag
from jaxscore.shell.report import Report
from jaxscore.shell.rounding_audit import Noise

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

LISTED = 20  # remarks, and failures
FAILURES = "failures"  # of parts of items, such as paths and outputs
TITLE_WIDTH = 9  # columns
JOURNAL_LOST = (
    " was removed or replaced during the run: it does not hold what this run finished, and the "
    "same command computes it again"
)


@dataclasses.dataclass(kw_only=True)
class Quiet:
    """The flag of a command that loads no model."""

    quiet: bool = flag(False, help="no warnings on stderr")


def remark(args: Any, text: str) -> None:
    """Print a line on stderr, unless --quiet."""
    if not args.quiet:
        _print_error(text)


def print_remarks(args: argparse.Namespace, remarks: Sequence[str]) -> None:
    """Print the first remarks on stderr, and how many more there are."""
    for line in remarks[:LISTED]:
        remark(args, line)
    if len(remarks) > LISTED:
        remark(args, f"and {len(remarks) - LISTED} more remarks")


def print_failure(name: object, why: str) -> None:
    """Print one failure on stderr."""
    _print_error(f"failed: {name}: {why}")


def print_failures(failures: Sequence[tuple[object, str]], failed: str = "failed") -> int:
    """List failed items (name, why) on stderr; returns the exit code."""
    for name, why in failures[:LISTED]:
        print_failure(name, why)
    if len(failures) > LISTED:
        _print_error(f"and {len(failures) - LISTED} more")
    if failures:
        _print_error(f"{counted(len(failures), failed)}, the others are kept")
    return 1 if failures else 0


def _print_error(text: str) -> None:
    """Print a line on stderr, whatever users' ids and servers' answers contain."""
    if processes.is_first():
        _print_text(displayed(one_line(text)), sys.stderr)


def _print_text(text: str, file: TextIO) -> None:
    """Print a text; a character that the stream's encoding lacks is printed by its number."""
    encoding = file.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=file)


def close(
    args: argparse.Namespace,
    report: Report,
    files: Sequence[Path],
    scorer: "Scorer | None" = None,
    of_files: str = "",
    lines: Iterable[str] = (),
) -> int:
    """Print findings, remarks and the closing block of a finished run; returns the exit code.

    Args:
        files, scorer: as of `print_closing_block`.
        of_files: what follows the number of items, such as " of 3 files".
        lines: what a command prints of its items, after the findings.
    """
    found, boundary = report.found, report.boundary_lines()
    _print_titled(_titled("finding", report.findings))
    for line in itertools.chain(found.lines, lines):
        print(line)
    for line in report.slice_lines():
        _print_text(line, sys.stdout)
    print_remarks(args, report.remarks)
    if report.lacks_texts and any(path.suffix == ".html" for path in files):
        remark(args, "the page lacks tokens and contexts: the output does not have them")
    # Shards without an audit may have been scored: `merge` says nothing of them.
    is_audited = getattr(report.chosen, "audit_noise", 0) > 0 and not of_files
    is_audited |= report.facts.noise is not None
    names = [name for name, _ in found.failures]
    has_several = bool(names and report.declared.parts) or len({*names}) < len(names)
    code = print_closing_block(
        done=f"{counted(len(report.records), report.declared.what)}{of_files}",
        failures=[(report.places.get(name, name), why) for name, why in found.failures],
        results=[found.headline, *noise_lines(report.facts.noise, is_audited, report.decisions)],
        boundary="\n".join(boundary) or None,
        files=files,
        scorer=scorer,
        seconds=None if scorer is None else report.facts.seconds,
        failed=FAILURES if has_several else "failed",
    )
    return code or int(not found.is_complete)


def print_closing_block(
    *,
    done: str,
    failures: Sequence[tuple[object, str]] = (),
    results: Sequence[str] = (),
    boundary: str | None = None,
    files: Iterable[Path] = (),
    scorer: "Scorer | None" = None,
    seconds: float | None = None,
    failed: str = "failed",
) -> int:
    """Print the closing block on stdout and the failures on stderr; returns the exit code.

    Args:
        done: what was done, with its count: "12 requests".
        failures: (name, why) of items that failed.
        results: the headline number and further results.
        boundary: the boundary audit, see `audits.boundary_line`.
        files: everything that was written.
        scorer: the model, or None for a command that computes nothing on a device.
        seconds: of computing.
        failed: "failed", or `FAILURES` if an item can have several.
    """
    took = "" if seconds is None else f" in {seconds:.1f} s"
    lines = [("done", f"{done}, {counted(len(failures), failed)}{took}")]
    if scorer is not None:
        if scorer.statistics.tokens_given:  # generation alone counts none
            lines.append(("shared", _describe_sharing(scorer)))
        models = (
            f"{model.model_type}, {model.implementation}, {model.dtype}"
            f"{f', {model.quantized}' if model.quantized else ''}"
            for model in scorer.models
        )
        lines.append(("model", " against ".join(models)))
    lines += _titled("result", results)
    lines += _titled("boundary", [] if boundary is None else boundary.split("\n"))
    lines += _titled("files", (str(path) for path in files if path != NOWHERE))
    if scorer is not None and (journal := _describe_journal(scorer)) is not None:
        lines.append(("journal", journal))
    _print_titled(lines)
    return print_failures(failures, failed)


def _print_titled(lines: Iterable[tuple[str, str]]) -> None:
    for title, text in lines:
        print(f"{title:{TITLE_WIDTH}}{displayed(one_line(text))}")


def _titled(title: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    return [(title if k == 0 else "", text) for k, text in enumerate(texts)]


def _describe_sharing(scorer: "Scorer") -> str:
    counted = scorer.statistics
    given, unique, n_scored = counted.tokens_given, counted.tokens_unique, counted.tokens_scored
    ratio = f", {given / unique:.1f} given per computed token" if unique else ""
    return f"{given} tokens given, {unique} computed{ratio}, {n_scored} scored"


def _describe_journal(scorer: "Scorer") -> str | None:
    """The journal and what the run took from it, or None if there is none."""
    journal, counted = scorer.journal, scorer.statistics
    if journal is None:
        return None
    if journal.is_lost:
        return f"{journal.path}{JOURNAL_LOST}"
    if not journal.path.is_file():
        return None
    restored = f"{counted.sequences_restored} of {counted.sequences} texts come from it"
    return f"{journal.path}, {restored}"


def noise_lines(noise: Noise | None, audited: bool, decisions: Sequence[Decisions]) -> list[str]:
    """The noise floor in one line; none without --audit-noise."""
    if not audited:
        return []
    if noise is None:
        return ["noise floor: no request was scored, so none was scored again"]
    parts = [
        f"noise floor: {counted(noise.n_requests, 'requests')} in "
        f"{counted(len(noise.layouts), 'layouts')} move by at most "
        + ", ".join(f"{spread.largest:.2g} ({name})" for name, spread in noise.spread.items())
    ]
    if noise.n_tokens is not None:
        parts.append(f"greedy differs on {noise.n_greedy_differs} of {noise.n_tokens} tokens")
    if decisions:
        within = (f"{found.what} {found.n_within} of {found.n}" for found in decisions)
        parts.append(f"decisions within that: {', '.join(within)}")
    return ["; ".join(parts)]

"""`jaxscore compare`: finished runs of one system."""

import argparse
import dataclasses
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, outputs, settings_flags
from jaxscore.cli.app import Command
from jaxscore.errors import one_line
from jaxscore.io.input_files import InputFiles
from jaxscore.io.local_path import shorten_name
from jaxscore.report.counts import counted
from jaxscore.report.markdown import aligned
from jaxscore.report.slices import PRINTED
from jaxscore.shell.flags import flag, options_of
from jaxscore.systems.compare import HELP, ComparedRuns, Settings, bytes_report
from jaxscore.systems.compare.open_run import find_manifest, open_run
from jaxscore.systems.compare.table import HEADER, ComparedTable, compare_all

NOISE = {  # the runs that were audited -> how many flips lie within the noise
    None: "noise floor not audited: --audit-noise N",
    "both": "{} within the noise floor",
    "A": "{} within the noise floor of A; B is not audited",
    "B": "{} within the noise floor of B; A is not audited",
}
LONGEST = 80  # bytes of a run's name in the default name
FIRST_SETTINGS = ("model", "reference", "weights", "lora", "dtype", "quantize", "boundary")
MOST_SETTINGS = 8  # on stdout; the report lists all


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `compare` that are not settings."""

    a: Path = flag(is_positional=True, metavar="A", help="a finished run")
    others: list[Path] = flag(
        is_positional=True, metavar="B", help="one or more others, of the same system"
    )
    output: Path | None = flag(
        None,
        metavar="OUT",
        help="name of the files (default: A-vs-B, next to A); - is stdout, for the JSON alone",
    )
    limit: int | None = flag(None, least=1, metavar="N", help="only the first N pairs")


def run(args: argparse.Namespace) -> int:
    paths = [args.a, *args.others]
    output = args.output or args.a.with_name(_name(*paths))
    inputs = [*paths, *map(find_manifest, paths)]
    files = outputs.ReportFiles(args, *inputs, output=output, has_records=False)
    settings = Settings(**settings_flags.values(args, Settings), limit=args.limit)
    files_read = InputFiles(path for path in inputs if path is not None)
    with files.opened() as write:
        compared = compare_all([*map(open_run, paths)], settings, _about(paths, files_read))
        write(compared)
        files_read.check_unchanged()
    for line in summary_lines(compared):
        print(line)
    messages.print_remarks(args, compared.remarks)
    facts = {"failed": len(compared.failures), "remarks": compared.remarks}
    manifest = outputs.write_own_manifest(args, output, facts, files.paths[1:2])
    return messages.print_closing_block(
        done=_done(compared),
        failures=compared.failures,
        results=[compared.headline],
        files=[*files.paths, manifest],
        failed=messages.FAILURES if compared.failures else "failed",
    )


def _about(paths: Sequence[Path], files_read: InputFiles) -> dict[str, str | None]:
    """Return the paths and digests of the files, for the report's settings."""
    named = dict(zip(string.ascii_lowercase, paths, strict=False))
    return {name: str(path) for name, path in named.items()} | {
        f"{name}_sha256": files_read.digest(path) for name, path in named.items()
    }


def _name(a: Path, b: Path, *more: Path) -> str:
    """Return the default name: that of A and B, with their folders if their names are equal."""
    names = [a.stem, b.stem]
    if a.stem == b.stem:
        names = [f"{path.resolve().parent.name}_{path.stem}" for path in (a, b)]
    name = "-vs-".join(shorten_name(name, LONGEST) for name in names)
    return f"{name}-and-{len(more)}-more" if more else name


def _done(compared: ComparedRuns | ComparedTable) -> str:
    if isinstance(compared, ComparedRuns):
        return counted(len(compared.pairs), "pairs")
    return counted(len(compared.names), "runs")


def _differing(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line with the settings in which A and B differ, or none if nothing differs."""
    if not differences:
        return []
    ordered = sorted(differences, key=lambda each: each["setting"] not in FIRST_SETTINGS)
    named = [
        f"{each['setting']} ({one_line(str(each['a']), 32)} and {one_line(str(each['b']), 32)})"
        for each in ordered[:MOST_SETTINGS]
    ]
    more = len(ordered) - len(named)
    return [f"A and B differ in {', '.join(named)}{f' and {more} more' if more else ''}"]


def summary_lines(compared: ComparedRuns | ComparedTable) -> list[str]:
    """Return the lines before the closing block: differing settings, results, kinds of flips."""
    if isinstance(compared, ComparedTable):
        lines = []
        if compared.differing:
            lines = ["settings that differ: " + ", ".join(row[0] for row in compared.differing), ""]
        for title, rows in compared.tables:
            lines += [one_line(title), aligned([HEADER, *rows]), ""]
        return lines
    lines = _differing(compared.details["differences"])
    lines += [each["verdict"] for each in compared.details["results"]]
    groups = {"class": compared.details.get("by_class"), **compared.details.get("by", {})}
    for title, group in groups.items():
        if group:
            rows = [
                [one_line(next(iter(each.values())), 24), *bytes_report.cells(each)]
                for each in group
            ]
            table = aligned([[title, *bytes_report.HEADER], *rows[:PRINTED]])
            lines += ["", *table.splitlines()]
    lines += [""] * any(groups.values())
    for each in compared.details["decisions"]:
        n_flips = len(compared.listed["flips"][each["name"]])
        if each["n"] < 2:
            continue
        noise = f" ({NOISE[each['audited']].format(each['n_within'])})" if n_flips else ""
        lines.append(f"flips, {each['title']}: {n_flips} of {each['n']} pairs{noise}")
    return [*map(one_line, lines)]


COMMAND = Command(
    "compare",
    HELP,
    [
        *options_of(Flags),
        *options_of(Settings),
        *options_of(outputs.PageFlags),
        *options_of(messages.Quiet),
    ],
    run,
)

"""`jaxscore compare`: two finished runs of one system."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, outputs, settings_flags
from jaxscore.cli.app import Command
from jaxscore.errors import one_line
from jaxscore.io.input_files import InputFiles
from jaxscore.io.local_path import shorten_name
from jaxscore.report.counts import counted
from jaxscore.shell.flags import flag, options_of
from jaxscore.systems.compare import HELP, ComparedRuns, Settings, compare
from jaxscore.systems.compare.open_run import find_manifest, open_run

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
    """The flags of `compare` beside its settings."""

    a: Path = flag(is_positional=True, metavar="A", help="a finished run")
    b: Path = flag(is_positional=True, metavar="B", help="another one, of the same system")
    output: Path | None = flag(
        None,
        metavar="OUT",
        help="name of the files (default: A-vs-B, next to A); - is stdout, for the JSON alone",
    )
    limit: int | None = flag(None, least=1, metavar="N", help="only the first N pairs")


def run(args: argparse.Namespace) -> int:
    output = args.output or args.a.with_name(_name(args.a, args.b))
    inputs = [args.a, args.b, *map(find_manifest, (args.a, args.b))]
    files = outputs.ReportFiles(args, *inputs, output=output, has_records=False)
    settings = Settings(**settings_flags.values(args, Settings), limit=args.limit)
    files_read = InputFiles(path for path in inputs if path is not None)
    with files.opened() as write:
        found = compare(open_run(args.a), open_run(args.b), settings, _about(args, files_read))
        write(found)
        files_read.check_unchanged()
    for line in summary_lines(found):
        print(one_line(line))
    messages.print_remarks(args, found.remarks)
    facts = {"failed": len(found.failures), "remarks": found.remarks}
    manifest = outputs.write_own_manifest(args, output, facts, files.paths[1:2])
    return messages.print_closing_block(
        done=counted(len(found.pairs), "pairs"),
        failures=found.failures,
        results=[found.headline],
        files=[*files.paths, manifest],
        failed=messages.FAILURES if found.failures else "failed",
    )


def _about(args: argparse.Namespace, files_read: InputFiles) -> dict[str, str | None]:
    """What the report's settings say of the two files."""
    given = {"a": args.a, "b": args.b}
    return {name: str(path) for name, path in given.items()} | {
        f"{name}_sha256": files_read.digest(path) for name, path in given.items()
    }


def _name(a: Path, b: Path) -> str:
    """Default name of the files: both names, with their folders if the names are equal."""
    names = [a.stem, b.stem]
    if a.stem == b.stem:
        names = [f"{path.resolve().parent.name}_{path.stem}" for path in (a, b)]
    return "-vs-".join(shorten_name(name, LONGEST) for name in names)


def _differing(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line with the settings in which A and B differ, or none if nothing differs."""
    if not differences:
        return []
    ordered = sorted(differences, key=lambda one: one["setting"] not in FIRST_SETTINGS)
    named = [
        f"{one['setting']} ({one_line(str(one['a']), 32)} and {one_line(str(one['b']), 32)})"
        for one in ordered[:MOST_SETTINGS]
    ]
    more = len(ordered) - len(named)
    return [f"A and B differ in {', '.join(named)}{f' and {more} more' if more else ''}"]


def summary_lines(found: ComparedRuns) -> list[str]:
    """What is printed before the closing block: differing settings, results, kinds of flips."""
    lines = _differing(found.details["differences"])
    lines += [one["verdict"] for one in found.details["results"]]
    for one in found.details["decisions"]:
        n_flips = len(found.listed["flips"][one["name"]])
        if one["n"] < 2:
            continue
        noise = f" ({NOISE[one['audited']].format(one['n_within'])})" if n_flips else ""
        lines.append(f"flips, {one['title']}: {n_flips} of {one['n']} pairs{noise}")
    return lines


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

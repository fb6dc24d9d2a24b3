"""`jaxscore report`: the report and the page of a finished output, made again."""

import argparse
import dataclasses
from pathlib import Path

from jaxscore.cli import execute, merge, messages, outputs
from jaxscore.cli.app import Command
from jaxscore.cli.finished_outputs import Finished, verified
from jaxscore.errors import InputError
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.io.manifest import OUTPUTS, manifest_path, read_manifest
from jaxscore.shell.flags import flag, options_of

DESCRIPTION = """\
Write the report and the page of a finished output again.

input: an output that a command wrote, with its manifest OUT.run.json

output: OUT.report.md, OUT.report.json and OUT.report.html (OUT_report.* of
  OUT.json). They are made from the records and the manifest alone, by this
  version of jaxscore; the page lacks tokens and contexts that the output does
  not have. The output stays as it is.

exit code: 0 written, 1 some items have failed, 2 unusable output
"""


@dataclasses.dataclass(kw_only=True)
class Flags(merge.SliceFlags, outputs.PageFlags, messages.Quiet):
    """The flags of `report`."""

    file: Path = flag(is_positional=True, metavar="OUT", help="output of a finished run")


def run(args: argparse.Namespace) -> int:
    """Make the report of a finished output again.

    Raises:
        InputError: the file has no manifest, or is not as that describes it.
    """
    manifest = read_manifest(args.file)
    if manifest is None:
        raise InputError(
            f"{args.file}: found no {manifest_path(args.file).name} beside it, expected the output "
            "of a finished run"
        )
    shard = Finished(args.file.name, args.file, manifest)
    system = merge.system_of(shard)
    settings = merge.settings_of([shard], system, args.by)
    reports = execute.report_files(system, args, args.file)
    if not reports.paths:
        raise InputError(f"{args.file}: {system.name} writes no report")
    with execute.scratch(args.file) as records:
        with verified(shard) as path:
            merge.add_records(records, path, system, settings)
        if args.by:
            merge.check_slices(system, settings, records, args.file)
        report = merge.report_of([shard], system, settings, records)
        try:
            with reports.opened() as write_reports:
                write_reports(report)
            _ = report.found, report.findings, report.decisions, report.slices
        except merge.UNREADABLE as problem:
            raise merge.unreadable(args.file, [shard], report, problem) from problem
    facts = {**manifest, OUTPUTS: execute.facts_of_files(args.file, report, reports.paths)}
    # Command, flags and output stay as the run wrote them: `merge` knows a shard by them.
    with atomic(manifest_path(args.file)) as file:
        file.write(json_text(facts))
    return messages.close(args, report, [args.file, *reports.paths, manifest_path(args.file)])


COMMAND = Command("report", DESCRIPTION, options_of(Flags), run)

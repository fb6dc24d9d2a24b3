"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import functools
from typing import Any

from jaxscore.cli import closing, html_flags, model_flags, outputs, settings_flags, table_flags
from jaxscore.cli.report_files import ReportFiles
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.records import record_writer
from jaxscore.systems.entries import check_file, iterate_file, read_file
from jaxscore.systems.system import System


def add(system: System, subparsers: Any) -> None:
    """Declare the command's flags."""
    parser = subparsers.add_parser(system.name, description=system.help)
    table_flags.add_input(parser, f"{system.what}: {system.forms}".strip(), system.item_fields)
    table_flags.add_output(parser, "results")
    model_flags.add_limit_flag(parser, system.what)
    settings_flags.add(parser, system.settings)
    html_flags.add(parser)
    model_flags.add_model_flags(parser, settings=system.settings)
    parser.set_defaults(run=functools.partial(run, system))


def run(system: System, args: argparse.Namespace) -> int:
    """Read, evaluate and write; nothing is left behind if the input is unusable."""
    reports = ReportFiles(args, args.input)
    files = [args.output, *reports.paths]
    columns = table_flags.columns(args.column, system.item_fields)
    source = system, args.input, args.limit, columns
    settings = settings_flags.values(args, system.settings)
    system.settings(**settings)  # refused before anything is read
    entries = (
        iterate_file(*source) if system.is_lazy and check_file(*source) else read_file(*source)
    )
    with (
        atomic(args.output) as file,
        reports.opened() as write_reports,
        record_writer(args.output, file, system.columns) as write,
    ):
        scorer = model_flags.load_scorer(args, args.model, *files)
        report = evaluate(
            system.name,
            scorer,
            entries,
            about=outputs.about_input(args),
            **settings,
        )
        for record in report.items:
            write(record)
        write_reports(report)
    manifest = outputs.write_manifest(args, scorer, args.output, report)
    return closing.close(args, report, system.what, [*files, manifest], scorer)

"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import dataclasses
import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.cli import (
    endpoint_flags,
    messages,
    model_flags,
    outputs,
    settings_flags,
    table_flags,
)
from jaxscore.cli.outputs import ReportFiles
from jaxscore.errors import InputError, NothingUsable
from jaxscore.evaluate import run_declared
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import array_writer
from jaxscore.io.records import record_writer
from jaxscore.systems.entries import check_file, iterate_file, read_file, with_examples
from jaxscore.systems.prompt_settings import PromptSettings
from jaxscore.systems.settings import fields_of
from jaxscore.systems.system import System

PAIR = "compares_models"  # capability of a model pair


def add(system: System, subparsers: Any) -> None:
    """Declare the command's flags."""
    parser = subparsers.add_parser(system.name, description=system.help)
    what = f"{system.what}: {system.forms}".strip()
    array = system.array
    if array is not None and array.ending is not None:
        table_flags.add_input(parser, what, system.item_fields, "--input-file")
        table_flags.add_array_output(parser, array.name)
    else:
        table_flags.add_input(parser, what, system.item_fields)
        table_flags.add_output(parser, "results", is_array=array is not None)
    model_flags.add_limit_flag(parser, system.what, *system.limit_aliases)
    settings_flags.add(parser, system.settings)
    settings_flags.add_groups(parser, system.settings)
    if system.report is not None:
        outputs.add_page_flags(parser)
    if issubclass(system.settings, PromptSettings):
        endpoint_flags.add(parser)
    if PAIR in system.needs:
        model_flags.add_reference_flags(parser)
    if system.needs:
        model_flags.add_model_flags(parser, settings=system.settings)
    else:
        messages.add_quiet(parser)
    parser.set_defaults(run=functools.partial(run, system))


def run(system: System, args: argparse.Namespace) -> int:
    """Read, evaluate and write; nothing is left behind if the input is unusable."""
    inputs = [args.input, *settings_flags.input_files(args, system.settings)]
    if args.output is not None:
        outputs.check_outputs([args.output], *inputs)
    columns = table_flags.columns(args.column, system.item_fields)
    settings = with_examples(
        system, system.settings(**settings_flags.values(args, system.settings))
    )
    about = settings_flags.about_files(args, system.settings)
    source = system, args.input, args.limit, columns, settings
    output = args.output
    ending = None if system.array is None else system.array.ending
    if ending is not None:  # the default name may depend on the entries
        entries, settings = _read(*source)
        output = _array_path(args, ending(settings, entries))
    reports = _report_files(system, args, settings, output, *inputs)
    files = [output, *reports.paths]
    if ending is None:
        entries, settings = _read(*source)
    endpoint = None
    if isinstance(settings, PromptSettings):
        endpoint = endpoint_flags.endpoint(args, args.api_base, settings)
    with (
        atomic(output) as file,
        reports.opened() as write_reports,
        array_writer(file, is_ascii=system.array.is_ascii)
        if system.array is not None
        else record_writer(output, file, system.columns(settings)) as write,
    ):
        scorer = None
        if system.needs and endpoint is None:
            scorer = model_flags.load_scorer(args, args.model, *files)
        streams = "on_item" in inspect.signature(system.evaluate).parameters
        try:
            report = run_declared(
                system,
                endpoint or scorer,
                entries,
                settings,
                about={**outputs.about_input(args), **about},
                on_item=write if streams else None,
                with_page=reports.has_page,
            )
        except NothingUsable as problem:
            raise NothingUsable(f"{args.input}: {problem}") from None
        for record in report.items:
            write(record)
        write_reports(report)
    found = report.evaluation
    messages.print_findings(report)
    for line in found.lines:
        print(line)
    manifest = outputs.write_manifest(args, scorer, output, report, **about, **found.counts)
    code = messages.close_run(args, report, system.what, [*files, manifest], scorer)
    return code or int(not found.is_complete)


def _read(
    system: System,
    path: Path,
    limit: int | None,
    columns: Mapping[str, str],
    settings: Any,
) -> tuple[Any, Any]:
    """The entries of a file, and the settings with what is known of the entries."""
    source = system, path, limit, columns, settings
    if not system.is_lazy:
        return read_file(*source), settings
    n_items = check_file(*source)
    if hasattr(settings, "n_requests"):
        settings = dataclasses.replace(settings, n_requests=n_items)
    return iterate_file(*source), settings


def _array_path(args: argparse.Namespace, ending: str) -> Path:
    """The output; a default name says --limit, so that it replaces no result of all items."""
    return table_flags.array_path(
        args, ending if args.limit is None else f"{ending}-first{args.limit}"
    )


def _report_files(
    system: System, args: argparse.Namespace, settings: Any, output: Path, *inputs: Path
) -> ReportFiles:
    """Where the report lies, if the system and the settings make one.

    Raises:
        InputError: --html is given, and no report is made; or as `ReportFiles`.
    """
    setting = system.reports_with
    has_page = system.report is not None
    if setting is not None and getattr(settings, setting) is None:
        if args.html is not None:
            [flag] = [field.flag for field in fields_of(system.settings) if field.name == setting]
            raise InputError(
                f"--html {args.html}: without --{setting} no page is made; give --{setting} "
                f"{flag.metavar}"
            )
        has_page = False
    has_files = has_page and system.has_report_files
    return ReportFiles(args, *inputs, output=output, has_page=has_page, has_files=has_files)

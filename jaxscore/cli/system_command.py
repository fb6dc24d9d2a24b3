"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import dataclasses
import functools
import inspect
from collections.abc import Iterable
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
from jaxscore.evaluate import run_declared
from jaxscore.io.atomic import atomic
from jaxscore.io.records import record_writer
from jaxscore.systems.entries import Entry, check_file, iterate_file, read_file, with_examples
from jaxscore.systems.prompt_settings import PromptSettings
from jaxscore.systems.system import System

PAIR = "compares_models"  # capability of a model pair


def add(system: System, subparsers: Any) -> None:
    """Declare the command's flags."""
    parser = subparsers.add_parser(system.name, description=system.help)
    table_flags.add_input(parser, f"{system.what}: {system.forms}".strip(), system.item_fields)
    table_flags.add_output(parser, "results")
    model_flags.add_limit_flag(parser, system.what)
    settings_flags.add(parser, system.settings)
    settings_flags.add_groups(parser, system.settings)
    outputs.add_page_flags(parser)
    if issubclass(system.settings, PromptSettings):
        endpoint_flags.add(parser)
    if PAIR in system.needs:
        model_flags.add_reference_flags(parser)
    model_flags.add_model_flags(parser, settings=system.settings)
    parser.set_defaults(run=functools.partial(run, system))


def run(system: System, args: argparse.Namespace) -> int:
    """Read, evaluate and write; nothing is left behind if the input is unusable."""
    inputs = [args.input, *settings_flags.input_files(args, system.settings)]
    reports = ReportFiles(args, *inputs, is_page_only=not system.has_report_files)
    files = [args.output, *reports.paths]
    columns = table_flags.columns(args.column, system.item_fields)
    settings = with_examples(
        system, system.settings(**settings_flags.values(args, system.settings))
    )
    about = settings_flags.about_files(args, system.settings)
    source = system, args.input, args.limit, columns, settings
    entries: Iterable[Entry[Any]]
    if system.is_lazy:
        n_items, entries = check_file(*source), iterate_file(*source)
        if hasattr(settings, "n_requests"):
            settings = dataclasses.replace(settings, n_requests=n_items)
    else:
        entries = read_file(*source)
    endpoint = None
    if isinstance(settings, PromptSettings):
        endpoint = endpoint_flags.endpoint(args, args.api_base, settings)
    with (
        atomic(args.output) as file,
        reports.opened() as write_reports,
        record_writer(args.output, file, system.columns(settings)) as write,
    ):
        scorer = None
        if endpoint is None:
            scorer = model_flags.load_scorer(args, args.model, *files)
        streams = "on_item" in inspect.signature(system.evaluate).parameters
        report = run_declared(
            system,
            endpoint or scorer,
            entries,
            settings,
            about={**outputs.about_input(args), **about},
            on_item=write if streams else None,
            with_page=reports.has_page,
        )
        for record in report.items:
            write(record)
        write_reports(report)
    manifest = outputs.write_manifest(args, scorer, args.output, report, **about)
    return messages.close_run(args, report, system.what, [*files, manifest], scorer)

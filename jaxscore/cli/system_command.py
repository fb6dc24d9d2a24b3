"""The command of a system that scores the items of a file: flags, run, files, closing block."""

import argparse
import dataclasses
import functools
import inspect
from collections.abc import Iterable
from typing import Any

from jaxscore.cli import (
    closing,
    endpoint_flags,
    html_flags,
    model_flags,
    outputs,
    prompting_flags,
    reference_flags,
    settings_flags,
    table_flags,
)
from jaxscore.cli.report_files import ReportFiles
from jaxscore.evaluate import run_declared
from jaxscore.io.atomic import atomic
from jaxscore.io.records import record_writer
from jaxscore.systems.entries import Entry, check_file, iterate_file, read_file, read_item
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
    html_flags.add(parser)
    if system.takes_endpoint:
        endpoint_flags.add(parser)
    if issubclass(system.settings, PromptSettings):
        prompting_flags.add(parser, "a line of the input's form")
    if PAIR in system.needs:
        reference_flags.add(parser)
    model_flags.add_model_flags(parser, settings=system.settings)
    parser.set_defaults(run=functools.partial(run, system))


def run(system: System, args: argparse.Namespace) -> int:
    """Read, evaluate and write; nothing is left behind if the input is unusable."""
    has_prompts = issubclass(system.settings, PromptSettings)
    inputs = [args.input, *(prompting_flags.inputs(args) if has_prompts else ())]
    reports = ReportFiles(args, *inputs, is_page_only=not system.has_report_files)
    files = [args.output, *reports.paths]
    columns = table_flags.columns(args.column, system.item_fields)
    chosen = settings_flags.values(args, system.settings)
    if has_prompts:
        chosen |= prompting_flags.settings(args, functools.partial(read_item, system))
    settings = system.settings(**chosen)
    source = system, args.input, args.limit, columns, settings
    entries: Iterable[Entry[Any]]
    if system.is_lazy:
        n_items, entries = check_file(*source), iterate_file(*source)
        if hasattr(settings, "n_requests"):
            settings = dataclasses.replace(settings, n_requests=n_items)
    else:
        entries = read_file(*source)
    url = args.api_base if system.takes_endpoint else None
    endpoint = endpoint_flags.endpoint(args, url, settings)
    with (
        atomic(args.output) as file,
        reports.opened() as write_reports,
        record_writer(args.output, file, system.columns(settings)) as write,
    ):
        scorer = None
        if endpoint is None:
            loading: dict[str, Any] = (
                {"loader": reference_flags.loader(args)} if PAIR in system.needs else {}
            )
            scorer = model_flags.load_scorer(args, args.model, *files, **loading)
        streams = "on_item" in inspect.signature(system.evaluate).parameters
        report = run_declared(
            system,
            endpoint or scorer,
            entries,
            settings,
            about=outputs.about_input(args),
            on_item=write if streams else None,
            with_page=reports.has_page,
        )
        for record in report.items:
            write(record)
        write_reports(report)
    more = prompting_flags.about(args) if has_prompts else {}
    manifest = outputs.write_manifest(args, scorer, args.output, report, **more)
    return closing.close(args, report, system.what, [*files, manifest], scorer)

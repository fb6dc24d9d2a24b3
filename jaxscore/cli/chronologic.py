"""`jaxscore chronologic`: model and questions by place, and a folder of dated reports."""

import argparse
import dataclasses
import datetime
from pathlib import Path

from jaxscore.cli import (
    messages,
    model_flags,
    outputs,
    settings_flags,
    shards,
    system_command,
)
from jaxscore.cli.app import Command
from jaxscore.cli.flags import column_flag, flag, limit_flag, options_of, options_of_settings
from jaxscore.endpoints.completions import DEFAULT_URL
from jaxscore.errors import InputError
from jaxscore.evaluate import Report, run_declared
from jaxscore.io import remote, run_files, streams
from jaxscore.io.input_files import InputFiles
from jaxscore.io.local_path import Folder
from jaxscore.io.run_files import RunFile
from jaxscore.systems.chronologic import SYSTEM
from jaxscore.systems.entries import read_file, with_examples
from jaxscore.systems.settings import MODEL_GROUP

KINDS = {"sample": "", "full": "full_", "mcq": "mcq_"}  # mode -> part of a file's name
PLACES = {"model": ("MODEL", "--model"), "input": ("QUESTIONS.jsonl", "--input")}


@dataclasses.dataclass(kw_only=True)
class Places:
    """MODEL and QUESTIONS.jsonl, each by its place or by its flag."""

    model: str | None = flag(
        None,
        "--model",
        is_positional=True,
        metavar="MODEL",
        help="a local Hugging Face folder, a hub id, or `demo`; with an endpoint, its model's name",
    )
    input: list[Path] | None = flag(
        None,
        "--input",
        "--questions",
        is_positional=True,
        takes_address=True,
        metavar="QUESTIONS.jsonl",
        help="also several files, patterns, folders, addresses such as s3://bucket/file, or -",
    )


@dataclasses.dataclass(kw_only=True)
class Flags(system_command.ApiFlags):
    """The flags of `chronologic` after its settings."""

    limit: int | None = limit_flag(SYSTEM.what)
    column: list[str] = column_flag(SYSTEM.item_fields)
    output_dir: Path | None = flag(
        None,
        metavar="DIR",
        help="of the dated files (default: the folder of the questions)",
    )
    output: Path | None = flag(
        None,
        takes_address=True,
        metavar="FILE",
        help="NAME.json: one array of questions, and its report next to it; FOLDER/ with a slash: "
        "one for each input; any other name is that of --output-dir",
    )
    vllm: bool = flag(False, help=f"use the server at {DEFAULT_URL} instead of a local model")


def command() -> Command:
    """Declare the command."""
    settings = options_of_settings(SYSTEM.settings)
    options = [
        *options_of(Places),
        *(option for option in settings if option.group == "options"),
        *options_of(Flags),
        *(option for option in settings if option.group not in ("options", MODEL_GROUP)),
        *options_of(outputs.PageFlags),
        *model_flags.model_options(("model",), SYSTEM.settings),
        *options_of(shards.ShardFlags),
    ]
    return shards.command(SYSTEM.name, SYSTEM.help, options, run, _run_file, is_array=True)


def run(args: argparse.Namespace) -> int:
    """Run the command on its file, or on its shards.

    Raises:
        InputError: places or flags that contradict each other.
    """
    if args.vllm and args.api_base is None:
        args.api_base = DEFAULT_URL  # the published script's server
    if args.model is None and isinstance(args.input, list) and len(args.input) > 1:
        raise InputError(
            "MODEL is missing; --input takes all words after it, so give MODEL before it or by "
            "--model"
        )
    for dest, (place, name) in PLACES.items():
        if getattr(args, dest) is None:
            raise InputError(f"{place} is missing; give it by its place or by {name}")
    output = args.output
    is_file = output is not None and (output.suffix == ".json" or streams.is_stream(output))
    if output is not None and not isinstance(output, Folder) and not is_file:
        if remote.address_of(output) is not None:
            raise InputError(
                f"--output {remote.displayed(output)}: the dated files are written locally; give "
                "--output NAME.json, or --output FOLDER/ with a slash"
            )
        args.output, args.output_dir = None, args.output_dir or output
    if args.output is not None and args.output_dir is not None:
        raise InputError(f"--output {output} and --output-dir {args.output_dir}: give one of them")
    if isinstance(args.output, Folder) and not (args.full_eval or args.mcq):
        raise InputError(
            f"--output {remote.displayed(output)}: questions are drawn from one file, and each "
            "file of a folder is scored alone; give --full-eval or --mcq"
        )
    return shards.run(args)


def _run_file(args: argparse.Namespace) -> int:
    """Evaluate one file; nothing is left behind if it is unusable."""
    if args.output is not None:
        return system_command.run(SYSTEM, args)
    if args.output_dir is not None:
        streams.refuse_stream(args.output_dir, "--output-dir")
    read = (args.input, *settings_flags.input_files(args, SYSTEM.settings).values())
    files_read = InputFiles(read)
    settings = with_examples(
        SYSTEM, SYSTEM.settings(**settings_flags.values(args, SYSTEM.settings))
    )
    columns = settings_flags.parse_columns(args.column, SYSTEM.item_fields)
    endpoint = system_command.api_endpoint(args, args.api_base, settings)
    entries = read_file(SYSTEM, args.input, args.limit, columns, settings)
    folder = args.output_dir or args.input.parent
    run_files.check_writable_folder(folder)
    pages = [] if args.html is None else outputs.page_paths(args, folder, *read)
    about = settings_flags.about_files(args, SYSTEM.settings, files_read)
    with outputs.open_page(pages) as browser:
        scorer = None if endpoint else model_flags.load_scorer(args, args.model, folder)
        report = run_declared(
            SYSTEM,
            endpoint or scorer,
            entries,
            settings,
            about={
                "limit": args.limit,
                "questions": remote.displayed(args.input),
                "questions_sha256": files_read.digest(args.input),
                **about,
            },
        )
        if browser:
            browser.write(report.html())
        files_read.check_unchanged()
    paths = _write(folder, KINDS[settings.mode], args, report)
    manifest = outputs.write_manifest(
        args, scorer, paths[0], report, files=paths[:2], files_read=files_read, **about
    )
    messages.print_findings(report)
    return messages.close_run(args, report, SYSTEM.what, [*paths, *pages, manifest], scorer)


def _write(folder: Path, kind: str, args: argparse.Namespace, report: Report) -> list[Path]:
    ending = f"{run_files.model_file_name(args.model)}_{datetime.datetime.now():%Y%m%d_%H%M%S}"
    parts = [
        RunFile(f"eval_report_{kind}{ending}", ".md", report.markdown()),
        RunFile(f"eval_results_{kind}{ending}", ".json", report.json()),
    ]
    if args.html is None and not args.no_html:
        parts.append(RunFile(f"eval_report_{kind}{ending}", ".html", report.html()))
    return run_files.write_new_files(folder, parts)

"""`jaxscore chronologic`: model and questions by place, and a folder of dated reports."""

import argparse
import dataclasses
import datetime
from pathlib import Path

from jaxscore.cli import (
    execute,
    messages,
    model_flags,
    outputs,
    settings_flags,
    shards,
    system_command,
)
from jaxscore.endpoints.completions import DEFAULT_URL
from jaxscore.errors import InputError
from jaxscore.io import remote, streams
from jaxscore.io.atomic import check_writable_folder, write_new_files
from jaxscore.io.json_output import json_parts
from jaxscore.io.local_path import Folder, model_file_name
from jaxscore.shell.evaluate import run_system
from jaxscore.shell.flags import flag, options_of
from jaxscore.shell.items import read_file
from jaxscore.shell.report import Report
from jaxscore.shell.system import item_fields
from jaxscore.systems.chronologic import SYSTEM

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
        help=f"{model_flags.MODEL}; with an endpoint, its model's name",
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
class Flags(system_command.ApiFlags, outputs.PageFlags):
    """The flags of `chronologic` after its settings."""

    limit: int | None = flag(None, least=1, metavar="N", help=f"only the first N {SYSTEM.what}")
    column: list[str] = settings_flags.column_flag(item_fields(SYSTEM))
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
    for dest, (title, name) in PLACES.items():
        if getattr(args, dest) is None:
            raise InputError(f"{title} is missing; give it by its place or by {name}")
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
        return execute.run(SYSTEM, args)
    if args.output_dir is not None:
        streams.refuse_stream(args.output_dir, "--output-dir")
    setup = execute.Setup(SYSTEM, args, args.input)
    columns = settings_flags.parse_columns(args.column, item_fields(SYSTEM))
    items = read_file(SYSTEM, args.input, setup.settings, columns=columns, limit=args.limit)
    folder = args.output_dir or args.input.parent
    check_writable_folder(folder)
    pages = [] if args.html is None else outputs.page_paths(args, folder, *setup.inputs)
    with execute.scratch(folder / "records") as records:
        with outputs.open_page(pages) as browser:
            report = run_system(
                SYSTEM,
                setup.load(folder),
                items,
                setup.settings,
                records,
                about={
                    "limit": args.limit,
                    "questions": remote.displayed(args.input),
                    "questions_sha256": setup.files_read.digest(args.input),
                    **setup.about,
                },
            )
            if browser:
                browser.write(report.html())
            setup.files_read.check_unchanged()
        paths = _write(folder, KINDS[setup.settings.mode], args, report)
        facts = {**setup.facts(), **execute.input_facts(args, setup.files_read)}
        manifest = execute.write_manifest(vars(args), paths[0], report, facts, paths)
        return messages.close(args, report, [*paths, *pages, manifest], setup.scorer)


def _write(folder: Path, mode: str, args: argparse.Namespace, report: Report) -> list[Path]:
    ending = f"{model_file_name(args.model)}_{datetime.datetime.now():%Y%m%d_%H%M%S}"
    data = "".join(json_parts(report.data() | {"questions": report.records}))
    texts = {
        f"eval_report_{mode}{ending}.md": report.markdown(),
        f"eval_results_{mode}{ending}.json": data,
    }
    if args.html is None and not args.no_html:
        texts[f"eval_report_{mode}{ending}.html"] = report.html()
    return write_new_files(folder, texts)


COMMAND = shards.command(
    SYSTEM,
    [
        *options_of(Places),
        *model_flags.model_options(SYSTEM.settings, omitted=("model",)),
        *options_of(Flags),
    ],
    run,
    _run_file,
)

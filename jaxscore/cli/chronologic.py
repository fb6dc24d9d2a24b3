"""`jaxscore chronologic`: model and questions by place, and a folder of dated reports."""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, model_flags, outputs, settings_flags, system_command
from jaxscore.cli.help_pages import advanced
from jaxscore.endpoints.completions import DEFAULT_URL
from jaxscore.errors import InputError
from jaxscore.evaluate import Report, run_declared
from jaxscore.io import run_files, streams
from jaxscore.io.local_path import local_path
from jaxscore.io.run_files import RunFile, file_digest
from jaxscore.systems.chronologic.system import SYSTEM
from jaxscore.systems.entries import read_file, with_examples

KINDS = {"sample": "", "full": "full_", "mcq": "mcq_"}  # mode -> part of a file's name
PLACES = {"model": ("MODEL", "--model"), "questions": ("QUESTIONS.jsonl", "--input")}


class Place(argparse.Action):
    """MODEL or QUESTIONS.jsonl, each by its place or by its flag.

    A word by place goes to the first of the two that is not given yet, so that `--model M Q` and
    `M --input Q` mean what they say.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Note one word; argparse ends the program if it is one too many."""
        word = str(values)

        def given(dest: str) -> str | None:
            value = getattr(namespace, dest, self.default)
            return None if value is self.default else str(value)

        names = [self.dest] if option_string else [*PLACES]
        if not option_string and any(given(name) == word for name in names):
            return
        free = [name for name in names if given(name) is None]
        if not free and given(self.dest) != word:
            place, flag = PLACES[self.dest]
            raise argparse.ArgumentError(
                self,
                f"{word!r} is one too many: {place} is {given(self.dest)!r} already; give it "
                f"once, by its place or by {flag}",
            )
        for name in free[:1]:
            try:
                setattr(namespace, name, local_path(word) if name == "questions" else word)
            except InputError as problem:
                raise argparse.ArgumentError(self, str(problem)) from None


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(SYSTEM.name, description=SYSTEM.help)
    helps = {
        "model": "a local Hugging Face folder, a hub id, or `demo`; with an endpoint, its model's "
        "name",
        "questions": None,
    }
    for dest, (metavar, _) in PLACES.items():
        place = parser.add_argument(dest, metavar=metavar, action=Place, help=helps[dest])
        place.required = False  # the flag may stand for it
    for dest, (metavar, flag) in PLACES.items():
        parser.add_argument(
            flag, dest=dest, action=Place, metavar=metavar, help=f"another spelling of {metavar}"
        )
    settings_flags.add(parser, SYSTEM.settings)
    model_flags.add_limit_flag(parser, SYSTEM.what)
    settings_flags.add_columns(parser, SYSTEM.item_fields)
    parser.add_argument(
        "--output-dir",
        "--output",
        type=Path,
        metavar="DIR",
        help="default: the folder of the questions",
    )
    parser.add_argument(
        "--vllm",
        action="store_true",
        help=f"use the server at {DEFAULT_URL} instead of a local model",
    )
    system_command.add_api_base(parser)
    settings_flags.add_groups(parser, SYSTEM.settings)
    outputs.add_page_flags(parser)
    advanced(parser, "--revision", help="branch, tag or commit of a hub id")
    model_flags.add_lora_flag(parser)
    model_flags.add_model_flags(parser, model_required=False, settings=SYSTEM.settings)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, evaluate and write; nothing is left behind if the input is unusable."""
    if args.output_dir is not None:
        streams.refuse_stream(args.output_dir, "--output-dir")
    for dest, (place, flag) in PLACES.items():
        if getattr(args, dest) is None:
            raise InputError(f"{place} is missing; give it by its place or by {flag}")
    settings = with_examples(
        SYSTEM, SYSTEM.settings(**settings_flags.values(args, SYSTEM.settings))
    )
    columns = settings_flags.parse_columns(args.column, SYSTEM.item_fields)
    url = DEFAULT_URL if args.vllm and args.api_base is None else args.api_base
    endpoint = system_command.api_endpoint(args, url, settings)
    entries = read_file(SYSTEM, args.questions, args.limit, columns, settings)
    folder = args.output_dir or args.questions.parent
    run_files.check_writable_folder(folder)
    pages = (
        []
        if args.html is None
        else outputs.page_paths(
            args, folder, args.questions, *settings_flags.input_files(args, SYSTEM.settings)
        )
    )
    about = settings_flags.about_files(args, SYSTEM.settings)
    with outputs.open_page(pages) as browser:
        scorer = None if endpoint else model_flags.load_scorer(args, args.model, folder)
        report = run_declared(
            SYSTEM,
            endpoint or scorer,
            entries,
            settings,
            about={
                "limit": args.limit,
                "questions": str(args.questions),
                "questions_sha256": file_digest(args.questions),
                **about,
            },
        )
        if browser:
            browser.write(report.html())
    paths = _write(folder, KINDS[settings.mode], args, report)
    manifest = outputs.write_manifest(args, scorer, paths[0], report, **about)
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

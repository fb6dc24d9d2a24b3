"""`jaxscore chronologic`: model and questions by place, and a folder of dated reports."""

import argparse
import datetime
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import (
    execute,
    messages,
    model_flags,
    outputs,
    settings_flags,
    shards,
    system_command,
)
from jaxscore.cli.help_pages import advanced
from jaxscore.endpoints.completions import DEFAULT_URL
from jaxscore.errors import InputError
from jaxscore.io import remote, streams
from jaxscore.io.atomic import check_writable_folder, write_new_files
from jaxscore.io.config_file import TAKES_ONE, UNSET
from jaxscore.io.json_output import json_parts
from jaxscore.io.local_path import Folder, model_file_name
from jaxscore.shell.evaluate import run_system
from jaxscore.shell.items import read_file
from jaxscore.shell.report import Report
from jaxscore.shell.system import item_fields
from jaxscore.systems.chronologic import SYSTEM

KINDS = {"sample": "", "full": "full_", "mcq": "mcq_"}  # mode -> part of a file's name
PLACES = {"model": ("MODEL", "--model"), "input": ("QUESTIONS.jsonl", "--input")}


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
        """Note the words; argparse ends the program if one is too many."""
        words = [str(word) for word in (values if isinstance(values, list) else [values])]

        def given(dest: str) -> list[str] | None:
            value = getattr(namespace, dest, self.default)
            if value is self.default:
                return None
            return [str(word) for word in (value if isinstance(value, list) else [value])]

        names = [self.dest] if option_string else [*PLACES]
        if not option_string and any(given(name) == words for name in names):
            return
        free = [name for name in names if given(name) is None]
        found = given(self.dest)
        if not free and found is not None and found != words:
            place, flag = PLACES[self.dest]
            raise argparse.ArgumentError(
                self,
                f"{' '.join(words)!r} is one too many: {place} is {' '.join(found)!r} already; "
                f"give it once, by its place or by {flag}",
            )
        for name in free[:1]:
            try:
                value = words[0] if name == "model" else [remote.stage(word) for word in words]
            except InputError as problem:
                raise argparse.ArgumentError(self, str(problem)) from None
            setattr(namespace, name, value)


class PublishedServer(argparse.Action):
    """--vllm: the default of --api-base is the published script's server."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Note the flag, and its server unless there is another."""
        setattr(namespace, self.dest, True)
        if getattr(namespace, "api_base", None) in (None, UNSET):
            namespace.api_base = DEFAULT_URL


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(SYSTEM.name, description=f"{inspect.getdoc(SYSTEM)}\n")
    helps = {
        "model": "a local Hugging Face folder, a hub id, or `demo`; with an endpoint, its model's "
        "name",
        "input": None,
    }
    for dest, (metavar, _) in PLACES.items():
        place = parser.add_argument(dest, metavar=metavar, action=Place, help=helps[dest])
        place.required = False  # the flag may stand for it
    parser.add_argument("--model", action=Place, metavar="MODEL", help="another spelling of MODEL")
    questions = parser.add_argument(
        "--input",
        "--questions",
        dest="input",
        action=Place,
        nargs="+",
        metavar="FILE",
        help="another spelling of QUESTIONS.jsonl; also several files, patterns, folders, "
        "addresses such as s3://bucket/file, or -",
    )
    setattr(questions, TAKES_ONE, True)
    settings_flags.add(parser, SYSTEM.settings)
    model_flags.add_limit_flag(parser, SYSTEM.what)
    settings_flags.add_columns(parser, item_fields(SYSTEM))
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="of the dated files (default: the folder of the questions)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="NAME.json: one array of questions, and its report beside it; FOLDER/ with a slash: "
        "one for each input; any other name is that of --output-dir",
    )
    parser.add_argument(
        "--vllm",
        action=PublishedServer,
        nargs=0,
        default=False,
        help=f"use the server at {DEFAULT_URL} instead of a local model",
    )
    system_command.add_api_base(parser)
    settings_flags.add_groups(parser, SYSTEM.settings)
    outputs.add_page_flags(parser)
    advanced(parser, "--revision", help="branch, tag or commit of a hub id")
    model_flags.add_lora_flag(parser)
    model_flags.add_model_flags(parser, model_required=False, settings=SYSTEM.settings)
    shards.add_flags(parser, _run_file)
    parser.set_defaults(run=run, is_array=True)


def run(args: argparse.Namespace) -> int:
    """Run the command on its file, or on its shards.

    Raises:
        InputError: places or flags that contradict each other.
    """
    if args.model is None and isinstance(args.input, list) and len(args.input) > 1:
        raise InputError(
            "MODEL is missing; --input takes all words after it, so give MODEL before it or by "
            "--model"
        )
    for dest, (place, flag) in PLACES.items():
        if getattr(args, dest) is None:
            raise InputError(f"{place} is missing; give it by its place or by {flag}")
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


def _write(folder: Path, kind: str, args: argparse.Namespace, report: Report) -> list[Path]:
    ending = f"{model_file_name(args.model)}_{datetime.datetime.now():%Y%m%d_%H%M%S}"
    data = "".join(json_parts(report.data() | {"questions": report.records}))
    texts = {
        f"eval_report_{kind}{ending}.md": report.markdown(),
        f"eval_results_{kind}{ending}.json": data,
    }
    if args.html is None and not args.no_html:
        texts[f"eval_report_{kind}{ending}.html"] = report.html()
    return write_new_files(folder, texts)

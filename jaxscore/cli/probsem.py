"""`jaxscore probsem`: files of a suite, and of its results, named as the published ones."""

import argparse
import dataclasses
import functools
import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.cli import (
    execute,
    messages,
    model_flags,
    outputs,
    settings_flags,
    shards,
    system_command,
)
from jaxscore.errors import UNPRINTABLE, InputError, many_lines
from jaxscore.io import remote, streams
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_parts
from jaxscore.io.local_path import distinct_file_name, shorten_name
from jaxscore.io.records import csv_line
from jaxscore.shell.evaluate import run_system
from jaxscore.shell.flags import flag, options_of
from jaxscore.shell.items import Items
from jaxscore.shell.report import Report
from jaxscore.systems.probsem import SYSTEM
from jaxscore.systems.probsem.report import DISABLED
from jaxscore.systems.probsem.suite import load, prompt_files, suite_files

LONGEST = 200  # bytes of a run's name in a file's
RULE = 30 * "_"


@dataclasses.dataclass(kw_only=True)
class Flags:
    """The flags of `probsem` before its settings."""

    prompt: str | None = flag(None, metavar="NAME", help="of the prompt's file")
    test: str | None = flag(None, metavar="NAME", help="of the test suite's file")
    input_dir: Path | None = flag(None, metavar="DIR", help="with --prompt: default inputs")
    output_dir: Path | None = flag(None, metavar="DIR", help="with --prompt: default outputs")
    input: list[Path] | None = flag(
        None,
        takes_address=True,
        metavar="FILE",
        help="with --prompt as --input-dir; otherwise files <prompt>_<test>.json, patterns, "
        "folders, addresses such as s3://bucket/file",
    )
    output: Path | None = flag(
        None,
        takes_address=True,
        metavar="FILE",
        help="with --prompt as --output-dir; otherwise NAME.json, one array of contexts, or "
        "FOLDER/ with a slash for several files",
    )
    limit: int | None = flag(None, least=1, metavar="N", help=f"only the first N {SYSTEM.what}")


@dataclasses.dataclass(kw_only=True)
class MoreFlags(outputs.PageFlags, system_command.ApiFlags):
    """The flags of `probsem` after its settings."""

    cache_dir: Path | None = flag(
        None, metavar="DIR", is_advanced=True, help="where a hub id is downloaded to"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command on the suite that --prompt and --test name, or on the files of --input.

    Raises:
        InputError: flags are missing, or contradict each other.
    """
    if args.prompt is None and args.test is None:
        if args.input is None or args.output is None:
            raise InputError(
                "expected --prompt and --test, or --input FILES and --output: NAME.json, or "
                "FOLDER/ with a slash for several"
            )
        if (folder := args.input_dir or args.output_dir) is not None:
            raise InputError(f"{folder}: --input-dir and --output-dir need --prompt and --test")
        return shards.run(args)
    for name in ("prompt", "test"):
        if getattr(args, name) is None:
            raise InputError(f"--{name} is missing; --prompt and --test name a suite together")
    for name in ("shard", "engine", "actors"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name}: --prompt and --test name one suite; leave them out")
    args.shard_run = shards.ShardRun()
    args.input_dir = _folder(args, "input")
    args.output_dir = _folder(args, "output")
    args.input = args.output = None
    return _run_published(args)


def _folder(args: argparse.Namespace, name: str) -> Path:
    """Return a folder of the published layout, by either spelling.

    Raises:
        InputError: it is given twice, or is an address.
    """
    named = getattr(args, name) or []
    folders = [
        path
        for path in (getattr(args, f"{name}_dir"), *(named if name == "input" else [named]))
        if path
    ]
    if len(folders) > 1:
        raise InputError(f"--{name}-dir {' '.join(map(str, folders))}: expected one folder")
    folder: Path = folders[0] if folders else Path(f"{name}s")
    if remote.address_of(folder) is not None:
        raise InputError(
            f"--{name} {remote.displayed(folder)}: --prompt and --test name local files; leave "
            "them out, and give --input FILES and --output"
        )
    return folder


def _run_published(args: argparse.Namespace) -> int:
    """Read, evaluate and write; nothing is left behind if the input is unusable."""
    inputs = suite_files(args.input_dir, args.prompt, args.test)
    name = run_name(args.prompt, args.test, args.model, *variant(args))
    endings = ("_results.csv", "_results.json", "_report.md")
    streams.refuse_stream(args.output_dir, "--output-dir")
    paths = [args.output_dir / f"{name}{ending}" for ending in endings]
    read = (*inputs, *settings_flags.input_files(args, SYSTEM.settings).values())
    pages = outputs.page_paths(args, paths[2], *read)
    paths += pages
    outputs.check_outputs(paths, *read, flag="--output-dir")
    setup = execute.Setup(SYSTEM, args, *inputs)
    suite = load(args.input_dir, args.prompt, args.test)
    items = Items(SYSTEM, suite.rows, setup.settings, limit=args.limit)
    SYSTEM.check(items, setup.settings)
    with execute.scratch(paths[0]) as records:
        with (
            atomic(paths[0]) as table,
            atomic(paths[1]) as data,
            atomic(paths[2]) as page,
            outputs.open_page(pages) as browser,
        ):
            report = run_system(
                SYSTEM,
                setup.load(args.output_dir, *paths),
                items,
                setup.settings,
                records,
                about={
                    "prompt": args.prompt,
                    "test": args.test,
                    "limit": args.limit,
                    "prompt_sha256": setup.files_read.digest(inputs[0]),
                    "test_sha256": setup.files_read.digest(inputs[1]),
                    **setup.about,
                },
            )
            columns = ("text", "query", "logp", "score")
            table.write(csv_line(columns))
            for row in itertools.chain.from_iterable(map(SYSTEM.rows, report.records)):
                table.write(csv_line([row[name] for name in columns]))
            data.writelines(json_parts(report.data() | {"contexts": report.records}))
            page.write(report.markdown())
            if browser:
                browser.write(report.html())
            setup.files_read.check_unchanged()
        manifest = execute.write_manifest(vars(args), paths[0], report, setup.facts(), paths)
        return messages.close(
            args, report, [*paths, manifest], setup.scorer, lines=_printed(report)
        )


def _printed(report: Report) -> Iterator[str]:
    """Each scored context, then the accuracy, as the published script prints them."""
    for record in report.records:
        if "error" not in record:
            yield many_lines(sample_text(record))
    yield summary_text(report.summary["accuracy"], report.summary["n_without_answer"])


def run_name(prompt: str, test: str, model: str, *flags: str) -> str:
    """Return the beginning of the outputs' names.

    Like in the published script, characters that some systems do not allow in a file's name become
    `-`, and so does a space or dot at either end.

    Args:
        flags: see `variant`; without them the name is the published one.
    """
    name = re.sub(r'[<>:"/\\|?*\x00-\x1f\x7f]+', "-", "_".join((prompt, test, model, *flags)))
    name = UNPRINTABLE.sub("-", name)
    return shorten_name(re.sub(r"^[ .]|[ .]$", "-", name), LONGEST)


def variant(args: argparse.Namespace) -> list[str]:
    """Return the flags that change the numbers and differ from their defaults, for a file's name.

    The other flags move a number by rounding at most.
    """
    temperature = f"{args.temperature!r}".removesuffix(".0")
    system = args.system or args.system_file
    drawn = "" if args.num_fewshot is None else f"{args.num_fewshot}-seed{args.seed}-"
    flags = [
        ("norm", args.normalize),
        (f"temp{temperature}", args.temperature != 1),
        (args.boundary, args.boundary != "joint"),
        (f"separator-{_short(args.answer_separator)}", args.answer_separator is not None),
        (f"truncate-{args.truncate}", args.truncate),
        (f"first{args.limit}", args.limit),
        (args.dtype, args.dtype != "auto"),
        (args.quantize, args.quantize),
        (f"revision-{distinct_file_name(str(args.revision))}", args.revision),
        (f"lora-{distinct_file_name(str(args.lora))}", args.lora),
        ("endpoint", args.api_base),
        ("chat", args.apply_chat_template),
        (f"system-{_short(system)}", system),
        (f"fewshot-{drawn}{_short(args.fewshot)}", args.fewshot),
    ]
    return [text for text, is_used in flags if is_used]


def _short(value: object) -> str:
    """Return a digest of a text or a path, for a file's name."""
    return hashlib.sha256(str(value).encode(errors="backslashreplace")).hexdigest()[:8]


def sample_text(result: Mapping[str, Any]) -> str:
    """Return one context as the published script prints it."""
    lines = [RULE, "", "Text:", result["text"], "", "Scores:"]
    pairs = zip(result["queries"], result["scores"], strict=True)
    lines += [f"{score:.3f}\t{query}" for query, score in pairs]
    if result["passed"] is not None:
        lines += ["", f"TEST SAMPLE {'PASSED' if result['passed'] else 'FAILED'}."]
    return "\n".join([*lines, "", RULE])


def summary_text(accuracy: Estimate | None, n_without_answer: int = 0) -> str:
    """The suite's accuracy in the published script's format, `nan` without queries."""
    mean = math.nan if accuracy is None or accuracy.mean is None else accuracy.mean
    lines = [RULE, f"TEST SUITE ACCURACY:\t{mean:.3f}"]
    if accuracy is None:
        lines.append(DISABLED)
    elif span := accuracy.span(".3f", ""):
        lines.append(f"{span}, n {accuracy.n}")
    if accuracy is not None and n_without_answer:
        lines.append(f"contexts that expect -1, in no accuracy: {n_without_answer}")
    return "\n".join([*lines, RULE])


COMMAND = shards.command(
    SYSTEM,
    [*options_of(Flags), *model_flags.model_options(SYSTEM.settings), *options_of(MoreFlags)],
    run,
    functools.partial(execute.run, SYSTEM),
    column=(),
    companions=prompt_files,
    forms=(".json",),
)

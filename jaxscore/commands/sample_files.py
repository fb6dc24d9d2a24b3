"""What the commands on files of sampled responses share: flags, the output, the summary."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from jaxscore.commands import shared
from jaxscore.files.growing import write_array
from jaxscore.tasks.samples import sample_items
from jaxscore.tasks.samples.sample_items import Result


def add_flags(parser: argparse.ArgumentParser, output: str) -> None:
    """The input, the output and --quiet; `output` is the default name, for people."""
    parser.add_argument(
        "--input-file",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON array of items, or Parquet",
    )
    parser.add_argument(
        "--output-file",
        type=Path,
        metavar="FILE",
        help=f"default: beside the input, its name with {output}",
    )
    parser.add_argument("--quiet", action="store_true", help="no remarks on stderr")


def add_best_n(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--best-N",
        type=shared.positive,
        default=default,
        metavar="N",
        help=f"consider the first N responses of each item (default {default}); "
        "an item with fewer has all of its considered",
    )


def output_path(args: argparse.Namespace, suffix: str) -> Path:
    """--output-file, or the input's name with a suffix, in the input's folder.

    Raises:
        InputError: it is the input.
    """
    path = args.output_file or args.input_file.with_name(f"{args.input_file.stem}{suffix}.json")
    shared.check_output(path, args.input_file, flag="--output-file")
    return path


def write(file: TextIO, results: Sequence[Result]) -> None:
    """One record an item, in order."""
    write_array(file, (one.record for one in results))


def tell(args: argparse.Namespace, results: Sequence[Result], output: Path, unanswered: str) -> int:
    """The summary on stdout, what was odd and what failed on stderr; gives the exit code.

    `unanswered` goes on after "3 of them", about items whose choice has no answer; "" where that
    does not matter.
    """
    summary = sample_items.summarise(results)
    for name, note in summary.notes[: shared.SHOWN_FAILURES]:
        shared.remark(args, f"note: {name}: {note}")
    if len(summary.notes) > shared.SHOWN_FAILURES:
        shared.remark(args, f"and {len(summary.notes) - shared.SHOWN_FAILURES} more notes")
    print(f"{summary.n_items} items, {summary.n_decided} decided")
    if unanswered and summary.n_unanswered:
        print(f"{summary.n_unanswered} of them {unanswered}")
    if marks := summary.within_noise:
        print(f"{sum(marks)} of {len(marks)} within the noise: rounding could turn their answer")
    print(f"written to {output}")
    return shared.tell_failures(summary.failures)

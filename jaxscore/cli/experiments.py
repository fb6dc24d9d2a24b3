"""What `judge`, `metrics` and `results` share: the flags that name folders, and what failed."""

import argparse
from collections.abc import Callable
from pathlib import Path

from jaxscore.errors import InputError
from jaxscore.systems.evaluation import Failure
from jaxscore.systems.rag import experiment_folder

DEFAULT_SPLIT = "dev"


def add_folder_flags(parser: argparse.ArgumentParser, verb: str) -> None:
    """--experiments-folder, --folder and --split; `verb` is what is done with each folder."""
    add_experiments_flag(parser, f"{verb} each folder in it")
    parser.add_argument("--folder", "--input", type=Path, help=f"{verb} this one instead")
    add_split_flag(parser)


def add_experiments_flag(parser: argparse.ArgumentParser, purpose: str, *spellings: str) -> None:
    """--experiments-folder, beside other spellings of it."""
    parser.add_argument(
        "--experiments-folder",
        *spellings,
        type=Path,
        default=Path("experiments"),
        metavar="FOLDER",
        help=f"{purpose} (default: experiments/)",
    )


def add_split_flag(parser: argparse.ArgumentParser) -> None:
    """--split."""
    parser.add_argument("--split", default=DEFAULT_SPLIT, help=f"default: {DEFAULT_SPLIT}")


def each(args: argparse.Namespace, use: Callable[[Path], None]) -> list[Failure]:
    """Pass --folder, or each folder of --experiments-folder, to `use`.

    Returns:
        The folders that `use` refused; the others go on.

    Raises:
        InputError: --folder was refused, or no folder holds what the split names.
    """
    if args.folder is not None:
        use(args.folder)
        return []
    failures = []
    for folder in experiment_folder.folders(args.experiments_folder, args.split):
        try:
            use(folder)
        except InputError as problem:
            failures.append(Failure(str(folder), str(problem)))
    return failures

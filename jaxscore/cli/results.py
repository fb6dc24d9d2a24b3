"""`jaxscore results`: one table of all RAG experiments; flags of folders, as `judge` has them."""

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from jaxscore.cli import messages, outputs, settings_flags
from jaxscore.cli.app import Command
from jaxscore.errors import InputError
from jaxscore.io import remote
from jaxscore.io.atomic import atomic
from jaxscore.io.records import FORMS, csv_line
from jaxscore.io.streams import is_stream
from jaxscore.io.tables import is_dataset
from jaxscore.report.counts import counted
from jaxscore.shell.flags import Flag, flag, options_of
from jaxscore.shell.system import System, item_fields
from jaxscore.systems.rag import experiment_folder, results_table

DEFAULT_SPLIT = "dev"


def experiments_flag(purpose: str, *names: str) -> Any:
    """Declare --experiments-folder, with other spellings of it."""
    return flag(
        Path("experiments"), *names, metavar="FOLDER", help=f"{purpose} (default: experiments/)"
    )


def _split(text: str) -> str:
    if "/" in text or "\\" in text:
        raise ValueError(f"{text!r} has a slash, expected a part of a file name")
    return text


def split_flag() -> Any:
    """Declare --split."""
    return flag(DEFAULT_SPLIT, read=_split, help=f"default: {DEFAULT_SPLIT}")


def folder_options(system: System, verb: str) -> list[Flag]:
    """Declare the flags of folders, and of files of records.

    Args:
        verb: verb for it, such as "judge".
    """

    @dataclasses.dataclass(kw_only=True)
    class Flags:
        experiments_folder: Path = experiments_flag(f"{verb} each folder in it")
        folder: Path | None = flag(None, help=f"{verb} this one instead")
        split: str = split_flag()
        input: list[Path] = flag(
            [],
            takes_address=True,
            metavar="FILE",
            help=f"{verb} the records of files instead: {settings_flags.FORMS}; needs --output. "
            "A folder without --output is --folder",
        )
        column: list[str] = settings_flags.column_flag(item_fields(system))
        output: Path | None = flag(
            None,
            takes_address=True,
            metavar="FILE",
            help=f"results of --input: {FORMS}; - is stdout",
        )

    return options_of(Flags)


def takes_files(args: argparse.Namespace) -> bool:
    """Return True if the input is files of records; a folder in --input becomes --folder.

    Raises:
        InputError: --input is missing, or a file without --output.
    """
    folders = [folder for folder in (args.folder,) if folder is not None]
    if args.output is not None:
        if folders or not args.input:
            raise InputError(
                f"--output {args.output}: results of folders are merged into the files there; "
                "leave it out and use a copy of the folder, or give a file of records with --input"
            )
        return True
    if folders and args.input:
        raise InputError("--folder and --input: give one of them")
    for path in (*folders, *args.input):
        if len(args.input) > 1 or not (path.is_dir() or not path.exists()) or is_dataset(path):
            raise InputError(
                f"--input {remote.displayed(path)}: found a file of records, whose results need "
                "--output FILE.jsonl; a folder without --output is one of BERGEN, with "
                f"eval_{args.split}_out.json"
            )
    if args.column:
        raise InputError(f"--column {args.column[0]}: only with --input FILE and --output FILE")
    args.folder, args.input = next(iter((*folders, *args.input)), None), None
    return False


def each(args: argparse.Namespace, use: Callable[[Path], None]) -> list[tuple[str, str]]:
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
            failures.append((str(folder), str(problem)))
    return failures


DESCRIPTION = """\
Put the metrics of all RAG experiments side by side.

input, in each folder of --experiments-folder (except tmp_...):
  eval_<split>_metrics.json, and where they exist config.yaml (data sets,
  retriever, reranker, generator), eval_<split>_ranking_metrics.json,
  eval_<split>_generation_time.json, eval_<split>_out.json and reports of judge

output:
  <output-dir>/<experiments-folder, "_" for "/">.csv, and the same table on
  stdout; the name ends in _<split> for other splits than `dev`, and in
  _<format> for other formats than `all`, and in _first<N> with --limit N.
  --output FILE.csv is the file itself.
  --format all (default) has every metric under its name in the files; tiny,
  simple and full are the published tables. Every table also has n_records,
  n_failed (records that could not be used or judged) and n_unread (records
  whose answer names no label or several), blank where no file has the number;
  a judge whose metric the table does not show is not in them.
  A column that is empty in every row is left out.

exit code: 0 all read, 1 some files could not be read (the others are kept),
2 unusable input.
"""


@dataclasses.dataclass(kw_only=True)
class Flags(messages.Quiet):
    """The flags of `results`."""

    experiments_folder: Path = experiments_flag("where the experiments are", "--input")
    output_dir: Path = flag(
        Path("results"),
        "--output",
        metavar="FOLDER|FILE.csv",
        help="where to write the csv; a name that ends in .csv is the file itself (default: "
        "results/)",
    )
    split: str = split_flag()
    limit: int | None = flag(
        None, least=1, metavar="N", help="only the first N folders, by their names"
    )
    format: Literal[tuple(results_table.FORMATS)] = flag(  # type: ignore[valid-type]
        "all", help="which columns (default: all)"
    )
    sort: str = flag("Generator", metavar="COLUMN", help="order of rows (default: Generator)")


def run(args: argparse.Namespace) -> int:
    """Read all folders, write the csv and print the table."""
    rows, failures = results_table.load(
        args.experiments_folder, args.split, args.format, limit=args.limit
    )
    table = results_table.table(rows, args.format, args.sort)
    path = _path(args)
    with atomic(path) as file:
        file.write(csv_line(table[0]))
        file.writelines(csv_line(row.values()) for row in table)
    manifest = outputs.write_own_manifest(args, path, {"failed": len(failures)}, [path])
    print(results_table.markdown(table))
    return messages.print_closing_block(
        done=counted(len(table), "folders"),
        failures=failures,
        results=[
            f"a table of {counted(len(table), 'folders')} and {counted(len(table[0]), 'columns')}"
        ],
        files=[path, manifest],
    )


def _path(args: argparse.Namespace) -> Path:
    """Return the path of the csv: --output if it names one, else a file in that folder.

    Other splits, formats and limits have their own files.
    """
    output: Path = args.output_dir
    if is_stream(output) or (output.suffix.lower() == ".csv" and not output.is_dir()):
        return output
    folder: Path = args.experiments_folder
    name = str(folder).replace("../", "").lstrip(".").replace("/", "_")  # hidden otherwise
    if not folder.name.strip("."):  # `.` and `..` do not name it
        name = folder.resolve().name or "experiments"
    if args.split != DEFAULT_SPLIT:
        name += f"_{args.split}"
    if args.format != "all":
        name += f"_{args.format}"
    if args.limit is not None:
        name += f"_first{args.limit}"
    return output / f"{name}.csv"


COMMAND = Command("results", DESCRIPTION, options_of(Flags), run)

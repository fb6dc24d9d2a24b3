"""`jaxscore results`: one table of all RAG experiments; flags of folders, as `judge` has them."""

import argparse
from collections.abc import Callable
from pathlib import Path

from jaxscore.cli import messages, model_flags, outputs
from jaxscore.errors import InputError
from jaxscore.io.atomic import atomic
from jaxscore.io.records import csv_line
from jaxscore.io.streams import is_stream
from jaxscore.systems.rag import experiment_folder, results_table

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
    parser.add_argument(
        "--split", type=_split, default=DEFAULT_SPLIT, help=f"default: {DEFAULT_SPLIT}"
    )


def _split(text: str) -> str:
    """argparse type: a part of a file name."""
    if "/" in text or "\\" in text:
        raise argparse.ArgumentTypeError(f"{text!r} has a slash, expected a part of a file name")
    return text


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
  a judge whose metric the table does not show has no part in them.
  A column that is empty in every row is left out.

exit code: 0 all read, 1 some files could not be read (the others are kept),
2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command's flags."""
    parser = subparsers.add_parser("results", description=DESCRIPTION)
    add_experiments_flag(parser, "where the experiments are", "--input")
    parser.add_argument(
        "--output-dir",
        "--output",
        type=Path,
        default=Path("results"),
        metavar="FOLDER|FILE.csv",
        help="where to write the csv; a name that ends in .csv is the file itself (default: "
        "results/)",
    )
    add_split_flag(parser)
    model_flags.add_limit_flag(parser, "folders, by their names")
    parser.add_argument(
        "--format",
        choices=tuple(results_table.FORMATS),
        default="all",
        help="which columns (default: all)",
    )
    parser.add_argument(
        "--sort", default="Generator", metavar="COLUMN", help="order of rows (default: Generator)"
    )
    messages.add_quiet(parser)
    parser.set_defaults(run=run)


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
        done=f"{len(table)} folders",
        failures=failures,
        results=[f"a table of {len(table)} folders and {len(table[0])} columns"],
        files=[path, manifest],
    )


def _path(args: argparse.Namespace) -> Path:
    """The csv: --output itself if it names one, else a file in that folder.

    Other splits, formats and limits have files of their own.
    """
    output: Path = args.output_dir
    if is_stream(output) or (output.suffix.lower() == ".csv" and not output.is_dir()):
        return output
    folder: Path = args.experiments_folder
    name = str(folder).replace("/", "_")
    if not folder.name.strip("."):  # `.` and `..` say nothing
        name = folder.resolve().name or "experiments"
    if args.split != DEFAULT_SPLIT:
        name += f"_{args.split}"
    if args.format != "all":
        name += f"_{args.format}"
    if args.limit is not None:
        name += f"_first{args.limit}"
    return output / f"{name}.csv"

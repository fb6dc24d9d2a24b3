"""`jaxscore results`: one table of all RAG experiments."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxscore.commands import shared
from jaxscore.files.atomic import atomic
from jaxscore.files.csv_rows import csv_line
from jaxscore.reports.markdown import cell
from jaxscore.tasks.rag import results_table
from jaxscore.tasks.rag.results_table import Row

DESCRIPTION = """\
Put the metrics of all RAG experiments side by side.

input, in each folder of --experiments-folder (those named tmp_ are left out):
  eval_<split>_metrics.json, and where there are config.yaml (data sets, retriever, reranker,
  generator), eval_<split>_ranking_metrics.json and eval_<split>_generation_time.json

output:
  <output-dir>/<experiments-folder, "_" for "/">.csv, and the same table on stdout
  --format all (default) has every metric by the name that it has in the files; tiny, simple and
  full are the published tables.

exit code: 0 all read, 1 some files could not be read (the others are kept), 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "results",
        help="the metrics of all RAG experiments as one table and csv (BERGEN)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--experiments-folder",
        type=Path,
        default=Path("experiments"),
        metavar="FOLDER",
        help="where the experiments are (default: experiments/)",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("results"),
        metavar="FOLDER",
        help="where to write the csv (default: results/)",
    )
    parser.add_argument("--split", default="dev", help="default: dev")
    parser.add_argument(
        "--format",
        choices=tuple(results_table.FORMATS),
        default="all",
        help="which columns (default: all)",
    )
    parser.add_argument(
        "--sort", default="Generator", metavar="COLUMN", help="order of rows (default: Generator)"
    )
    parser.add_argument("--quiet", action="store_true", help="no remarks on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    rows, failures = results_table.load(args.experiments_folder, args.split)
    table = results_table.table(rows, args.format, args.sort)
    name = str(args.experiments_folder).replace("/", "_")
    if not args.experiments_folder.name.strip("."):  # `.` and `..` say nothing
        name = args.experiments_folder.resolve().name or "experiments"
    path = args.output_dir / f"{name}.csv"
    with atomic(path) as file:
        file.write(csv_line(table[0]))
        file.writelines(csv_line(row.values()) for row in table)
    print(markdown(table))
    shared.remark(args, f"written to {path}")
    return shared.tell_failures(failures)


def markdown(table: Sequence[Row]) -> str:
    """The table for people, numbers with four decimals."""

    def shown(value: object) -> str:
        text = f"{value:.4f}" if isinstance(value, float) else str("" if value is None else value)
        return cell(text)

    names = list(table[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in table)]
    return "\n".join(f"| {' | '.join(map(shown, line))} |" for line in lines)

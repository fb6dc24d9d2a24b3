"""`jaxscore choose`: any multiple choice."""

import argparse

from jaxscore.cli import closing, html_flags, model_flags, outputs, table_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.report_files import ReportFiles
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.records import record_writer
from jaxscore.systems.choose import choices, items
from jaxscore.systems.choose.evaluation import BOUNDARIES, PREMISE

DESCRIPTION = """\
Which of several texts does a model find the most probable after a context, and
is it the right one?

input, one object per line:
  {"id": "q1", "context": "Q: Where is Oslo?\\nA:",
   "options": [" Norway", " Spain"], "gold": 0, "category": "places"}
  `gold` is the index of the right option from 0, or its text; it may be left
  out, and so may `id` and `category`. A blank between the context and an option
  belongs to the option. A JSON array, .csv, .tsv (`options` as JSON text),
  .parquet or a folder of datasets' save_to_disk holds the same; --column
  options=choices reads a field from the column `choices`.

chosen is the first option with the highest
  acc       sum of log-probability of its tokens
  acc_norm  sum per UTF-8 byte, blanks before the option not counted
            (lm-evaluation-harness' acc_bytes; its acc_norm counts characters)
  acc_pmi   sum, less the sum after --pmi-context (arXiv 2104.08315)

output, one line per item, in order:
  id, context, options, category, sum_logprob[], n_tokens[], n_bytes[], pmi[],
  probability[] (softmax of the sums), choice, choice_norm, choice_pmi; with
  gold also gold, acc, acc_norm, acc_pmi, chance, skill, skill_norm, skill_pmi,
  brier; other fields of the input line. An OUT that ends in .csv, .tsv or
  .parquet is a table with these columns.
  Beside OUT lie OUT.report.md, OUT.report.json (accuracy, skill, calibration,
  by category, wrong items first), OUT.report.html, which shows them in a
  browser, and OUT.run.json. With --audit-noise an item has `within_noise` and
  `acc_within_noise`: whether rounding could change the choice by the sum, and
  whether it is right.

exit code: 0 all scored, 1 some items failed (their lines hold `error`),
           2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("choose", description=DESCRIPTION)
    table_flags.add_input(parser, "items:", items.FIELDS)
    table_flags.add_output(parser, "results")
    model_flags.add_limit_flag(parser, "items")
    parser.add_argument(
        "--boundary",
        choices=tuple(BOUNDARIES),
        default="joint",
        help="joint: encode context and option as one text (default); separate: encode each and "
        "join the ids",
    )
    parser.add_argument(
        "--pmi-context",
        default=PREMISE,
        metavar="TEXT",
        help=f"the premise of acc_pmi, a text that asks for an answer without the question "
        f"(default: {PREMISE!r}); '' scores each option after the BOS, as lm-evaluation-harness "
        "does",
    )
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the 95%% intervals of skill and Brier score (default 1000)",
    )
    html_flags.add(parser)
    model_flags.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    reports = ReportFiles(args, args.input)
    files = [args.output, *reports.paths]
    columns = table_flags.columns(args.column, items.FIELDS)
    known = items.load(args.input, args.limit, columns)
    with (
        atomic(args.output) as file,
        reports.opened() as write_reports,
        record_writer(args.output, file, choices.TABLE) as write,
    ):
        scorer = model_flags.load_scorer(args, args.model, *files)
        report = evaluate(
            "choose",
            scorer,
            known,
            boundary=args.boundary,
            pmi_context=args.pmi_context,
            n_bootstrap=args.n_bootstrap,
            about=outputs.about_input(args),
            **model_flags.common_settings(args),
        )
        for record in report.items:
            write(record)
        write_reports(report)
    manifest = outputs.write_manifest(args, scorer, args.output, report)
    return closing.close(args, report, "items", [*files, manifest], scorer)

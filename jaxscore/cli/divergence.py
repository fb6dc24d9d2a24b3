"""`jaxscore divergence`: two models on the same texts, token by token."""

import argparse

from jaxscore.cli import (
    closing,
    html_flags,
    model_flags,
    outputs,
    reference_flags,
    table_flags,
)
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.report_files import ReportFiles
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.records import record_writer
from jaxscore.systems.divergence import records
from jaxscore.systems.score import requests_file
from jaxscore.systems.score.system import BOUNDARIES

DESCRIPTION = """\
How far do two models lie apart on the same texts? p is the distribution over
the next token of --model, q that of --reference. The same model twice, with
another --reference-dtype, --reference-quantize or --reference-lora, shows what
that setting changes.

input, one object per line, as that of score:
  {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}

output, in the same order, numbers in nats:
  id, token_ids, tokens, kl[] (KL(p || q)), reverse_kl[] (KL(q || p)),
  js[] (Jensen-Shannon), cross_entropy[] (- sum p ln q), logprob[] and
  reference_logprob[] (ln p, ln q of the token), logprob_difference[],
  entropy[], reference_entropy[], same_argmax[], the mean_ of each,
  same_argmax_share, perplexity, reference_perplexity, binoculars,
  binoculars_upstream, n_tokens, n_scored
  Arrays align with the continuation's tokens; a token with nothing before it
  has null. Other fields of an input line are repeated in its output line.
  `binoculars` is the score of arXiv 2401.12070.
  Beside OUT.jsonl lie a report for people, OUT.jsonl.report.md, its data,
  OUT.jsonl.report.json (means with intervals, percentiles, the tokens and texts
  with the largest divergence), OUT.jsonl.report.html, a page for a browser with
  the tokens of these texts coloured by KL(p || q), and OUT.jsonl.run.json: what
  made it.

exit code: 0 all compared, 1 some texts failed (their lines hold `error`),
           2 unusable input, or two models that cannot be compared.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("divergence", description=DESCRIPTION)
    table_flags.add_input(parser, "texts:", requests_file.FIELDS)
    table_flags.add_output(parser, "numbers")
    parser.add_argument(
        "--boundary",
        choices=tuple(BOUNDARIES),
        default="joint",
        help="joint: encode context and continuation as one text (default); "
        "separate: encode each and join the ids",
    )
    parser.add_argument(
        "--summary-only", action="store_true", help="leave the arrays out of the output"
    )
    model_flags.add_limit_flag(parser, "texts")
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the report's 95%% intervals (default 1000)",
    )
    html_flags.add(parser)
    reference_flags.add(parser)
    model_flags.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    reports = ReportFiles(args, args.input)
    files = [args.output, *reports.paths]
    columns = table_flags.columns(args.column, requests_file.FIELDS)
    of_file = args.limit, columns, records.RESULT_FIELDS
    n_requests = requests_file.check(args.input, *of_file)
    with (
        atomic(args.output) as file,
        reports.opened() as write_reports,
        record_writer(args.output, file, records.columns(args.summary_only)) as write,
    ):
        scorer = model_flags.load_scorer(
            args,
            args.model,
            *files,
            loader=reference_flags.loader(args),
        )
        report = evaluate(
            "divergence",
            scorer,
            requests_file.load(args.input, *of_file),
            on_item=write,
            boundary=args.boundary,
            summary_only=args.summary_only,
            n_requests=n_requests,
            n_bootstrap=args.n_bootstrap,
            about=outputs.about_input(args),
            **model_flags.common_settings(args),
        )
        write_reports(report)
    manifest = outputs.write_manifest(args, scorer, args.output, report)
    return closing.close(args, report, "texts", [*files, manifest], scorer)

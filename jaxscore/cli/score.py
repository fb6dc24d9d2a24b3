"""`jaxscore score`: each line of a JSONL file."""

import argparse

from jaxscore.cli import (
    closing,
    endpoint_flags,
    html_flags,
    measure_flags,
    model_flags,
    outputs,
    prompting_flags,
    table_flags,
)
from jaxscore.cli.score_page import Watched
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.records import record_writer
from jaxscore.systems.score import fewshot, requests_file
from jaxscore.systems.score.system import BOUNDARIES, Settings

DESCRIPTION = """\
Score the continuation of each line under a causal language model.

input, one object per line:
  {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}
  `context` may be left out; `id` defaults to the line's number. A blank between
  the two belongs to the continuation. A JSON array, .csv, .tsv, .parquet or a
  folder of datasets' save_to_disk holds the same; --column continuation=answer
  reads the field from the column `answer`.

output, in the same order, numbers in nats:
  id, token_ids, tokens, logprob[], entropy[], self_certainty[], greedy[],
  sum_logprob, mean_logprob, perplexity, mean_entropy, mean_self_certainty,
  n_tokens, n_scored
  Arrays align with the continuation's tokens; a token with nothing before it
  has null. Other fields of an input line are repeated in its output line.
  An OUT that ends in .csv, .tsv or .parquet (pip install pyarrow) is a table
  with these columns: `id` is text, and `extra` has the other fields as JSON
  text, as in .csv and .tsv arrays are.
  --measures adds fields of these names, nats where they have a unit:
    rank[], varentropy[], renyi2[]       of each token's distribution
    top_k                                as top_id[], top_logprob[], top_token[]
    min_k, min_k_pp, fast_detect         one number per text
  --unit word adds words[] and word_surprisal[], in bits.
  With --api-base what a server does not tell is null: token_ids, entropy,
  self_certainty and their means, and `greedy` of a server that lists nothing.
  Beside OUT lie OUT.run.json: what made it, and how many requests failed; and
  OUT.report.html, a page for a browser: charts, and the requests with coloured
  tokens, least probable first (at most 50,000 of them).
  --audit-noise says there, and on stdout, how far rounding moves the numbers.

exit code: 0 all scored, 1 some requests failed (their lines hold `error`),
           2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("score", description=DESCRIPTION)
    table_flags.add_input(parser, "requests:", requests_file.FIELDS)
    table_flags.add_output(parser, "scores")
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
    measure_flags.add(parser)
    html_flags.add(parser)
    model_flags.add_limit_flag(parser, "requests")
    endpoint_flags.add(parser)
    prompting_flags.add(parser, "a line of the input's form")
    model_flags.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    inputs = [args.input, *prompting_flags.inputs(args)]
    pages = html_flags.pages(args, outputs.report_paths(args.output)[0], *inputs)
    outputs.check_outputs([args.output, *pages], *inputs)
    columns = table_flags.columns(args.column, requests_file.FIELDS)
    settings = {
        "boundary": args.boundary,
        "summary_only": args.summary_only,
        **measure_flags.settings(args),
        **prompting_flags.settings(args, fewshot.read),
        **model_flags.common_settings(args),
    }
    checked = Settings(**settings)
    results = requests_file.RESULT_FIELDS | checked.fields
    n_requests = requests_file.check(args.input, args.limit, columns, results)
    endpoint = endpoint_flags.endpoint(args, args.api_base, checked)
    with (
        atomic(args.output) as file,
        html_flags.opened(pages) as page,
        record_writer(args.output, file, _columns(args, checked)) as write,
    ):
        scorer = (
            None if endpoint else model_flags.load_scorer(args, args.model, args.output, *pages)
        )
        lines = requests_file.load(args.input, args.limit, columns, results)
        watched = None if page is None else Watched(lines, write, args.measures)
        report = evaluate(
            "score",
            endpoint or scorer,
            watched or lines,
            on_item=watched.take if watched else write,
            n_requests=n_requests,
            **settings,
        )
        if page and watched:
            page.write(report.html(watched.items))
    manifest = outputs.write_manifest(
        args, scorer, args.output, report, **prompting_flags.about(args)
    )
    return closing.close(args, report, "requests", [args.output, *pages, manifest], scorer)


def _columns(args: argparse.Namespace, settings: Settings) -> dict[str, str]:
    """Those of a table."""
    arrays = {} if args.summary_only else requests_file.ARRAYS
    return {**arrays, **requests_file.NUMBERS, **settings.columns(arrays=bool(arrays))}

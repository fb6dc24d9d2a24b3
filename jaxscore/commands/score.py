"""`jaxscore score`: each line of a JSONL file."""

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from jaxscore.commands import closing, model_flags, outputs
from jaxscore.evaluate import evaluate
from jaxscore.files.atomic import atomic
from jaxscore.files.json_lines import json_line
from jaxscore.files.parquet_output import ParquetOutput
from jaxscore.tasks.score import requests_file
from jaxscore.tasks.score.evaluation import BOUNDARIES

DESCRIPTION = """\
Score the continuation of each line under a causal language model.

input, one object per line:
  {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}
  `context` may be left out; `id` defaults to the line's number. A blank between
  the two belongs to the continuation.

output, in the same order, numbers in nats:
  id, token_ids, tokens, logprob[], entropy[], self_certainty[], greedy[],
  sum_logprob, mean_logprob, perplexity, mean_entropy, mean_self_certainty,
  n_tokens, n_scored
  Arrays align with the continuation's tokens; a token with nothing before it
  has null. Other fields of an input line are repeated in its output line.
  An OUT that ends in .parquet is a table with these columns (pip install
  pyarrow): `id` is text, and `extra` has the other fields as JSON text.
  Beside OUT lies OUT.run.json: what made it, and how many requests failed.
  --audit-noise says there, and on stdout, how far rounding moves the numbers.

exit code: 0 all scored, 1 some requests failed (their lines hold `error`),
           2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("score", description=DESCRIPTION)
    parser.add_argument(
        "--input", required=True, type=Path, metavar="FILE", help="JSONL of requests"
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FILE",
        help="scores: JSONL, or a table where the name ends in .parquet",
    )
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
    model_flags.add_limit_flag(parser, "requests")
    model_flags.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    outputs.check_output(args.output, args.input)
    n_requests = requests_file.check(args.input, args.limit)
    with atomic(args.output) as file, _writer(args, file) as write:
        scorer = model_flags.load_scorer(args, args.model, args.output)
        report = evaluate(
            "score",
            scorer,
            requests_file.load(args.input, args.limit),
            on_item=write,
            boundary=args.boundary,
            summary_only=args.summary_only,
            n_requests=n_requests,
            **model_flags.common_settings(args),
        )
    manifest = outputs.write_manifest(args, scorer, args.output, report)
    return closing.close(args, report, "requests", [args.output, manifest], scorer)


@contextlib.contextmanager
def _writer(
    args: argparse.Namespace, file: TextIO
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """What takes each record: lines of JSON, or a table."""
    if args.output.suffix.lower() != ".parquet":

        def write(record: Mapping[str, Any]) -> None:
            file.buffer.write(json_line(record))

        yield write
        return
    with ParquetOutput(file.buffer, arrays=not args.summary_only) as table:
        yield table.write

"""`jaxscore score`: each line of a JSONL file."""

import argparse
import json
import time
from pathlib import Path

from jaxscore.commands import shared
from jaxscore.engine.noise import Draw, OtherLayouts
from jaxscore.files.atomic import atomic, json_safe
from jaxscore.printable import one_line
from jaxscore.tasks.score import requests_file

POLICIES = ("joint", "separate")
SHOWN = 60  # characters of an id in a message

DESCRIPTION = """\
Score the continuation of each line under a causal language model.

input, one object a line:
  {"id": "a", "context": "The capital of Norway is", "continuation": " Oslo"}
  `context` may be left out; `id` defaults to the line's number. A blank between the two belongs
  to the continuation.

output, in the same order, numbers in nats:
  id, token_ids, tokens, logprob[], entropy[], self_certainty[], greedy[], sum_logprob,
  mean_logprob, perplexity, mean_entropy, mean_self_certainty, n_tokens, n_scored
  Arrays align with the continuation's tokens; a token with nothing before it has null.
  --audit-noise tells how far rounding moves these numbers, on stdout and in OUT.run.json.

exit code: 0 all scored, 1 some requests failed (their lines hold `error`), 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "score",
        help="log-probability, entropy and self-certainty of each token of given texts",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--input", required=True, type=Path, help="JSONL of requests")
    parser.add_argument("--output", required=True, type=Path, help="JSONL of scores")
    parser.add_argument(
        "--boundary",
        choices=POLICIES,
        default="joint",
        help="joint: encode context and continuation as one text (default); "
        "separate: encode each and join the ids",
    )
    parser.add_argument(
        "--summary-only", action="store_true", help="leave the arrays out of the output"
    )
    shared.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    shared.check_output(args.output, args.input)
    n_requests = requests_file.check(args.input)
    failures: list[tuple[object, str]] = []
    with atomic(args.output) as file:
        scorer = shared.load_scorer(args, args.model, args.output)
        others = [policy for policy in POLICIES if policy != args.boundary]
        audit = shared.Audit(scorer, args.boundary, others, quiet=args.quiet)
        draw = Draw(args.audit_noise, args.seed)
        started = time.perf_counter()
        stream = scorer.stream(
            draw.watch(audit.watch(requests_file.load(args.input))),
            boundary=args.boundary,
            truncate=args.truncate,
            n_requests=n_requests,
        )
        for scored in draw.results(stream):
            if scored.error:
                failures.append((one_line(str(scored.id), SHOWN), scored.error))
            line = json_safe(requests_file.record(scored, summary_only=args.summary_only))
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        seconds = time.perf_counter() - started
        noise = OtherLayouts(scorer).scores(
            draw.pairs, boundary=args.boundary, truncate=args.truncate
        )
    shared.write_manifest(args, scorer, seconds, args.output, noise)
    shared.tell_run(args, scorer, seconds)
    shared.remark(args, audit.text(args.boundary, others))
    shared.tell_noise(args, noise)
    return shared.tell_failures(failures)

"""`jaxscore vote`: Borda voting over sampled answers."""

import argparse
import math

from jaxscore.commands import sample_files
from jaxscore.files.atomic import atomic
from jaxscore.tasks.samples import selection
from jaxscore.tasks.samples.symbolic import (
    MOST_LIMITS,
    MOST_TIMEOUTS,
    TIME_LIMIT,
    SymbolicComparison,
)

DESCRIPTION = """\
For each question keep the answer that gets the most votes among the first N responses. Responses
are ranked by self-certainty; rank r, from 0, of n gives (n - r)^power votes to its answer (Borda
voting, arXiv 2502.18581). Power 0 is the majority vote; a high power comes near `select`.

input, a JSON array as `self-certainty` writes it:
  [{"id": 0, "generator": "meta-llama/Llama-3.1-8B-Instruct", "dataset": "math",
    "output": ["{\\"answer\\": \\"1/2\\"}", "{\\"answer\\": \\"0.5\\"}", "{\\"answer\\": 3}"],
    "confidence_list": [12.3, 11.0, 19.8]}]

Answers are found as `select` finds them, and are equal when they are the same after sanitising:
1/2, .5 and \\frac{1}{2}; 1,000 and 1000; AAAA and A. Items with "dataset": "crux" hold code:
there only the quotes around an answer are left out. Where `task` or `subtask` holds amps_hard,
SymPy also compares unequal answers: equal when their difference is below 0.001.

output: the same items with `output` the first response of the winning answer in a list and
`confidence` its votes. Where no response has an answer the first is kept, with 0 votes. Where
`confidence_settings` say the `noise` (`self-certainty --audit-noise`), `within_noise` tells
whether ranks that rounding could turn may let another answer win.

exit code: 0 all decided, 1 some items failed (they hold `error`), 2 unusable input.
"""
NO_ANSWER = "without any extractable answer: the first response, 0 votes"
TIME_HELP = (
    f"for SymPy to read or compare two answers (default {TIME_LIMIT:g}); after {MOST_TIMEOUTS} "
    f"that took longer, or {MOST_LIMITS} times that limit in all, the rest of an item's answers "
    "compare as text"
)


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "vote",
        help="Borda or majority vote over sampled answers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sample_files.add_flags(parser, "-confidence-borda-power-P-N-kl")
    sample_files.add_best_n(parser, 64)
    parser.add_argument(
        "--power",
        type=_finite,
        default=0.5,
        metavar="P",
        help="of the ranks' votes (default 0.5)",
    )
    parser.add_argument(
        "--time-limit", type=_seconds, default=TIME_LIMIT, metavar="SECONDS", help=TIME_HELP
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = selection.load(args.input_file, args.best_N)
    n = selection.available(items) or args.best_N
    output = sample_files.output_path(args, f"-confidence-borda-power-{args.power}-{n}-kl")
    with atomic(output) as file, SymbolicComparison(args.time_limit) as symbolic:
        results = selection.evaluate_vote(items, args.power, symbolic)
        sample_files.write(file, results)
    return sample_files.tell(args, results, output, NO_ANSWER)


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def _seconds(text: str) -> float:
    value = _finite(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most a day")
    return value

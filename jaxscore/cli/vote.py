"""`jaxscore vote`: Borda voting over sampled answers."""

import argparse

from jaxscore.cli import sample_files
from jaxscore.cli.help_pages import advanced
from jaxscore.systems.samples import selection
from jaxscore.systems.samples.evaluations.vote import Settings
from jaxscore.systems.samples.symbolic import MOST_LIMITS, MOST_TIMEOUTS, TIME_LIMIT

DESCRIPTION = """\
For each question keep the answer with the most votes among the first N
responses. Responses are ranked by self-certainty; rank r, from 0, of n gives
(n - r)^power votes to its answer (Borda voting, arXiv 2502.18581). Power 0 is
the majority vote; a high power comes near `select`.

input, a JSON array as `self-certainty` writes it:
  [{"id": 0, "generator": "meta-llama/Llama-3.1-8B-Instruct", "dataset": "math",
    "output": ["{\\"answer\\": \\"1/2\\"}", "{\\"answer\\": \\"0.5\\"}",
               "{\\"answer\\": 3}"],
    "confidence_list": [12.3, 11.0, 19.8]}]

Answers are found as `select` finds them: --gold can change the choice, not only
its grade, since a numeric gold also has responses without another form read by
their last number. They are equal when they are the same
after sanitising: 1/2, .5 and \\frac{1}{2}; 1,000 and 1000; AAAA and A. Items
with "dataset": "crux" hold code, and only the quotes around an answer are left
out. Where `task` or `subtask` holds amps_hard, SymPy also compares unequal
answers: they are equal when their difference is below 0.001.

output, the same items with
  output        the first response of the winning answer, in a list
  confidence    the answer's votes
  within_noise  where `confidence_settings` hold `noise` (`self-certainty
                --audit-noise`): whether rounding could change ranks so that
                another answer wins
  answer_form   of an item that is not read as published, as in `select`
  Where no response has an answer, the first one is kept, with 0 votes; where
  none with an answer has a confidence, they rank as they stand. These
  fallbacks are counted apart.
  N and what it leaves out are printed. Beside OUT lies OUT.run.json. The
  default name has -timeS with --time-limit S and -firstN with --limit N.

--gold FIELD grades the choices. FIELD of each item holds the right answer, a
list of acceptable answers, or a list of true or false for each response. Items
get `right` (null without gold); the share of right choices among the first 1,
2, 4, ... N responses is printed beside the first sample's, a majority vote's,
an oracle's and votes of other powers, and is in OUT_report.md, OUT_report.json
and, for a browser, OUT_report.html (OUT.report.md where OUT does not end in
.json). If no response has a readable answer, there is no share, and the exit
code is 1.

exit code: 0 all decided or by fallback, 1 some items failed (they hold
           `error`) or nothing could be graded, 2 unusable input or no usable
           item; nothing is written.
"""
TIME_HELP = (
    f"for SymPy to read or compare two answers (default {TIME_LIMIT:g}); after {MOST_TIMEOUTS} "
    f"that took longer, or {MOST_LIMITS} times that limit in all, the rest of an item's answers "
    "compare as text"
)


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("vote", description=DESCRIPTION)
    sample_files.add_flags(parser, "-confidence-borda-power-P-N-kl[-timeS][-firstN]")
    sample_files.add_best_n(parser, Settings().best_n)
    parser.add_argument(
        "--power",
        type=float,
        default=Settings().power,
        metavar="P",
        help=f"of the ranks' votes (default {Settings().power})",
    )
    advanced(
        parser,
        "--time-limit",
        type=float,
        default=TIME_LIMIT,
        metavar="SECONDS",
        help=TIME_HELP,
    )
    sample_files.add_answer_rule(parser)
    sample_files.add_gold(parser)
    sample_files.add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = selection.load(args.input, args.best_N, args.limit, args.answer_rule, args.gold)
    n = selection.available(items) or args.best_N
    suffix = f"-confidence-borda-power-{args.power}-{n}-kl"
    if args.time_limit != TIME_LIMIT:
        suffix += f"-time{args.time_limit:g}"
    output = sample_files.chosen_path(args, suffix)
    return sample_files.choose(
        "vote",
        args,
        items,
        output,
        selection.FALLBACKS,
        best_n=args.best_N,
        power=args.power,
        time_limit=args.time_limit,
    )

"""`jaxscore usc-select`: the response that universal self-consistency chose."""

import argparse

from jaxscore.cli import sample_files
from jaxscore.systems.samples import usc_choice

OPEN = "open"

DESCRIPTION = """\
For each question keep the response that the model's reply calls the most
consistent (universal self-consistency, arXiv 2311.17311).

input, a JSON array as `usc-generate` writes it; responses are numbered from 0:
  [{"id": 0, "output": ["The most consistent response is Response 1"],
    "responses": ["{\\"answer\\": 41}", "{\\"answer\\": 42}", "{\\"answer\\": 42}"]}]

The last `Response k` of the reply counts. Without one, or with a k that does
not exist, response 0 is kept. --dataset-type close is for questions with a
fixed answer: where the chosen response has no extractable answer, the first
response with one is kept instead.

output, the same items with
  output        the chosen response, in a list
  fallback      why, where the reply did not decide; counted apart:
    none_named    the reply names no response
    out_of_range  the reply names a response that does not exist
    no_answer     the response that the reply names has no extractable answer
                  (--dataset-type close)
  answer_form   with --dataset-type close, of an item that is not read as
                published, as in `select`
  Beside OUT lies OUT.run.json. The default name has -close with --dataset-type
  close and -firstN with --limit N.

--gold FIELD grades the choices. FIELD of each item holds the right answer, a
list of acceptable answers, or a list of true or false for each response. Items
get `right` (null without gold); the share of right choices among the first 1,
2, 4, ... N responses is printed beside the first sample's, a majority vote's
and an oracle's, and is in OUT_report.md, OUT_report.json and, for a browser,
OUT_report.html (OUT.report.md where OUT does not end in .json). If no response
has a readable answer, there is no share, and the exit code is 1.

exit code: 0 all decided or by fallback, 1 some items failed (they hold
           `error`) or nothing could be graded, 2 unusable input or no usable
           item; nothing is written.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("usc-select", description=DESCRIPTION)
    sample_files.add_flags(parser, "-usc[-close][-firstN]")
    parser.add_argument(
        "--dataset-type",
        choices=usc_choice.DATASET_TYPES,
        default=OPEN,
        help="close: the answers are extractable, so one without is not kept (default open)",
    )
    sample_files.add_answer_rule(parser)
    sample_files.add_gold(parser)
    sample_files.add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = usc_choice.load(args.input, args.limit)
    output = sample_files.chosen_path(
        args, "-usc" if args.dataset_type == OPEN else f"-usc-{args.dataset_type}"
    )
    return sample_files.choose(
        "usc-select", args, items, output, usc_choice.FALLBACKS, dataset_type=args.dataset_type
    )

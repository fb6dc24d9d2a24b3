"""`jaxscore usc-select`: the response that universal self-consistency chose."""

import argparse

from jaxscore.commands import sample_files
from jaxscore.files.atomic import atomic
from jaxscore.tasks.samples import usc_choice

DESCRIPTION = """\
For each question read which response the model called the most consistent (universal
self-consistency, arXiv 2311.17311), and keep that one.

input, a JSON array as `usc-generate` writes it; responses are numbered from 0:
  [{"id": 0, "output": ["The most consistent response is Response 1"],
    "responses": ["{\\"answer\\": 41}", "{\\"answer\\": 42}", "{\\"answer\\": 42}"]}]

The last `Response k` of the reply counts; without one, or with a k that is not there, it is
response 0. With --dataset-type close, for questions with a fixed answer, a chosen response
without an extractable answer gives way to the first one with an answer.

output: the same items with `output` the chosen response in a list.

exit code: 0 all decided, 1 some items failed (they hold `error`), 2 unusable input.
"""
NO_ANSWER = "without any extractable answer in any response: as the reply chose"


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "usc-select",
        help="the response that universal self-consistency chose",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sample_files.add_flags(parser, "-usc")
    parser.add_argument(
        "--dataset-type",
        choices=usc_choice.DATASET_TYPES,
        default="open",
        help="close: the answers are extractable, so one without is not kept (default open)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = usc_choice.load(args.input_file)
    output = sample_files.output_path(args, "-usc")
    with atomic(output) as file:
        results = usc_choice.evaluate(items, args.dataset_type)
        sample_files.write(file, results)
    unanswered = NO_ANSWER if args.dataset_type == "close" else ""
    return sample_files.tell(args, results, output, unanswered)

"""`jaxscore select`: the response that the model was most certain of."""

import argparse

from jaxscore.commands import sample_files
from jaxscore.files.atomic import atomic
from jaxscore.tasks.samples import selection

DESCRIPTION = """\
For each question keep one of the first N responses: the one with the highest self-certainty among
those with an extractable answer (best-of-N selection, arXiv 2502.18581).

input, a JSON array as `self-certainty` writes it:
  [{"id": 0, "generator": "meta-llama/Llama-3.1-8B-Instruct", "dataset": "gsm",
    "output": ["{\\"reasoning\\": \\"…\\", \\"answer\\": \\"42\\"}", "I do not know"],
    "confidence_list": [12.3, 19.8]}]

An answer is, tried in this order, the `answer` of the first JSON object in the response, what
follows "answer": in it, and for Llama-3.1 generators a \\boxed{…} near its end.

output: the same items with `output` the chosen response in a list and `confidence` its value.
Where no response has an answer the first is kept, at -1e9 as published. A response that is null
has no answer; a confidence that is null ranks last. Where `confidence_settings` say the `noise`
(`self-certainty --audit-noise`), `within_noise` tells whether a response with another answer is
less certain by no more than twice that.

exit code: 0 all decided, 1 some items failed (they hold `error`), 2 unusable input.
"""
NO_ANSWER = "without any extractable answer: the first response, confidence -1e9"


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "select",
        help="best-of-N by self-certainty",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sample_files.add_flags(parser, "-confidence-N")
    sample_files.add_best_n(parser, 4)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = selection.load(args.input_file, args.best_N)
    n = selection.available(items) or args.best_N
    output = sample_files.output_path(args, f"-confidence-{n}")
    with atomic(output) as file:
        results = selection.evaluate_select(items)
        sample_files.write(file, results)
    return sample_files.tell(args, results, output, NO_ANSWER)

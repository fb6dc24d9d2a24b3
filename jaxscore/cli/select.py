"""`jaxscore select`: the response that the model was most certain of."""

import argparse

from jaxscore.cli import sample_files
from jaxscore.systems.samples import selection
from jaxscore.systems.samples.evaluations.select import Settings

DESCRIPTION = """\
For each question keep one of the first N responses: the one with the highest
self-certainty among those with an extractable answer (best-of-N selection,
arXiv 2502.18581).

input, a JSON array as `self-certainty` writes it:
  [{"id": 0, "generator": "meta-llama/Llama-3.1-8B-Instruct", "dataset": "gsm",
    "output": ["{\\"reasoning\\": \\"…\\", \\"answer\\": \\"42\\"}", "I do not know"],
    "confidence_list": [12.3, 19.8]}]

A response is read as published in items of a Llama-3.1 generator, of the
dataset crux, and with a response that holds "answer": (with --gold, if all do).
Its answer is then the first of: `answer` of the first JSON object; the text
after "answer":; for Llama-3.1 generators a \\boxed{…} near the end.
In other items it is the first of: JSON as above (json), the last \\boxed{…}
(boxed), what follows `answer:` (answer) and, if the gold is a number, the last
number (number). So --gold can change the choice, and not its grade alone.
--answer-rule names one way for all items.

output, the same items with
  output        the chosen response, in a list
  confidence    its self-certainty
  within_noise  where `confidence_settings` hold `noise` (`self-certainty
                --audit-noise`): whether a response with another answer is less
                certain by no more than twice that
  answer_form   of an item that is not read as published: json, boxed, answer,
                number, or null without a readable answer
  Where no response has an answer, the first one is kept, at -1e9 as published;
  where none with an answer has a confidence, the first of them, at null. These
  fallbacks are counted apart. A response that is null has no answer; a
  confidence that is null ranks last.
  N and what it leaves out are printed. Beside OUT lies OUT.run.json. The
  default name has -firstN with --limit N.

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
    parser = subparsers.add_parser("select", description=DESCRIPTION)
    sample_files.add_flags(parser, "-confidence-N[-firstN]")
    sample_files.add_best_n(parser, Settings().best_n)
    sample_files.add_answer_rule(parser)
    sample_files.add_gold(parser)
    sample_files.add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = selection.load(args.input, args.best_N, args.limit, args.answer_rule, args.gold)
    n = selection.available(items) or args.best_N
    output = sample_files.chosen_path(args, f"-confidence-{n}")
    return sample_files.choose(
        "select", args, items, output, selection.FALLBACKS, best_n=args.best_N
    )

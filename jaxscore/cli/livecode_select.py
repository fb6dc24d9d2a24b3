"""`jaxscore livecode-select`: the code that the model was most certain of."""

import argparse

from jaxscore.cli import sample_files
from jaxscore.systems.samples import livecode
from jaxscore.systems.samples.evaluations.livecode_select import Settings

DESCRIPTION = """\
For each problem take the response with the highest self-certainty among the
first N, with or without code in it, and write its code for LiveCodeBench.

input, a JSON array as `self-certainty` writes it:
  [{"question_id": "abc301_a", "confidence_list": [14.2, 17.9],
    "output": ["Use a loop:\\n```python\\nprint(1)\\n```",
               "```python\\nprint(2)\\n```"]}]

output, the response's ```python blocks, stripped and joined by a blank line:
  [{"question_id": "abc301_a", "code_list": ["print(2)"]}]
  N and what it leaves out are printed. Beside OUT lies OUT.run.json. The
  default name has -firstN with --limit N.

--gold FIELD grades the choices. FIELD of each item holds a list of true or
false for each response, as a run of its code has shown. Items get `right` (null
without gold); the share of right choices among the first 1, 2, 4, ... N
responses is printed beside the first sample's and an oracle's, and is in
OUT_report.md, OUT_report.json and, for a browser, OUT_report.html
(OUT.report.md where OUT does not end in .json).

exit code: 0 all written, 1 some items failed (they hold `error`, and no code),
           2 unusable input or no usable item; nothing is written.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("livecode-select", description=DESCRIPTION)
    sample_files.add_flags(parser, "-livecode-N[-firstN]")
    sample_files.add_best_n(parser, Settings().best_n)
    sample_files.add_gold(parser)
    sample_files.add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = livecode.load(args.input, args.limit)
    output = sample_files.chosen_path(args, f"-livecode-{args.best_N}")
    return sample_files.choose("livecode-select", args, items, output, best_n=args.best_N)

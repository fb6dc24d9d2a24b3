"""`jaxscore livecode-parse`: the code in the first response."""

import argparse

from jaxscore.cli import sample_files
from jaxscore.systems.samples import livecode

DESCRIPTION = """\
Write the code of each problem's first response for LiveCodeBench. Confidences
are not read: this is for greedy outputs, and for files that another step has
selected already.

input, a JSON array:
  [{"question_id": "abc301_a",
    "output": ["Use a loop:\\n```python\\nprint(1)\\n```"]}]

output, the response's ```python blocks, stripped and joined by a blank line:
  [{"question_id": "abc301_a", "code_list": ["print(1)"]}]
  Beside OUT lies OUT.run.json. The default name has -firstN with --limit N.

exit code: 0 all written, 1 some items failed (they hold `error`, and no code),
           2 unusable input or no usable item; nothing is written.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("livecode-parse", description=DESCRIPTION)
    sample_files.add_flags(parser, "-livecode[-firstN]")
    sample_files.add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = livecode.load(args.input, args.limit)
    output = sample_files.chosen_path(args, "-livecode")
    return sample_files.choose("livecode-parse", args, items, output)

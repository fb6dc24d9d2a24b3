"""`jaxscore livecode-select`: the code that the model was most certain of."""

import argparse

from jaxscore.commands import sample_files
from jaxscore.files.atomic import atomic
from jaxscore.tasks.samples import livecode

DESCRIPTION = """\
For each problem take the response with the highest self-certainty among the first N, whether or
not there is code in it, and write its code for LiveCodeBench.

input, a JSON array as `self-certainty` writes it:
  [{"question_id": "abc301_a", "confidence_list": [14.2, 17.9],
    "output": ["Use a loop:\\n```python\\nprint(1)\\n```", "```python\\nprint(2)\\n```"]}]

output, with the ```python blocks of the response stripped and joined by a blank line:
  [{"question_id": "abc301_a", "code_list": ["print(2)"]}]

exit code: 0 all written, 1 some items failed (they hold `error`, and no code), 2 unusable input.
"""
NO_CODE = "without a Python block in the chosen response: empty code"


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "livecode-select",
        help="best-of-N code by self-certainty, for LiveCodeBench",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sample_files.add_flags(parser, "-livecode-N")
    sample_files.add_best_n(parser, 16)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = livecode.load(args.input_file)
    output = sample_files.output_path(args, f"-livecode-{args.best_N}")
    with atomic(output) as file:
        results = livecode.evaluate_select(items, args.best_N)
        sample_files.write(file, results)
    return sample_files.tell(args, results, output, NO_CODE)

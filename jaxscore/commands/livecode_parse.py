"""`jaxscore livecode-parse`: the code in the first response."""

import argparse

from jaxscore.commands import sample_files
from jaxscore.files.atomic import atomic
from jaxscore.tasks.samples import livecode

DESCRIPTION = """\
Write the code of each problem's first response for LiveCodeBench. Confidences are not looked at:
this is for greedy outputs, and for files that another step has selected already.

input, a JSON array:
  [{"question_id": "abc301_a", "output": ["Use a loop:\\n```python\\nprint(1)\\n```"]}]

output, with the ```python blocks of the response stripped and joined by a blank line:
  [{"question_id": "abc301_a", "code_list": ["print(1)"]}]

exit code: 0 all written, 1 some items failed (they hold `error`, and no code), 2 unusable input.
"""
NO_CODE = "without a Python block in the first response: empty code"


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "livecode-parse",
        help="code of the first response, for LiveCodeBench",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sample_files.add_flags(parser, "-livecode")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    items = livecode.load(args.input_file)
    output = sample_files.output_path(args, "-livecode")
    with atomic(output) as file:
        results = livecode.evaluate_parse(items)
        sample_files.write(file, results)
    return sample_files.tell(args, results, output, NO_CODE)

"""`jaxscore usc-generate`: a model's own choice between its responses."""

import argparse
import re
from typing import Any

from jaxscore.cli import model_flags, sample_files, written_texts
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.resumed_output import model_facts, tell_continued
from jaxscore.errors import InputError
from jaxscore.io.items import read_previous_output
from jaxscore.io.local_path import local_path
from jaxscore.systems.samples import usc_prompt as task
from jaxscore.systems.samples.evaluations.usc_generate import Settings, Work, made_with

DESCRIPTION = """\
Show a model several of its responses to a question and ask which is the most
consistent (universal self-consistency, arXiv 2311.17311).

input, a .json array, or a table (see --input) with these columns:
  [{"chat_history": ["How many days?"],
    "output": ["first response", "second", "third"]}]
  The question is the first text of `chat_history`, else `model_input` or
  `input`; of a published prompt only the part between its headings.

prompt, in the model's chat template:
  I have generated the following responses to the question: How many days?
  Response 0: first response

  Response 1: second

  Evaluate these responses.
  Select the most consistent response based on majority consensus.
  Format your answer as "The most consistent response is Response X" (without
  quotes).
  (The last two lines are one line of the prompt.)

output, the same items with
  output        the reply, in a list
  responses     the first N of the item's `output`
  chat_history  the prompt, in a list
  model_input   the prompt as the model reads it
  generator     the model
  configs       what it generated with
  Beside OUT lies OUT.run.json: what made it, and how many items failed.

The file grows while the command runs, and the same command continues it.

  python -m jaxscore usc-generate --input samples.json --model NAME -n 8
  python -m jaxscore usc-select --input samples-consistency-8.json

exit code: 0 all have a reply, 1 some items failed (they hold `error`),
           2 unusable input or no reply at all; nothing is written.
"""


class _Published(argparse.Action):
    """Reads the input and N from `usc-N-FILE`, the data set of the published command line."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        found = re.fullmatch(r"usc-([1-9][0-9]{0,8})-(.+)", values)
        if found is None:
            problem = f"{values}: expected usc-N-FILE, such as usc-8-samples.json"
            raise argparse.ArgumentError(self, problem)
        try:
            namespace.published = int(found.group(1)), local_path(found.group(2))
        except InputError as problem:
            raise argparse.ArgumentError(self, str(problem)) from None
        for name, value in zip(("n", "input"), namespace.published, strict=True):
            if getattr(namespace, name) is None:
                setattr(namespace, name, value)
        for action in parser._actions:
            action.required = action.required and action.dest not in ("n", "input")


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("usc-generate", description=DESCRIPTION)
    sample_files.add_flags(parser, "-consistency-N")
    parser.add_argument(
        "-n",
        "--best-N",
        required=True,
        dest="n",
        type=model_flags.positive,
        metavar="N",
        help="choose between the first N responses; an item with fewer has all of them shown",
    )
    advanced(
        parser,
        "-d",
        "--data-name",
        action=_Published,
        dest="published",
        default=argparse.SUPPRESS,
        metavar="usc-N-FILE",
        help="the same as -n N --input FILE, as the published script spells it",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=model_flags.positive,
        default=1024,
        metavar="N",
        help="a reply ends there at the latest (default 1024)",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0 is greedy (default), above it draws"
    )
    advanced(
        parser,
        "--top-p",
        type=float,
        default=1.0,
        help="with --temperature: draw from the most probable tokens of this much probability",
    )
    model_flags.add_model_flags(parser, audited=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.truncate:
        raise InputError(
            "--truncate left: a prompt without its beginning has lost responses; show fewer of "
            "them with -n"
        )
    n, path = vars(args).pop("published", (args.n, args.input))
    if (args.n, args.input) != (n, path):
        raise InputError(
            f"-d says -n {n} --input {path}, beside it -n {args.n} --input {args.input} is given; "
            "give -d alone, or -n and --input"
        )
    given = {
        "n": args.n,
        "max_new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.seed,
    }
    settings = Settings(**given)
    output = sample_files.output_path(args, f"-consistency-{args.n}")
    items = task.load(args.input, args.n, args.limit)
    previous, facts = read_previous_output(output), model_facts(args, args.model)
    replies, n_changed = task.resume(items, previous, made_with(facts, settings), output)
    if args.dtype != "auto":  # which depends on the device, so the scorer says it later
        task.check_dtype(items, replies, args.dtype, output)
    tell_continued(args, output, len(previous), n_changed)
    n_before = sum(record is not None for record in replies)
    work = Work(items, replies, len(previous), facts, output)
    return written_texts.write(
        args, work, output, "items", given, lambda _: {"replies_from_before": n_before}
    )

"""`jaxscore sample`: many responses of a model to each prompt."""

import argparse
from pathlib import Path
from typing import Any

from jaxscore.cli import model_flags, sample_files, table_flags, written_texts
from jaxscore.cli.resumed_output import model_facts, tell_continued
from jaxscore.errors import InputError
from jaxscore.evaluate import Report
from jaxscore.io.items import read_previous_output
from jaxscore.systems.samples import prompts
from jaxscore.systems.samples import sampling as task
from jaxscore.systems.samples.evaluations.sample import Settings, Work, made_with

DESCRIPTION = """\
Write n responses of a model to each prompt. The output is what self-certainty
and usc-generate read. The samples of a prompt share its computation.

input, one object per line, or a table (see --input), with a prompt or a
conversation each:
  {"id": "a", "prompt": "How many days has a leap year?", "answer": "366"}
  {"id": "b", "messages": [{"role": "user", "content": "Who ran?"}]}
  `messages` need --apply-chat-template, which makes a user's message of a
  `prompt` too. `id` defaults to the line's number. Other fields go into the
  output as they are: with a right answer there, --gold measures what follows.

output, a JSON array of the same items with
  chat_history  the prompt, or the messages without the system's, as texts
  model_input   the text that the model reads, special tokens included
  output        n responses, without the token that ended them
  finish        what ended each: eos, stop (a --stop string), or length
                (--max-new-tokens, or the end of the model's positions)
  generator     the model
  configs       what it sampled with
  Beside OUT lies OUT.run.json: what made it, and how many prompts failed.

Each sample has a seed of its own, made of --seed, the item's prompt and id, and
the sample's number: other items and a higher n leave it as it is. Rounding
depends on what is written side by side and may, rarely, turn a token; with
--reproducible nothing does.

The file grows while the command runs. The same command continues it, also with
a higher n.

  python -m jaxscore sample --model M --input p.jsonl -n 16 --output s.json
  python -m jaxscore self-certainty --input s.json --gold answer
  python -m jaxscore vote --input s-confidence-list.json --gold answer

exit code: 0 all have n samples, 1 some prompts failed (they hold `error`),
           2 unusable input or no samples at all; nothing is written.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("sample", description=DESCRIPTION)
    table_flags.add_input(parser, "prompts:", prompts.FIELDS)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON (default: beside the input, its name with -samples-N)",
    )
    model_flags.add_limit_flag(parser, "prompts")
    parser.add_argument(
        "-n", required=True, type=model_flags.positive, metavar="N", help="samples of each prompt"
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=Settings.temperature,
        metavar="T",
        help=f"the logits are divided by it (default {Settings.temperature}); 0 is greedy, with -n "
        "1 alone",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=Settings.top_p,
        metavar="P",
        help="draw from the most probable tokens of this much probability (default 1: all)",
    )
    parser.add_argument(
        "--top-k",
        type=model_flags.count,
        default=Settings.top_k,
        metavar="K",
        help="draw from this many most probable tokens (default 0: all)",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=model_flags.positive,
        default=Settings.max_new_tokens,
        metavar="N",
        help=f"a sample ends there at the latest (default {Settings.max_new_tokens})",
    )
    parser.add_argument(
        "--stop",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="a sample ends before the first of these texts",
    )
    parser.add_argument(
        "--apply-chat-template",
        action="store_true",
        help="the model reads the prompts as the tokenizer's chat template writes them",
    )
    parser.add_argument(
        "--system",
        dest="system_prompt",
        metavar="TEXT",
        help="with --apply-chat-template: a system message before each prompt",
    )
    model_flags.add_model_flags(parser, audited=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.truncate:
        raise InputError(
            "--truncate left: a prompt without its beginning asks something else; shorten it"
        )
    names = (
        "n", "max_new_tokens", "temperature", "top_p", "top_k", "stop", "seed",
        "apply_chat_template", "system_prompt",
    )  # fmt: skip
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    settings = Settings(**given)
    output = sample_files.output_path(args, f"-samples-{args.n}")
    known = prompts.load(
        args.input,
        args.seed,
        args.limit,
        table_flags.columns(args.column, prompts.FIELDS),
    )
    previous, facts = read_previous_output(output), model_facts(args, args.model)
    samples, n_changed = task.resume(known, previous, args.n, made_with(facts, settings), output)
    if args.dtype != "auto":  # which depends on the device, so the scorer says it later
        task.check_dtype(known, samples, args.dtype, output)
    tell_continued(args, output, len(previous), n_changed)
    n_before = sum(len(one.texts) for one in samples if one is not None)
    work = Work(known, samples, args.n, len(previous), facts, output)

    def further(report: Report) -> dict[str, Any]:
        counts = {k: n for k, n in report.summary.items() if k.startswith("n_ended")}
        return {"samples_from_before": n_before, **counts}

    return written_texts.write(args, work, output, "prompts", given, further)

"""`jaxscore usc-generate`: a model's own choice between its responses."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.commands import shared
from jaxscore.commands.resumed_output import interrupted, tell_continued
from jaxscore.errors import InputError
from jaxscore.files.growing import GrowingArray
from jaxscore.files.item_files import read_previous
from jaxscore.generator import Generator
from jaxscore.tasks.samples import usc_prompt as task
from jaxscore.text import chat_template

ASKED_TOGETHER = 128  # items between two chances to write what there is

DESCRIPTION = """\
Show a model several of its responses to a question and ask which is the most consistent
(universal self-consistency, arXiv 2311.17311).

input, a .json array, or a .parquet table with these columns:
  [{"chat_history": ["How many days?"], "output": ["first response", "second", "third"]}]
  The question is the first of `chat_history`, between the headings of the published prompts if it
  has them; else `model_input` or `input`.

prompt, in the model's chat template:
  I have generated the following responses to the question: How many days?
  Response 0: first response

  Response 1: second

  Evaluate these responses.
  Select the most consistent response based on majority consensus.
  Format your answer as "The most consistent response is Response X" (without quotes).

output, the same items with
  output        [the reply]       responses    the first N of the item's `output`
  chat_history  [the prompt]      model_input  the prompt as the model reads it
  generator     the model         configs      what it generated with

The file grows while the command runs, and the same command goes on where it ended.

  jaxscore usc-generate --input-file samples.json --model NAME -n 8
  jaxscore usc-select --input-file samples-consistency-8.json

exit code: 0 all have a reply, 1 some items failed (they hold `error`), 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "usc-generate",
        help="ask a model which of its responses is the most consistent",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--input-file", required=True, type=Path, metavar="FILE", help="items, .json or .parquet"
    )
    parser.add_argument(
        "--output-file",
        type=Path,
        metavar="FILE",
        help="JSON of items with replies (default: INPUT-consistency-N.json beside it)",
    )
    parser.add_argument(
        "-n",
        "--best-N",
        required=True,
        dest="n",
        type=shared.positive,
        metavar="N",
        help="choose between the first N responses; an item with fewer has all of them shown",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=shared.positive,
        default=1024,
        metavar="N",
        help="a reply ends there at the latest (default 1024)",
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0 is greedy (default), above it draws"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="draw from the likeliest tokens of so much mass"
    )
    shared.add_model_flags(parser, audited=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not (0 <= args.temperature < float("inf") and 0 < args.top_p <= 1):
        raise InputError(
            f"--temperature {args.temperature} --top-p {args.top_p}: expected 0 or more, and "
            "above 0 up to 1"
        )
    if args.truncate:
        raise InputError(
            "--truncate left: a prompt without its beginning has lost responses; show fewer of "
            "them with -n"
        )
    output = args.output_file or task.default_output(args.input_file, args.n)
    shared.check_output(output, args.input_file, flag="--output-file")
    items = task.load(args.input_file, args.n)
    settings = {
        "generator": args.model,
        "revision": args.revision,
        "lora": None if args.lora is None else str(args.lora),
        "quantize": args.quantize,
        "reproducible": args.reproducible or None,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "max_tokens": args.max_new_tokens,
        "seed": args.seed if args.temperature else None,
    }
    previous = read_previous(output)
    records, n_changed = task.resume(items, previous, settings, output)
    if args.dtype != "auto":  # which depends on the device, so the scorer says it later
        task.check_dtype(items, records, args.dtype, output)
    for item in items:
        if item.error:
            records[item.index] = task.failed(item, item.error)
    asked = [item for item in items if records[item.index] is None]
    tell_continued(args, output, len(previous), n_changed)
    growing = GrowingArray(output, lambda: task.finished(items, records, len(previous)))
    try:
        with growing.open():
            if asked:
                _generate(args, items, records, settings, growing)
    except KeyboardInterrupt:
        return interrupted(args, growing)
    summary = task.summarise(items, [record for record in records if record is not None])
    print(f"{summary.n_items} items, {summary.n_replies} with a reply")
    print(f"{'nothing was left to do in' if previous and not asked else 'written to'} {output}")
    return shared.tell_failures(summary.failures)


def _generate(
    args: argparse.Namespace,
    items: Sequence[task.Item],
    records: list[dict[str, Any] | None],
    settings: dict[str, Any],
    growing: GrowingArray,
) -> None:
    """Ask for replies, and let the output grow with them."""
    scorer = shared.load_scorer(args, args.model, growing.path)
    settings["dtype"] = scorer.model.dtype
    task.check_dtype(items, records, scorer.model.dtype, growing.path)
    generator, tokenizer = Generator(scorer), scorer.encoder.tokenizer
    started, n_cut, n_tokens = time.perf_counter(), 0, 0
    usable = [item for item in items if not item.error]
    for k in range(0, len(usable), ASKED_TOGETHER):
        # The same items together as in a run from the beginning, so that a reply has the same
        # neighbours, and with them the same last bits, whatever an earlier run has left.
        together = usable[k : k + ASKED_TOGETHER]
        missing = [item for item in together if records[item.index] is None]
        if not missing:
            continue
        if scorer.journal is None:  # which has what is not missing
            together = missing
        rendered = [
            chat_template.render(tokenizer, [{"role": "user", "content": item.prompt}])
            for item in together
        ]
        found = generator.generate(
            task.requests(
                together,
                rendered,
                max_new_tokens=args.max_new_tokens,
                temperature=args.temperature,
                top_p=args.top_p,
                seed=args.seed,
            )
        )
        for item, text, one in zip(together, rendered, found, strict=True):
            if records[item.index] is not None:
                continue
            records[item.index] = task.evaluate(item, text, one, settings)
            n_cut += one.finish == "length"
            n_tokens += len(one.token_ids)
        growing.offer()
    seconds = time.perf_counter() - started
    shared.write_manifest(args, scorer, seconds, growing.path)
    shared.remark(args, f"{n_tokens} tokens written in {seconds:.1f} s")
    if scorer.journal is not None:
        n_restored, n_asked = scorer.sequences_restored, scorer.sequences
        shared.remark(args, f"{n_restored} of {n_asked} replies were in the journal")
    if n_cut:
        shared.remark(args, f"{n_cut} replies ended at the limit, not by themselves")

"""`jaxscore self-certainty`: a confidence for each of many outputs."""

import argparse
import collections
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from jaxscore.commands import shared
from jaxscore.commands.resumed_output import interrupted, tell_continued
from jaxscore.engine.noise import Draw, Noise, OtherLayouts
from jaxscore.errors import InputError
from jaxscore.files.growing import GrowingArray
from jaxscore.files.item_files import read_previous
from jaxscore.scorer import WINDOW
from jaxscore.tasks.samples import confidences as task

CHARACTERS_PER_TOKEN = 3
BATCHES_TOGETHER = 64  # planned at once: few enough that results reach the file soon

DESCRIPTION = """\
How certain was the model of each of its outputs? The mean over an output's tokens of how far the
model's prediction is from uniform: -1/(nV) sum log(V p(j | x, y<i)), in nats.

input, a .json array, or a .parquet table with these columns:
  [{"model_input": "Question: ...", "output": ["first response", "second"], "generator": "MODEL"}]
  `input` is read where `model_input` is absent; the model is the first item's `generator` where
  --model-name is not given. Prompt and output are encoded apart and no special token is added,
  so the input is the text as the model saw it, its chat template's tokens included.

output, the same items with
  confidence_list      one number an output; null where it has none (no tokens, no text, too long
                       for the model's positions), which `confidence_errors` then explains
  processed_index      from 0
  confidence_settings  model, alignment, dtype, the names of the two fields, `truncate` where the
                       input was cut, and with --audit-noise `noise`: how far, in nats, rounding
                       moves a confidence, by which `select` and `vote` mark what it could turn

The file grows while the command runs. Started again, it goes on: outputs with a confidence are
not scored again, those without are. An item whose input or outputs have changed is scored anew.
A file that the published script has left half done is continued as well. That script reads every
prediction one token late (--alignment upstream) and cuts long texts without a word.

  jaxscore self-certainty --input-file samples.json       writes samples-confidence-list.json

exit code: 0 all scored, 1 some outputs have no confidence, 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "self-certainty",
        help="confidence of each of many outputs, to choose between them",
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
        help="JSON of items with confidences (default: INPUT-confidence-list.json beside it)",
    )
    parser.add_argument(
        "--model-name",
        "--model",
        metavar="NAME",
        help="a local Hugging Face folder, a hub id, or `demo` (default: the first `generator`)",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    shared.add_lora_flag(parser)
    parser.add_argument(
        "--input-field-name", default=task.INPUT_FIELD, metavar="NAME", help="default: model_input"
    )
    parser.add_argument(
        "--output-field-name", default=task.OUTPUT_FIELD, metavar="NAME", help="default: output"
    )
    parser.add_argument(
        "--alignment",
        choices=tuple(task.ALIGNMENTS),
        default="formula",
        help="formula: the prediction of each token, made before it (default); upstream: the one "
        "made after it, as the published script counts",
    )
    parser.add_argument(
        "--batch-size",
        type=shared.positive,
        metavar="N",
        help="of no effect, taken since the published script has it; see --batch-tokens",
    )
    shared.add_model_flags(parser, model_required=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    output = args.output_file or task.default_output(args.input_file)
    if output.suffix.lower() == ".parquet":
        raise InputError(f"--output-file {output}: the output is JSON; give a name ending in .json")
    shared.check_output(output, args.input_file, flag="--output-file")
    items = task.load(args.input_file, args.input_field_name, args.output_field_name)
    model = _model(args, items)
    settings = {
        "model": model,
        "revision": args.revision,
        "lora": None if args.lora is None else str(args.lora),
        "quantize": args.quantize,
        "reproducible": args.reproducible or None,
        "alignment": args.alignment,
        "input_field": args.input_field_name,
        "output_field": args.output_field_name,
    }
    if not args.truncate:  # a run that may cut inputs goes on with whole ones, not the reverse
        settings["truncate"] = None
    if args.dtype != "auto":  # which depends on the device, so the scorer says it later
        settings["dtype"] = args.dtype
    previous = read_previous(output)
    confidences, n_changed = task.resume(items, previous, output)
    task.check_settings(items, confidences, settings, output)
    wanted, n_previous = task.missing(confidences), len(previous)
    del previous  # as large as the input
    tell_continued(args, output, n_previous, n_changed)
    if n_unknown := task.n_of_unknown_origin(confidences):
        shared.remark(
            args,
            f"{n_unknown} of them do not say how they were computed and are kept as they are; the "
            "published script computes in half precision and as --alignment upstream does",
        )
    growing = GrowingArray(output, lambda: task.evaluate(items, confidences, n_previous))
    noise = None
    try:
        with growing.open():
            if wanted:
                noise = _score(args, items, confidences, wanted, settings, growing)
    except KeyboardInterrupt:
        return interrupted(args, growing)
    summary = task.summarise(items, confidences)
    print(text(summary))
    shared.tell_noise(args, noise)
    print(f"{'nothing was left to do in' if n_previous and not wanted else 'written to'} {output}")
    return shared.tell_failures(summary.failures)


def _model(args: argparse.Namespace, items: Sequence[task.Item]) -> str:
    """The flag's, else what the first item names.

    Raises:
        InputError: neither.
    """
    named = [item.given.get("generator") for item in items]
    if args.model_name:
        return args.model_name
    if not isinstance(named[0], str):
        raise InputError(
            f'{args.input_file}: {items[0].name} has no string "generator" that names the model; '
            "give --model-name"
        )
    if others := sum(name != named[0] for name in named):
        shared.remark(
            args, f"{others} items name another generator; all are scored with {named[0]}"
        )
    return named[0]


def _score(
    args: argparse.Namespace,
    items: Sequence[task.Item],
    confidences: Sequence[task.Confidence],
    wanted: Sequence[tuple[int, int]],
    settings: dict[str, Any],
    growing: GrowingArray,
) -> Noise | None:
    """Fill in what is wanted, and let the output grow with it; the noise, if it is asked for."""
    scorer = shared.load_scorer(args, settings["model"], growing.path)
    settings["dtype"] = scorer.model.dtype
    task.check_settings(items, confidences, settings, growing.path)
    draw = Draw(args.audit_noise, args.seed)
    boundary = task.ALIGNMENTS[args.alignment]
    started, n_cut = time.perf_counter(), 0
    every, missing = task.scorable(confidences), {*wanted}
    window = _window(items, every, scorer.batch_tokens)
    # What is not missing costs nothing where the journal has it.
    asked = wanted if scorer.journal is None else _whole_windows(every, missing, window)
    stream = scorer.stream(
        draw.watch(task.requests(items, asked)),
        boundary=boundary,
        truncate=args.truncate,
        special_tokens=False,
        window=window,
        n_requests=len(asked),
    )
    for (k, place), scored in zip(asked, draw.results(stream), strict=True):
        if (k, place) not in missing:
            continue
        confidences[k].take(place, scored, settings)
        n_cut += scored.truncated > 0
        if not confidences[k].missing:
            growing.offer()
    seconds = time.perf_counter() - started
    noise = OtherLayouts(scorer).scores(
        draw.pairs, boundary=boundary, truncate=args.truncate, special_tokens=False
    )
    if noise is not None:
        task.note_noise(confidences, noise.spread["mean_self_certainty"].largest)
    n_before = len(every) - len(missing)
    shared.write_manifest(args, scorer, seconds, growing.path, noise, outputs_from_before=n_before)
    shared.tell_run(args, scorer, seconds)
    if n_cut:
        shared.remark(args, f"{n_cut} outputs were scored after an input cut at its left")
    return noise


def _whole_windows(
    every: Sequence[tuple[int, int]], missing: Set[tuple[int, int]], window: int
) -> list[tuple[int, int]]:
    """The windows of a run from the beginning in which something is missing.

    So what is missing has the same neighbours, and with them the same last bits, as in a run that
    was left alone; the journal has what is not missing.
    """
    windows = (every[first : first + window] for first in range(0, len(every), window))
    return [one for own in windows if not missing.isdisjoint(own) for one in own]


def _window(
    items: Sequence[task.Item], wanted: Sequence[tuple[int, int]], batch_tokens: int
) -> int:
    """How many outputs to plan together: about `BATCHES_TOGETHER` batches of text.

    Results come back a window at a time, so it bounds what an interruption costs; outputs of one
    item share its input within a window.
    """
    per_item = collections.Counter(k for k, _ in wanted)
    characters = sum(len(items[k].context) for k in per_item)
    characters += sum(len(items[k].outputs[place]) for k, place in wanted)
    at_most = BATCHES_TOGETHER * batch_tokens * CHARACTERS_PER_TOKEN
    fitting = int(at_most * len(wanted) / max(1, characters))
    return min(WINDOW, max(fitting, *per_item.values()))


def text(summary: task.Summary) -> str:
    """Counts and the mean, for people."""
    if summary.mean is None:
        return f"{summary.n_items} items, {summary.n_outputs} outputs, none has a confidence"
    return (
        f"{summary.n_items} items, {summary.n_outputs} outputs, {summary.n_scored} with a "
        f"confidence\nMean self-certainty: {summary.mean:.6g} nats"
    )

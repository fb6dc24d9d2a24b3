"""`jaxscore self-certainty`: a confidence for each of many outputs."""

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, model_flags, outputs, sample_files
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.resumed_output import interrupted, model_facts, tell_continued
from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.items import read_previous_output
from jaxscore.io.json_output import GrowingArray
from jaxscore.report import text_table
from jaxscore.systems.samples import confidences as task
from jaxscore.systems.samples import right_responses
from jaxscore.systems.samples.evaluations.self_certainty import Settings, Work
from jaxscore.systems.samples.sample_items import NothingUsable
from jaxscore.systems.selection.answers import form_lines

DESCRIPTION = """\
How certain was the model of each of its outputs? The self-certainty is the mean
of KL(uniform || prediction) over an output's tokens, in nats per token:
-1/(nV) sum log(V p(j | x, y<i)).

input, a .json array, or a table (see --input) with these columns:
  [{"model_input": "Question: ...", "output": ["first response", "second"],
    "generator": "MODEL"}]
  `input` is read where `model_input` is absent. Without --model, the model is
  the first item's `generator`. Prompt and output are encoded apart and no
  special token is added, so `model_input` is the text as the model saw it, the
  tokens of its chat template included.

output, the same items with
  confidence_list      one number per output; null where it has none (no tokens,
                       no text, longer than the model's positions)
  confidence_errors    why an output has none
  processed_index      from 0
  confidence_settings  model, alignment, dtype, the names of the two fields;
                       `truncate` where the input was cut; with --audit-noise
                       `noise`: how far, in nats, rounding moves a confidence.
                       `select` and `vote` mark what that could change.
  Beside OUT lie OUT.run.json: what made it, and how many outputs failed; and
  OUT_report.html, a page for a browser: charts, and each item's outputs in
  order of certainty.

--gold FIELD tells how well four confidences find the right outputs:
self-certainty, negative mean entropy, mean log-probability and negative
perplexity. FIELD of each item holds the right answer, a list of acceptable
answers, or a list of true or false for each output. Items also get
  right                true or false for each output; null without gold
  answer_forms         the form of each output's answer, as in `select`, of an
                       item that is not read as published
  mean_logprob_list, mean_entropy_list (nats per token), perplexity_list
  AUROC, PRR, AURC, ECE, the risk at each coverage and the share of right ones
  among the most confident of N are in OUT_report.md and OUT_report.json
  (OUT.report.md where OUT does not end in .json). If no output has a readable
  answer, `right` is null, no AUROC is reported, and the exit code is 1.

The file grows while the command runs. The same command continues it: it scores
the outputs without a confidence, and again every item whose input or outputs
have changed. It also continues a file that the published script has left half
done. That script reads every prediction one token late (--alignment upstream)
and cuts long texts silently.

  python -m jaxscore self-certainty --input samples.json
      writes samples-confidence-list.json

exit code: 0 all scored, 1 some outputs have no confidence or none is graded,
           2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("self-certainty", description=DESCRIPTION)
    sample_files.add_flags(parser, task.SUFFIX)
    parser.add_argument(
        "--model",
        "--model-name",
        metavar="NAME",
        help="a local Hugging Face folder, a hub id, or `demo` (default: the first `generator`)",
    )
    advanced(parser, "--revision", help="branch, tag or commit of a hub id")
    model_flags.add_lora_flag(parser)
    parser.add_argument(
        "--input-field",
        "--input-field-name",
        default=task.INPUT_FIELD,
        metavar="NAME",
        help=f"default: {task.INPUT_FIELD}",
    )
    parser.add_argument(
        "--output-field",
        "--output-field-name",
        default=task.OUTPUT_FIELD,
        metavar="NAME",
        help=f"default: {task.OUTPUT_FIELD}",
    )
    parser.add_argument(
        "--gold",
        metavar="FIELD",
        help="field of the items with the right answer, a list of acceptable ones, or true or "
        "false for each output: tell how well four confidences find the right outputs",
    )
    sample_files.add_answer_rule(parser)
    parser.add_argument(
        "--alignment",
        choices=tuple(task.ALIGNMENTS),
        default="formula",
        help="formula: the prediction of each token, made before it (default); upstream: the one "
        "made after it, as the published script counts",
    )
    advanced(
        parser,
        "--batch-size",
        type=model_flags.positive,
        metavar="N",
        help="no effect, accepted since the published script has it; see --batch-tokens",
    )
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the mean's 95%% interval (default 1000)",
    )
    outputs.add_page_flags(parser)
    model_flags.add_model_flags(parser, model_required=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    output = sample_files.output_path(args, task.SUFFIX)
    if args.batch_size is not None:
        messages.remark(args, f"--batch-size {args.batch_size}: of no effect; see --batch-tokens")
    given = {
        "alignment": args.alignment,
        "input_field": args.input_field,
        "output_field": args.output_field,
        "n_bootstrap": args.n_bootstrap,
        "gold": args.gold,
        "answer_rule": args.answer_rule,
        **model_flags.common_settings(args),
    }
    items = task.load(args.input, args.input_field, args.output_field, args.limit)
    model = _model(args, items)
    settings = Settings(**given)
    reports = () if args.gold is None else outputs.report_paths(output)
    pages = outputs.page_paths(args, outputs.report_paths(output)[0], args.input)
    outputs.check_outputs([output, *reports, *pages], args.input)
    work = _begun(args, items, model_facts(args, model), output)
    # What --dtype auto means depends on the device, so the scorer says it later.
    work.made_with(settings, None if args.dtype == "auto" else args.dtype)
    n_missing, n_scorable = len(work.missing), len(task.scorable(work.confidences))
    growing, scorer = GrowingArray(output, work.records), None
    try:
        with contextlib.ExitStack() as stack:
            page_files = [stack.enter_context(atomic(path)) for path in reports]
            browser = stack.enter_context(outputs.open_page(pages))
            stack.enter_context(growing.open())
            if n_missing:
                scorer = model_flags.load_scorer(args, model, output, *reports, *pages)
            report = evaluate(
                "self-certainty",
                scorer,
                work,
                on_item=lambda _: growing.offer(),
                # Without a scorer nobody else says what an earlier run has scored with.
                about={**({} if scorer else work.facts or {}), **outputs.about_input(args)},
                **given,
            )
            for page, write in zip(page_files, (report.markdown, report.json), strict=False):
                page.write(write())
            if browser:
                browser.write(report.html([*work.records()]))
    except KeyboardInterrupt:
        return interrupted(args, growing)
    files = [output, *reports, *pages]
    if n_missing or not work.n_previous:  # else the manifest of the run that did the work stays
        n_before = n_scorable - n_missing
        manifest = outputs.write_manifest(
            args, scorer, output, report, outputs_from_before=n_before
        )
        files.append(manifest)
    else:
        print(f"nothing was left to do in {output}")
    if "quality" in report.evaluation.details:
        print_quality(report.evaluation.details["quality"])
    for line in form_lines(report.evaluation.details.get("quality", {})):
        print(line)
    code = messages.close_run(args, report, "items", files, scorer)
    if "no_share" in report.evaluation.details:
        return 1
    return code or int(not report.summary["n_scored"])  # 1 too where items have no outputs


def _begun(
    args: argparse.Namespace, items: Sequence[task.Item], facts: Mapping[str, Any], output: Path
) -> Work:
    """The items with what an earlier run has left of them in the output."""
    previous = read_previous_output(output)
    right = None if args.gold is None else _right(args, items)
    confidences, n_changed = task.resume(items, previous, output, measured=right is not None)
    tell_continued(args, output, len(previous), n_changed)
    if n_unknown := task.n_of_unknown_origin(confidences):
        messages.remark(
            args,
            f"{n_unknown} of them do not say how they were computed and are kept as they are; the "
            "published script computes in half precision and as --alignment upstream does",
        )
    return Work(items, confidences, len(previous), facts, output, right)


def _right(args: argparse.Namespace, items: Sequence[task.Item]) -> right_responses.RightResponses:
    try:
        return right_responses.read(items, args.gold, args.answer_rule)
    except NothingUsable as problem:
        raise NothingUsable(f"{args.input}: {problem}") from None


def print_quality(quality: Mapping[str, Any]) -> None:
    """The confidences side by side on stdout, unless there are too few outputs."""
    if quality["n_responses"] < 2:
        return
    rows = [["", "AUROC", "PRR", "AURC", "ECE"]]
    for name, one in quality["confidences"].items():
        values = [*(one[figure]["value"] for figure in ("auroc", "prr", "aurc")), one["ece"]]
        rows.append([name, *("-" if value is None else f"{value:.3f}" for value in values)])
    print(text_table.table(rows))


def _model(args: argparse.Namespace, items: Sequence[task.Item]) -> str:
    """The flag's, else what the first item names.

    Raises:
        InputError: neither.
    """
    named = [item.given.get("generator") for item in items]
    if args.model:
        return args.model
    if not isinstance(named[0], str):
        raise InputError(
            f'{args.input}: {items[0].name} has no string "generator" that names the model; '
            "give --model"
        )
    if others := sum(name != named[0] for name in named):
        messages.remark(
            args, f"{others} items name another generator; all are scored with {named[0]}"
        )
    return named[0]

"""`jaxscore paths`: Path Evaluation."""

import argparse
import json
import time
from pathlib import Path

from jaxscore.commands import shared
from jaxscore.reports.files import atomic, json_safe
from jaxscore.tasks import path_gain

DESCRIPTION = """\
How much does a support path raise the probability of the answer, its last entity?

input, one object a line:
  {"id": "q1", "question": "Where was Ada born?", "paths": [["Ada", "born in", "London"], []]}
  Empty paths are skipped; `id` defaults to the line's number.

prompts:
  baseline   {system prompt}\\nQuestion: {question} Answer:
  retrieved  {system prompt}\\nSupport Path: {A -> B -> C}\\nQuestion: {question} Answer:

A probability is exp(mean log-probability of the answer's tokens), averaged over system prompts.
The output is the published script's: for each path baseline_prob, retrieved_prob,
absolute_improvement, relative_improvement ("Infinity" where the baseline is 0) and the results
of each system prompt.

exit code: 0 all scored, 1 some paths failed (they hold `error`), 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "paths",
        help="information gain of knowledge paths (Path Evaluation)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--input", required=True, type=Path, help="JSONL of questions and paths")
    parser.add_argument("--output", required=True, type=Path, help="JSON of results")
    parser.add_argument(
        "--max-samples", type=shared.positive, metavar="N", help="only the first N lines"
    )
    parser.add_argument(
        "--system-prompts",
        nargs="+",
        default=[],
        metavar="TEXT",
        help="evaluate under each and average (default: a helpful assistant)",
    )
    parser.add_argument(
        "--system-prompts-file",
        type=Path,
        metavar="FILE",
        help="one system prompt a line, added to --system-prompts; blank lines are skipped",
    )
    parser.add_argument(
        "--boundary",
        choices=tuple(path_gain.BOUNDARIES),
        default="separate",
        help="separate: prompt and answer encoded apart (default); joint: as one text; "
        "upstream: encoded anew after each token, as the published script does",
    )
    shared.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    shared.check_output(args.output, args.input, args.system_prompts_file)
    items = path_gain.load(args.input, args.max_samples)
    systems = path_gain.system_prompts(args.system_prompts, args.system_prompts_file)
    with atomic(args.output) as file:
        scorer = shared.load_scorer(args, args.model)
        others = [name for name in path_gain.BOUNDARIES if name != args.boundary]
        policies = [path_gain.BOUNDARIES[name] for name in others]
        audit = shared.Audit(scorer, path_gain.BOUNDARIES[args.boundary], policies)
        started = time.perf_counter()
        scored = scorer.score(
            audit.watch(path_gain.requests(items, systems)),
            boundary=path_gain.BOUNDARIES[args.boundary],
            truncate=args.truncate,
        )
        results = path_gain.evaluate(items, systems, scored)
        json.dump(json_safe(results), file, ensure_ascii=False, allow_nan=False, indent=2)
        file.write("\n")
    shared.tell_run(args, scorer, time.perf_counter() - started)
    summary = path_gain.summarise(results)
    print(text(summary))
    if audit.n_requests:
        print(audit.text(args.boundary, others))
    return shared.tell_failures(summary.failures)


def text(summary: path_gain.Summary) -> str:
    """The averages, as lines for people."""
    if summary.mean_absolute is None:
        return f"{summary.n_items} items, no path was scored"
    lines = [
        f"{summary.n_items} items, {summary.n_paths} paths",
        f"Average baseline probability: {summary.mean_baseline:.6g}",
        f"Average retrieved probability: {summary.mean_retrieved:.6g}",
        f"Average absolute improvement: {summary.mean_absolute:.6g}",
    ]
    if summary.mean_relative is None:
        lines.append("Average relative improvement: none, every baseline is 0")
    else:
        lines.append(
            f"Average relative improvement: {summary.mean_relative:.6g} "
            f"(over {summary.n_relative} paths with a baseline above 0)"
        )
    return "\n".join(lines)

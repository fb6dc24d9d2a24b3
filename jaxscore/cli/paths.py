"""`jaxscore paths`: Path Evaluation."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.cli import endpoint_flags, messages, model_flags, outputs, settings_flags, table_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.outputs import ReportFiles
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import json_text
from jaxscore.systems.paths import fewshot, path_gain
from jaxscore.systems.paths.evaluation import Settings
from jaxscore.systems.prompt_settings import AnswerSettings

DESCRIPTION = """\
How much does a support path raise the probability of the answer, its last
entity?

input, one object per line:
  {"id": "q1", "question": "Where was Ada born?",
   "paths": [["Ada", "born in", "London"], []]}
  Empty paths are skipped; `id` defaults to the line's number. In .csv and .tsv
  `paths` is JSON text.

prompts:
  baseline   {system prompt}\\nQuestion: {question} Answer:
  retrieved  {system prompt}\\nSupport Path: {A -> B -> C}\\nQuestion: {question}
             Answer:

The answer follows without a blank, as published. A sample is scored with one
too; if it raises most answers, the output says so first (--answer-separator).

A probability is exp(mean log-probability of the answer's tokens), averaged over
system prompts.

output, as the published script writes it:
  for each path baseline_prob, retrieved_prob, absolute_improvement,
  relative_improvement ("Infinity" where the baseline is 0) and the results of
  each system prompt. With --audit-noise also `within_noise`: whether rounding
  could change the sign of the improvement.
  Beside OUT.json lie a report for people, OUT_report.md, and its data,
  OUT_report.json: means with bootstrap intervals, by length of path, least gain
  first, settings; and OUT_report.html, the same for a browser with charts and
  coloured tokens. For an OUT of another name these are OUT.report.md and so on.

exit code: 0 all scored, 1 some paths failed (they hold `error`),
           2 unusable input, or no path in it.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("paths", description=DESCRIPTION)
    table_flags.add_input(parser, "questions and paths:", path_gain.FIELDS)
    parser.add_argument(
        "--output", required=True, type=Path, metavar="FILE", help="JSON of results; - is stdout"
    )
    model_flags.add_limit_flag(parser, "items", "--max-samples")
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
        help="one system prompt per line, added to --system-prompts; blank lines are skipped",
    )
    parser.add_argument(
        "--boundary",
        choices=tuple(path_gain.BOUNDARIES),
        default="separate",
        help="separate: prompt and answer encoded apart (default); joint: as one text; "
        "upstream: encoded again after each token, as the published script does",
    )
    settings_flags.add(parser, AnswerSettings)
    outputs.add_page_flags(parser)
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the report's 95%% intervals (default 1000)",
    )
    endpoint_flags.add(parser)
    settings_flags.add_groups(parser, AnswerSettings)
    model_flags.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    files = settings_flags.input_files(args, AnswerSettings)
    about = settings_flags.about_files(args, AnswerSettings)
    inputs = [args.input, args.system_prompts_file, *files]
    reports = ReportFiles(args, *inputs)
    written = [args.output, *reports.paths]
    columns = table_flags.columns(args.column, path_gain.FIELDS)
    items = path_gain.load(args.input, args.limit, columns)
    systems = path_gain.system_prompts(args.system_prompts, args.system_prompts_file)
    settings = {
        "boundary": args.boundary,
        "system_prompts": systems,
        "n_bootstrap": args.n_bootstrap,
        **settings_flags.values(args, AnswerSettings),
    }
    checked = Settings(**settings).with_examples(fewshot.read)
    endpoint = endpoint_flags.endpoint(args, args.api_base, checked)
    with atomic(args.output) as file, reports.opened() as write_reports:
        scorer = None if endpoint else model_flags.load_scorer(args, args.model, *written)
        report = evaluate(
            "paths",
            endpoint or scorer,
            items,
            about={**outputs.about_input(args), **about},
            **settings,
        )
        file.write(json_text(report.items))
        write_reports(report)
    manifest = outputs.write_manifest(args, scorer, args.output, report, **about)
    messages.print_findings(report)
    print(text(report.summary))
    return messages.close_run(args, report, "items", [*written, manifest], scorer)


def text(means: Mapping[str, Estimate]) -> str:
    """The averages that the published script prints."""
    baseline, retrieved, absolute, relative = (means[name] for name in path_gain.COLUMNS)
    if absolute.mean is None:
        return "No path was scored"
    lines = [
        f"Average baseline probability: {baseline.mean:.6g}",
        f"Average retrieved probability: {retrieved.mean:.6g}",
        f"Average absolute improvement: {absolute.mean:.6g}",
    ]
    if relative.mean is None:
        lines.append("Average relative improvement: none, every baseline is 0")
    else:
        lines.append(
            f"Average relative improvement: {relative.mean:.6g} "
            f"(over {relative.n} paths with a baseline above 0)"
        )
    return "\n".join(lines)

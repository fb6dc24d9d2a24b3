"""`jaxscore paths`: Path Evaluation."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxscore.commands import shared
from jaxscore.engine.noise import Draw, OtherLayouts
from jaxscore.files.atomic import atomic
from jaxscore.files.json_output import json_text
from jaxscore.reports import provenance
from jaxscore.reports.paths_report import report
from jaxscore.scorer import Scorer
from jaxscore.tasks.paths import path_gain

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
of each system prompt. Beside OUT.json lie a report for people, OUT_report.md, and what it is made
of, OUT_report.json: means with bootstrap intervals, by length of path, least gain first, settings.
With --audit-noise a path also holds `within_noise`: whether rounding could turn the sign of its
improvement.

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
    parser.add_argument(
        "--n-bootstrap",
        type=shared.positive,
        default=1000,
        metavar="N",
        help="draws for the report's 95%% intervals (default 1000)",
    )
    shared.add_model_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    stem = args.output.parent / f"{args.output.stem}_report"
    reports = [Path(f"{stem}{ending}") for ending in (".md", ".json")]
    for path in (args.output, *reports):
        shared.check_output(path, args.input, args.system_prompts_file)
    items = path_gain.load(args.input, args.max_samples)
    systems = path_gain.system_prompts(args.system_prompts, args.system_prompts_file)
    with atomic(args.output) as file, atomic(reports[0]) as page, atomic(reports[1]) as data:
        scorer = shared.load_scorer(args, args.model, args.output)
        others = [name for name in path_gain.BOUNDARIES if name != args.boundary]
        policies = [path_gain.BOUNDARIES[name] for name in others]
        boundary, truncate = path_gain.BOUNDARIES[args.boundary], args.truncate
        audit = shared.Audit(scorer, boundary, policies)
        draw = Draw(args.audit_noise, args.seed)
        started = time.perf_counter()
        requests = draw.watch(audit.watch(path_gain.requests(items, systems)))
        stream = scorer.score(requests, boundary=boundary, truncate=truncate)
        scored = list(draw.results(stream))
        seconds = time.perf_counter() - started
        noise = OtherLayouts(scorer).scores(draw.pairs, boundary=boundary, truncate=truncate)
        results = path_gain.evaluate(items, systems, scored)
        decisions = [] if noise is None else path_gain.mark(results, noise)
        file.write(json_text(results))
        summary = path_gain.summarise(results, args.n_bootstrap, args.seed)
        record = {
            "summary": summary.means,
            "by_length": [
                {"entities": n, "gain": gain} for n, gain in summary.gain_by_length.items()
            ],
            "boundary_audit": {
                "n_answers": audit.n_requests,
                "changed": dict(zip(others, audit.changed.values(), strict=True)),
            },
            "failures": [{"name": name, "error": why} for name, why in summary.failures],
            **shared.noise_fields(args, noise, decisions),
            "settings": _settings(args, scorer, systems),
            "paths": path_gain.least_gain_first(results),  # last, since they are many
        }
        page.write(report(record))
        data.write(json_text(record))
    shared.write_manifest(args, scorer, seconds, args.output, noise)
    shared.tell_run(args, scorer, seconds)
    print(text(summary))
    if audit.n_requests:
        print(audit.text(args.boundary, others))
    shared.tell_noise(args, noise, decisions)
    print(f"report {reports[0]}")
    return shared.tell_failures(summary.failures)


def _settings(args: argparse.Namespace, scorer: Scorer, systems: Sequence[str]) -> dict[str, Any]:
    return provenance.of_run(
        {
            **shared.made_by(args, scorer, args.model),
            "boundary": args.boundary,
            "system_prompts": list(systems),
            "max_samples": args.max_samples,
            "truncate": args.truncate,
            "n_bootstrap": args.n_bootstrap,
            "seed": args.seed,
            "input": str(args.input),
            "input_sha256": provenance.digest(args.input),
        }
    )


def text(summary: path_gain.Summary) -> str:
    """The averages, as lines for people."""
    baseline, retrieved, absolute, relative = (summary.means[name] for name in path_gain.COLUMNS)
    if absolute.mean is None:
        return f"{summary.n_items} items, no path was scored"
    lines = [
        f"{summary.n_items} items, {absolute.n} paths",
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

"""`jaxscore probsem`: ProbSem."""

import argparse
import math
import re
import time
from pathlib import Path
from typing import Any

from jaxscore.commands import shared
from jaxscore.engine.noise import Draw, OtherLayouts
from jaxscore.files import run_files
from jaxscore.files.atomic import atomic
from jaxscore.files.csv_rows import csv_line
from jaxscore.files.json_output import json_text
from jaxscore.metrics.bootstrap import Estimate
from jaxscore.printable import UNPRINTABLE, many_lines
from jaxscore.reports import provenance
from jaxscore.reports.probsem_report import report
from jaxscore.tasks.probsem import query_scores

LONGEST = 200  # bytes of a run's name in a file's
RULE = 30 * "_"

DESCRIPTION = """\
How probable is each of a few queries after a context? (ProbSem)

inputs, in --input-dir:
  <prompt>.txt           what stands before everything
  <prompt>_<test>.json   {"pretext": "Answer True or False.", "context": [{"text": "Tova lives
                         in Merrow.", "expected": 0}], "posttext": "The correct answer is:",
                         "queries": ["True", "False"]}
  `expected` is the index of the right query; -1 in one context disables the suite's accuracy.

text scored:  {prompt}\\n{pretext}\\n{context}\\n{posttext}\\n{query}   (empty parts are left out)

A query's logp is the sum of its tokens' log-probabilities (--normalize: their mean), divided by
the temperature; the scores of a context are the softmax over its queries.

outputs, in --output-dir:
  <prompt>_<test>_<model>_results.csv    text, query, logp, score
  <prompt>_<test>_<model>_results.json   the same with token counts, verdicts and settings
  <prompt>_<test>_<model>_report.md      for people
  With --audit-noise a context of the JSON file also holds `within_noise`: whether rounding could
  turn its verdict.

exit code: 0 all scored, 1 some contexts failed (they are listed), 2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser(
        "probsem",
        help="distributions over queries after the contexts of a test suite (ProbSem)",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prompt", required=True, metavar="NAME", help="of the prompt's file")
    parser.add_argument("--test", required=True, metavar="NAME", help="of the test suite's file")
    parser.add_argument("--input-dir", type=Path, default=Path("inputs"), metavar="DIR")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"), metavar="DIR")
    parser.add_argument(
        "--normalize",
        "--norm",
        action="store_true",
        help="mean log-probability of a query's tokens instead of their sum",
    )
    parser.add_argument(
        "--temperature",
        "--temp",
        type=_temperature,
        default=1.0,
        metavar="T",
        help="divides the log-probabilities; above 1 the scores come closer together (default 1)",
    )
    parser.add_argument(
        "--boundary",
        choices=tuple(query_scores.BOUNDARIES),
        default="joint",
        help="where a query starts. joint: encoded as one text with what is before it, after the "
        "line end (default); separate: encoded apart; upstream: the last n tokens, n being what "
        "the query has alone, as the published script does",
    )
    parser.add_argument(
        "--n-bootstrap",
        type=shared.positive,
        default=1000,
        metavar="N",
        help="draws for the accuracy's 95%% interval (default 1000)",
    )
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="where a hub id is downloaded to"
    )
    shared.add_model_flags(parser)
    parser.set_defaults(run=run)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


def run(args: argparse.Namespace) -> int:
    suite, failures = query_scores.load(args.input_dir, args.prompt, args.test)
    remarks = query_scores.remarks(suite)
    name = run_name(args.prompt, args.test, args.model)
    with (
        atomic(args.output_dir / f"{name}_results.csv") as table,
        atomic(args.output_dir / f"{name}_results.json") as data,
        atomic(args.output_dir / f"{name}_report.md") as page,
    ):
        scorer = shared.load_scorer(args, args.model, args.output_dir)
        policy = query_scores.BOUNDARIES[args.boundary]
        others = [other for other in query_scores.BOUNDARIES if other != args.boundary]
        audit = shared.Audit(scorer, policy, [query_scores.BOUNDARIES[other] for other in others])
        draw = Draw(args.audit_noise, args.seed)
        started = time.perf_counter()
        requests = draw.watch(audit.watch(query_scores.requests(suite)))
        stream = scorer.score(requests, boundary=policy, truncate=args.truncate)
        scored = list(draw.results(stream))
        results = query_scores.evaluate(
            suite,
            scored,
            boundary=args.boundary,
            normalize=args.normalize,
            temperature=args.temperature,
        )
        seconds = time.perf_counter() - started
        noise = OtherLayouts(scorer).scores(draw.pairs, boundary=policy, truncate=args.truncate)
        decisions = []
        if noise is not None:
            decisions = query_scores.mark(
                results, noise, normalize=args.normalize, temperature=args.temperature
            )
        failures += query_scores.failures(suite, results)
        accuracy = query_scores.accuracy(results, n_bootstrap=args.n_bootstrap, seed=args.seed)
        record = {
            "accuracy": accuracy,
            "boundary_audit": {
                "n_queries": audit.n_requests,
                "changed": dict(zip(others, audit.changed.values(), strict=True)),
            },
            "remarks": remarks,
            "failures": [{"name": name, "error": why} for name, why in failures],
            **shared.noise_fields(args, noise, decisions),
            "settings": _settings(args, scorer),
            "contexts": results,
        }
        for row in (["text", "query", "logp", "score"], *query_scores.rows(results)):
            table.write(csv_line(row))
        data.write(json_text(record))
        page.write(report(record))
    shared.write_manifest(args, scorer, seconds, args.output_dir / f"{name}_results.csv", noise)
    for result in results:
        if "error" not in result:
            print(many_lines(sample_text(result)))
    print(summary_text(accuracy))
    shared.tell_noise(args, noise, decisions)
    shared.tell_run(args, scorer, seconds)
    shared.remark(args, audit.text(args.boundary, others))
    for line in remarks:
        shared.remark(args, f"remark: {line}")
    return shared.tell_failures(failures)


def run_name(prompt: str, test: str, model: str) -> str:
    """What the names of the outputs begin with.

    As in the published script, characters that some systems take in no file's name become `-`,
    and so does a blank or dot at either end.
    """
    name = re.sub(r'[<>:"/\\|?*\x00-\x1f\x7f]+', "-", f"{prompt}_{test}_{model}")
    name = UNPRINTABLE.sub("-", name)
    return run_files.fitting(re.sub(r"^[ .]|[ .]$", "-", name), LONGEST)


def sample_text(result: dict[str, Any]) -> str:
    """One context as the published script prints it."""
    lines = [RULE, "", "Text:", result["text"], "", "Scores:"]
    pairs = zip(result["queries"], result["scores"], strict=True)
    lines += [f"{score:.3f}\t{query}" for query, score in pairs]
    if result["passed"] is not None:
        lines += ["", f"TEST SAMPLE {'PASSED' if result['passed'] else 'FAILED'}."]
    return "\n".join([*lines, "", RULE])


def summary_text(accuracy: Estimate | None) -> str:
    """The suite's accuracy as the published script prints it, `nan` where there is none."""
    mean = math.nan if accuracy is None or accuracy.mean is None else accuracy.mean
    lines = [RULE, f"TEST SUITE ACCURACY:\t{mean:.3f}"]
    if accuracy is None:
        lines.append("disabled, since a context expects -1")
    elif accuracy.mean is not None:
        lines.append(f"95% interval {accuracy.low:.3f} to {accuracy.high:.3f}, n {accuracy.n}")
    return "\n".join([*lines, RULE])


def _settings(args: argparse.Namespace, scorer: Any) -> dict[str, Any]:
    inputs = [
        args.input_dir / f"{args.prompt}.txt",
        args.input_dir / f"{args.prompt}_{args.test}.json",
    ]
    return provenance.of_run(
        {
            **shared.made_by(args, scorer, args.model),
            "prompt": args.prompt,
            "test": args.test,
            "boundary": args.boundary,
            "normalize": args.normalize,
            "temperature": args.temperature,
            "truncate": args.truncate,
            "seed": args.seed,
            "n_bootstrap": args.n_bootstrap,
            "prompt_sha256": provenance.digest(inputs[0]),
            "test_sha256": provenance.digest(inputs[1]),
        }
    )

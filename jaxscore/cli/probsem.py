"""`jaxscore probsem`: ProbSem."""

import argparse
import functools
import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.cli import endpoint_flags, messages, model_flags, outputs, settings_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.evaluate import evaluate
from jaxscore.io import run_files, streams
from jaxscore.io.atomic import atomic
from jaxscore.io.printable import UNPRINTABLE, many_lines
from jaxscore.io.records import csv_line
from jaxscore.io.run_files import file_digest
from jaxscore.systems.probsem import fewshot, query_scores
from jaxscore.systems.probsem.evaluation import DISABLED, Settings
from jaxscore.systems.prompt_settings import AnswerSettings

LONGEST = 200  # bytes of a run's name in a file's
RULE = 30 * "_"

DESCRIPTION = """\
How probable is each of a few queries after a context? (ProbSem)

inputs, in --input-dir:
  <prompt>.txt           the text before everything else
  <prompt>_<test>.json   {"pretext": "Answer True or False.",
                          "context": [{"text": "Tova lives in Merrow.",
                                       "expected": 0}],
                          "posttext": "The correct answer is:",
                          "queries": ["True", "False"]}
  `expected` is the index of the right query; -1 leaves a context out of the
  suite's accuracy.

text scored, without its empty parts:
  {prompt}\\n{pretext}\\n{context}\\n{posttext}\\n{query}
  --boundary upstream keeps the line ends of an empty prompt and an empty text,
  and scores the last line alone of a query with several, as published.

A query's logp is the sum of its tokens' log-probabilities (--normalize: their
mean), divided by the temperature; the scores of a context are the softmax over
its queries.

outputs, in --output-dir:
  <prompt>_<test>_<model>_results.csv    text, query, logp, score
  <prompt>_<test>_<model>_results.json   the same with token counts, verdicts
                                         and settings
  <prompt>_<test>_<model>_report.md      for people, the worst 50 contexts
  <prompt>_<test>_<model>_report.html    the same for a browser, all contexts
  <the table>.run.json                   what the result was made of and with
  A flag that changes the numbers adds a suffix after <model>, so that runs with
  different flags keep separate files: --normalize _norm, --temperature 2
  _temp2, --boundary upstream _upstream, --answer-separator X
  _separator-X, --truncate left _truncate-left,
  --limit 9 _first9, --dtype float32 _float32, --quantize int8 _int8,
  --revision X _revision-X, --lora X _lora-X, --api-base URL _endpoint,
  --apply-chat-template _chat, --system X _system-X, --fewshot X --num-fewshot 2
  _fewshot-2-seed0-X. A run with the same flags replaces its files.
  With --audit-noise a context of the JSON file also holds `within_noise`:
  whether rounding could change its verdict.

exit code: 0 all scored, 1 some contexts failed (they are listed),
           2 unusable input.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("probsem", description=DESCRIPTION)
    parser.add_argument("--prompt", required=True, metavar="NAME", help="of the prompt's file")
    parser.add_argument("--test", required=True, metavar="NAME", help="of the test suite's file")
    for name in ("input", "output"):
        parser.add_argument(
            f"--{name}-dir",
            f"--{name}",
            type=Path,
            default=Path(f"{name}s"),
            metavar="DIR",
            help=f"default: {name}s",
        )
    model_flags.add_limit_flag(parser, "contexts")
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
    settings_flags.add(parser, AnswerSettings)
    outputs.add_page_flags(parser)
    advanced(
        parser, "--cache-dir", type=Path, metavar="DIR", help="where a hub id is downloaded to"
    )
    endpoint_flags.add(parser)
    settings_flags.add_groups(parser, AnswerSettings)
    model_flags.add_model_flags(parser)
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
    inputs = query_scores.files(args.input_dir, args.prompt, args.test)
    suite = query_scores.load(args.input_dir, args.prompt, args.test, args.limit)
    name = run_name(args.prompt, args.test, args.model, *variant(args))
    endings = ("_results.csv", "_results.json", "_report.md")
    streams.refuse_stream(args.output_dir, "--output-dir")
    paths = [args.output_dir / f"{name}{ending}" for ending in endings]
    read = (*inputs, *settings_flags.input_files(args, AnswerSettings))
    about = settings_flags.about_files(args, AnswerSettings)
    pages = outputs.page_paths(args, paths[2], *read)
    paths += pages
    outputs.check_outputs(paths, *read, flag="--output-dir")
    settings = {
        "normalize": args.normalize,
        "temperature": args.temperature,
        "boundary": args.boundary,
        **settings_flags.values(args, AnswerSettings),
    }
    checked = Settings(**settings).with_examples(functools.partial(fewshot.read, suite))
    endpoint = endpoint_flags.endpoint(args, args.api_base, checked)
    with (
        atomic(paths[0]) as table,
        atomic(paths[1]) as data,
        atomic(paths[2]) as page,
        outputs.open_page(pages) as browser,
    ):
        scorer = (
            None if endpoint else model_flags.load_scorer(args, args.model, args.output_dir, *paths)
        )
        report = evaluate(
            "probsem",
            endpoint or scorer,
            suite,
            about={
                "prompt": args.prompt,
                "test": args.test,
                "limit": args.limit,
                "prompt_sha256": file_digest(inputs[0]),
                "test_sha256": file_digest(inputs[1]),
                **about,
            },
            **settings,
        )
        for row in (["text", "query", "logp", "score"], *query_scores.rows(report.items)):
            table.write(csv_line(row))
        data.write(report.json())
        page.write(report.markdown())
        if browser:
            browser.write(report.html())
    manifest = outputs.write_manifest(args, scorer, paths[0], report, **about)
    messages.print_findings(report)
    for result in report.items:
        if "error" not in result:
            print(many_lines(sample_text(result)))
    print(summary_text(report.summary["accuracy"], report.summary["n_without_answer"]))
    return messages.close_run(args, report, "contexts", [*paths, manifest], scorer)


def run_name(prompt: str, test: str, model: str, *flags: str) -> str:
    """What the names of the outputs begin with.

    As in the published script, characters that some systems take in no file's name become `-`,
    and so does a blank or dot at either end.

    Args:
        flags: as of `variant`; none of them gives the published name.
    """
    name = re.sub(r'[<>:"/\\|?*\x00-\x1f\x7f]+', "-", "_".join((prompt, test, model, *flags)))
    name = UNPRINTABLE.sub("-", name)
    return run_files.shorten_name(re.sub(r"^[ .]|[ .]$", "-", name), LONGEST)


def variant(args: argparse.Namespace) -> list[str]:
    """The flags that change the numbers and are not as they are by default, for a file's name.

    The other flags move a number by rounding at most.
    """
    temperature = f"{args.temperature!r}".removesuffix(".0")
    system = args.system or args.system_file
    drawn = "" if args.num_fewshot is None else f"{args.num_fewshot}-seed{args.seed}-"
    flags = [
        ("norm", args.normalize),
        (f"temp{temperature}", args.temperature != 1),
        (args.boundary, args.boundary != "joint"),
        (f"separator-{_short(args.answer_separator)}", args.answer_separator is not None),
        (f"truncate-{args.truncate}", args.truncate),
        (f"first{args.limit}", args.limit),
        (args.dtype, args.dtype != "auto"),
        (args.quantize, args.quantize),
        (f"revision-{run_files.distinct_file_name(str(args.revision))}", args.revision),
        (f"lora-{run_files.distinct_file_name(str(args.lora))}", args.lora),
        ("endpoint", args.api_base),
        ("chat", args.apply_chat_template),
        (f"system-{_short(system)}", system),
        (f"fewshot-{drawn}{_short(args.fewshot)}", args.fewshot),
    ]
    return [part for part, given in flags if given]


def _short(value: object) -> str:
    """A digest of a text or a place, for a file's name."""
    return hashlib.sha256(str(value).encode(errors="backslashreplace")).hexdigest()[:8]


def sample_text(result: Mapping[str, Any]) -> str:
    """One context as the published script prints it."""
    lines = [RULE, "", "Text:", result["text"], "", "Scores:"]
    pairs = zip(result["queries"], result["scores"], strict=True)
    lines += [f"{score:.3f}\t{query}" for query, score in pairs]
    if result["passed"] is not None:
        lines += ["", f"TEST SAMPLE {'PASSED' if result['passed'] else 'FAILED'}."]
    return "\n".join([*lines, "", RULE])


def summary_text(accuracy: Estimate | None, n_without_answer: int = 0) -> str:
    """The suite's accuracy as the published script prints it, `nan` where there is none."""
    mean = math.nan if accuracy is None or accuracy.mean is None else accuracy.mean
    lines = [RULE, f"TEST SUITE ACCURACY:\t{mean:.3f}"]
    if accuracy is None:
        lines.append(DISABLED)
    elif accuracy.low is not None and accuracy.high is not None:
        lines.append(f"95% interval {accuracy.low:.3f} to {accuracy.high:.3f}, n {accuracy.n}")
    if accuracy is not None and n_without_answer:
        lines.append(f"contexts that expect -1, in no accuracy: {n_without_answer}")
    return "\n".join([*lines, RULE])

"""`jaxscore compare`: two finished runs of one system."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, model_flags, outputs
from jaxscore.cli.help_pages import advanced
from jaxscore.cli.sample_files import add_quiet
from jaxscore.evaluate import Report, evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.printable import one_line
from jaxscore.io.run_files import file_digest, shorten_name
from jaxscore.io.streams import is_stream
from jaxscore.systems.compare import facts

DESCRIPTION = """\
Compare two finished runs of one system on the same items: paired differences
with intervals and tests, and what flipped. No model runs.

  python -m jaxscore compare a.jsonl b.jsonl

input, two files that these commands wrote; where OUT.run.json lies beside a
file, it says what made it:
  score           OUT.jsonl, OUT.parquet    paths         OUT.json
  chronologic     eval_results_….json       probsem       …_results.json
  judge           eval_…_judge_….json       metrics       eval_…_out.json
  self-certainty  …-confidence-list.json    choose, perplexity  like score
  select, vote, usc-select, livecode-select: their output; two of these four
  are compared with each other too.
  Items are matched by id and by their text; without the text by id alone, and
  the report says so.

output, for each number n, the means of A and B, B - A with a 95% interval, and
p, corrected by Holm's method for the number of tests:
  numbers    bootstrap of pairs; exact sign-flip test, of more than 16 pairs by
             draws. Parts of an item (paths, answers, outputs) are drawn and
             flipped together.
  decisions  right or wrong: McNemar's exact test, Newcombe's interval; which
             flipped, by how much, and how many flips lie within the noise
             floor, where the runs were made with --audit-noise
  OUT.report.md is the page, OUT.report.html the page for a browser,
  OUT.report.json their data, OUT.run.json what made them; of an OUT that ends
  in .json they are OUT_report.md, OUT_report.html, OUT_report.json and
  OUT.json.run.json. OUT itself is no file. The default is A's name, -vs- and
  B's name, beside A.

exit code: 0 compared, also where items have no partner (they are listed);
           1 some items failed in a run (they are left out), 2 unusable input,
           two systems, settings that count otherwise, or no pair.
"""
NOISE = {  # the runs that were audited -> how many flips lie within the noise
    None: "noise floor not audited: --audit-noise N",
    "both": "{} within the noise floor",
    "A": "{} within the noise floor of A; B is not audited",
    "B": "{} within the noise floor of B; A is not audited",
}
LONGEST = 80  # bytes of a run's name in the default name
FIRST_SETTINGS = ("model", "reference", "weights", "lora", "dtype", "quantize", "boundary")
MOST_SETTINGS = 8  # on stdout; the report lists all


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = subparsers.add_parser("compare", description=DESCRIPTION)
    parser.add_argument("a", type=Path, metavar="A", help="a finished run")
    parser.add_argument("b", type=Path, metavar="B", help="another one, of the same system")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="OUT",
        help="name of the files (default: A-vs-B, beside A); - is stdout, for the JSON alone",
    )
    model_flags.add_limit_flag(parser, "pairs")
    parser.add_argument(
        "--force",
        action="store_true",
        help="compare runs that differ in a setting which decides what is counted, such as "
        "--boundary",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the intervals and of drawn tests (default 0)"
    )
    outputs.add_page_flags(parser)
    add_quiet(parser)
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=1000,
        metavar="N",
        help="draws for the 95%% intervals (default 1000)",
    )
    advanced(
        parser,
        "--n-resamples",
        type=model_flags.positive,
        default=9999,
        metavar="N",
        help="patterns of signs that a test draws where they are too many to enumerate; no p is "
        "below 1 / (N + 1) then (default 9999)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    output = args.output or args.a.with_name(_name(args.a, args.b))
    page_path, data_path = outputs.report_paths(output)
    if is_stream(output):
        data_path = output
    inputs = [args.a, args.b, *map(facts.manifest_file, (args.a, args.b))]
    browser = outputs.page_paths(args, page_path, *inputs)
    outputs.check_outputs([output, page_path, data_path, *browser], *inputs)
    with (
        atomic(page_path) as page,
        atomic(data_path) as data,
        outputs.open_page(browser) as html,
    ):
        report = evaluate(
            "compare",
            None,
            (args.a, args.b),
            n_bootstrap=args.n_bootstrap,
            n_resamples=args.n_resamples,
            seed=args.seed,
            limit=args.limit,
            force=args.force,
            about=_about(args),
        )
        page.write(report.markdown())
        data.write(report.json())
        if html:
            html.write(report.html())
    written = outputs.write_manifest(args, None, output, report)
    for line in told(report):
        print(one_line(line))
    return messages.close_run(args, report, "pairs", [page_path, data_path, *browser, written])


def _about(args: argparse.Namespace) -> dict[str, str | None]:
    """What the report's settings say of the two files."""
    given = {"a": args.a, "b": args.b}
    return {name: str(path) for name, path in given.items()} | {
        f"{name}_sha256": file_digest(path) for name, path in given.items()
    }


def _name(a: Path, b: Path) -> str:
    """Of the files by default: both names, with their folders where the names are equal."""
    names = [a.stem, b.stem]
    if a.stem == b.stem:
        names = [f"{path.resolve().parent.name}_{path.stem}" for path in (a, b)]
    return "-vs-".join(shorten_name(name, LONGEST) for name in names)


def _differing(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line with the settings in which A and B differ, or none if nothing differs."""
    if not differences:
        return []
    ordered = sorted(differences, key=lambda one: one["setting"] not in FIRST_SETTINGS)
    named = [
        f"{one['setting']} ({one_line(str(one['a']), 32)} and {one_line(str(one['b']), 32)})"
        for one in ordered[:MOST_SETTINGS]
    ]
    more = len(ordered) - len(named)
    return [f"A and B differ in {', '.join(named)}{f' and {more} more' if more else ''}"]


def told(report: Report) -> list[str]:
    """What is printed before the closing block: differing settings, results, kinds of flips."""
    found = report.evaluation
    lines = _differing(found.details["differences"])
    lines += [one["verdict"] for one in found.details["results"]]
    for one in found.details["decisions"]:
        n_flips = len(found.long["flips"][one["name"]])
        if one["n"] < 2:
            continue
        noise = f" ({NOISE[one['audited']].format(one['n_within'])})" if n_flips else ""
        lines.append(f"flips, {one['title']}: {n_flips} of {one['n']} pairs{noise}")
    return lines

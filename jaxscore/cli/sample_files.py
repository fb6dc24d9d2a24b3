"""What the commands on files of sampled responses share: flags, places, what is told."""

import argparse
import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxscore.cli import messages, model_flags, outputs, table_flags
from jaxscore.cli.help_pages import advanced
from jaxscore.errors import InputError
from jaxscore.evaluate import evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.json_output import write_array
from jaxscore.report import text_table
from jaxscore.systems.samples.answer_rules import AUTO, RULES
from jaxscore.systems.samples.evaluations import choices
from jaxscore.systems.samples.evaluations.grades import ENOUGH, percent
from jaxscore.systems.samples.sample_items import NothingUsable

TABLES = (".jsonl", ".csv", ".tsv", ".parquet")  # forms of the input alone


def add_flags(parser: argparse.ArgumentParser, output: str) -> None:
    """The input, the output and --limit; `output` ends the default name, for people."""
    parser.add_argument(
        "--input",
        "--input-file",
        required=True,
        type=Path,
        metavar="FILE",
        help=f"items: {table_flags.FORMS}",
    )
    parser.add_argument(
        "--output",
        "--output-file",
        type=Path,
        metavar="FILE",
        help=f"JSON (default: beside the input, its name with {output}); - is stdout",
    )
    model_flags.add_limit_flag(parser, "items")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """--quiet, of the commands that load no model."""
    parser.add_argument("--quiet", action="store_true", help="no remarks on stderr")


def add_best_n(parser: argparse.ArgumentParser, default: int) -> None:
    """--best-N, of the commands that look at the first N responses."""
    parser.add_argument(
        "--best-N",
        type=model_flags.positive,
        default=default,
        metavar="N",
        help=f"consider the first N responses of each item (default {default}); "
        "an item with fewer has all of its considered",
    )


def add_gold(parser: argparse.ArgumentParser) -> None:
    """--gold and the flags of its intervals."""
    parser.add_argument(
        "--gold",
        metavar="FIELD",
        help="field of the items with the right answer, a list of acceptable ones, or true or "
        "false for each response: tell how often the choice is right, beside the first sample, a "
        "majority vote and an oracle, and write it to a report",
    )
    advanced(
        parser,
        "--n-bootstrap",
        type=model_flags.positive,
        default=choices.Graded.n_bootstrap,
        metavar="N",
        help="with --gold: draws for the 95%% intervals of differences (default "
        f"{choices.Graded.n_bootstrap})",
    )
    advanced(parser, "--seed", type=int, default=0, help="with --gold: of those draws (default 0)")
    outputs.add_page_flags(parser)


def add_answer_rule(parser: argparse.ArgumentParser) -> None:
    """--answer-rule, of the commands that read answers."""
    parser.add_argument(
        "--answer-rule",
        choices=RULES,
        default=AUTO,
        help="published: the reading of the published scripts. json, answer, boxed, number: that "
        'form alone, which is JSON or "answer": ...; the line after the last `answer:`; the last '
        "closed \\boxed{...}; the last number. auto (default): published for Llama-3.1 generators, "
        'the dataset crux, and items with a response that holds "answer": (with gold, if all hold '
        "it); for other items the first of json, boxed, answer and, if the gold is a number, "
        "number that a response holds",
    )


def output_path(args: argparse.Namespace, suffix: str) -> Path:
    """--output, or the input's name with a suffix, in the input's folder.

    Raises:
        InputError: it is the input, or no name for JSON.
    """
    path = args.output or args.input.with_name(f"{args.input.stem}{suffix}.json")
    if path.suffix.lower() in TABLES:
        raise InputError(f"--output {path}: the output is JSON; give a name ending in .json")
    outputs.check_output(path, args.input)
    return path


def chosen_path(args: argparse.Namespace, suffix: str) -> Path:
    """`output_path` of a command that replaces its whole output.

    A default name says --limit and --answer-rule too, so that the result of some items, or of
    another rule, replaces none of all items.

    Raises:
        InputError: as `output_path`.
    """
    if getattr(args, "answer_rule", AUTO) != AUTO:
        suffix += f"-{args.answer_rule}"
    return output_path(args, suffix if args.limit is None else f"{suffix}-first{args.limit}")


def choose(
    system: str,
    args: argparse.Namespace,
    items: Iterable[Any],
    output: Path,
    texts: Mapping[str, str] | None = None,
    **settings: Any,
) -> int:
    """Run a command that computes nothing with a model, and write its items.

    Args:
        texts: what people read of each fallback, see `print_counts`.
        settings: of the system.

    Returns:
        The exit code.

    Raises:
        InputError: no item can be used; nothing is then written.
    """
    graded = getattr(args, "gold", None) is not None
    if not graded and getattr(args, "html", None) is not None:
        raise InputError(f"--html {args.html}: without --gold no page is made; give --gold FIELD")
    pages = outputs.report_paths(output) if graded else ()
    browser = outputs.page_paths(args, pages[0], args.input) if pages else []
    outputs.check_outputs([output, *pages, *browser], args.input)
    if graded:
        settings |= {name: getattr(args, name) for name in choices.GRADING}
    if hasattr(args, "answer_rule"):
        settings["answer_rule"] = args.answer_rule
    with contextlib.ExitStack() as stack:
        file, *page_files = (stack.enter_context(atomic(path)) for path in (output, *pages))
        html = stack.enter_context(outputs.open_page(browser))
        try:
            report = evaluate(system, None, items, about=outputs.about_input(args), **settings)
        except NothingUsable as problem:
            raise NothingUsable(f"{args.input}: {problem}") from None
        write_array(file, map(dict, report.items))
        for page, write in zip(page_files, (report.markdown, report.json), strict=False):
            page.write(write())
        if html:
            html.write(report.html())
    print_counts(report.summary, texts or {})
    print_accuracy(report.evaluation.details)
    manifest = outputs.write_manifest(args, None, output, report, **_counts(report.summary))
    code = messages.close_run(args, report, "items", [output, *pages, *browser, manifest])
    return code or int("no_share" in report.evaluation.details)


def print_counts(summary: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """What a choice was made between, and what did not decide it, on stdout.

    Args:
        texts: fallback -> why the usual way did not decide.
    """
    if "best_n" in summary:
        print(_responses(summary))
    for name, count in summary.get("fallbacks", {}).items():
        if count:
            print(f"fallback, {count} of {summary['n_items']} items: {texts[name]}")
    if summary.get("n_unanswered"):
        print(f"{summary['n_unanswered']} items have no extractable answer in any response")
    print_answer_forms(summary)
    if n := summary.get("n_with_noise"):
        within = summary["n_within_noise"]
        print(f"{within} of {n} within the noise: rounding could turn their answer")


def print_answer_forms(summary: Mapping[str, Any]) -> None:
    """How many responses have an answer of which form, on stdout, unless all items are read as
    published."""
    if n := summary.get("n_read_by_form"):
        counts = ", ".join(f"{k} {form}" for form, k in summary["answer_forms"].items() if k)
        n_items = n + summary["n_read_as_published"]
        print(f"{n} of {n_items} items are not in the published form; responses by form: {counts}")


def print_accuracy(details: Mapping[str, Any]) -> None:
    """Shares of right choices on stdout: by N, and of a vote by power for the largest N."""
    rows = details.get("accuracy", [])
    if not rows or rows[0]["accuracy"].n < ENOUGH:
        return
    ways = list(dict.fromkeys(row["way"] for row in rows))
    found = {(row["best_n"], row["way"]): percent(row["accuracy"]) for row in rows}
    sizes = list(dict.fromkeys(row["best_n"] for row in rows))
    print(f"share of right choices, {rows[0]['accuracy'].n} items, with 95% intervals")
    lines = [[str(n), *(found.get((n, way), "") for way in ways)] for n in sizes]
    print(text_table.table([["N", *ways], *lines]))
    powers = [row for row in details.get("by_power", []) if row["best_n"] == sizes[-1]]
    if powers:
        shares = [[row["way"], percent(row["accuracy"])] for row in powers]
        print(text_table.table([["", f"N = {sizes[-1]}"], *shares]))


def _counts(summary: Mapping[str, Any]) -> dict[str, int]:
    """What the manifest counts beside failures."""
    every = {name: n for name, n in summary.items() if name.startswith("n_")}
    every |= {f"n_fallbacks_{name}": n for name, n in summary.get("fallbacks", {}).items()}
    return {name: n for name, n in every.items() if n is not None and name != "n_failed"}


def _responses(summary: Mapping[str, Any]) -> str:
    """N, and how many responses it leaves out."""
    fewest, most = summary["fewest_responses"], summary["most_responses"]
    n, more = summary["best_n"], summary["n_with_more"]
    each = f"{most} responses each" if fewest == most else f"{fewest} to {most} responses"
    left = "all of them are considered"
    if more:
        left = f"{more} of them have more than {n}, and what is after the first {n} is left out"
    return f"N = {n}: the {summary['n_items']} items have {each}; {left}"

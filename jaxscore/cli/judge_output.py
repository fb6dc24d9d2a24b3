"""What `judge` writes and says of one folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxscore.cli import judge_flags, judge_folders, messages, outputs
from jaxscore.cli.judge_folders import Metric
from jaxscore.cli.messages import remark
from jaxscore.errors import InputError
from jaxscore.evaluate import Report, evaluate
from jaxscore.io.atomic import atomic
from jaxscore.io.printable import one_line
from jaxscore.systems.rag import judge_findings
from jaxscore.systems.rag.experiment_folder import RagOutput

if TYPE_CHECKING:  # importing it imports JAX
    from jaxscore.scorer import Scorer

NONE_READ = "no answer names exactly one label, so the mean is null"


class NotKept(Exception):
    """A folder's scores could not be written: it has changed meanwhile, or is full."""


class Judged(NamedTuple):
    """One folder.

    Attributes:
        failures: of its records, and the folder's own where no answer could be read.
        files: that were written.
    """

    folder: Path
    report: Report
    failures: list[tuple[str, str]]
    files: list[Path]


def judge(
    args: argparse.Namespace,
    metric: Metric,
    source: Any,
    scorer: "Scorer | None",
    output: RagOutput,
) -> Judged:
    """Judge one folder, write the results and print them in one line.

    Args:
        source: judges, see `jaxscore.evaluate`.
        scorer: the source if it is a local model.

    Raises:
        NotKept: it cannot be written.
        InputError: the judge cannot be used.
    """
    if scorer is not None:
        scorer.begin_output()
    report = evaluate(
        judge_flags.system(args),
        source,
        output,
        metric=metric.name,
        about=_about(args, metric, output),
        **metric.chosen,
    )
    found = report.evaluation
    page_path, data_path = judge_folders.report_paths(output, metric.name)
    pages = browser_pages(args, metric, output)
    means = judge_findings.means(metric.kind, found.details["summary"])
    try:
        with (
            atomic(page_path) as page,
            atomic(data_path) as data,
            outputs.open_page(pages) as browser,
        ):
            page.write(report.markdown())
            data.write(report.json())
            if browser:
                browser.write(report.html())
            output.save(
                {metric.name: judge_findings.column(found.items)},
                {f"{metric.name}{ending}": value for ending, value in means.items()},
            )
        manifest = outputs.write_manifest(args, scorer, page_path, report)
    except InputError as problem:
        raise NotKept(str(problem)) from None
    line = f"{output.folder}: {metric.name}{_separator(metric)}{found.headline}"
    print(one_line(f"{line}; report {page_path.name}"))
    for told in found.remarks:
        remark(args, f"{output.folder}: {told}")
    failures = [(one.name, one.error) for one in found.failures]
    if metric.kind == "text" and not found.details["summary"]["n"] and _answered(report):
        failures.append((str(output.folder), NONE_READ))
    files = [*judge_folders.written(output, metric), *pages, manifest]
    return Judged(output.folder, report, failures, files)


def browser_pages(args: argparse.Namespace, metric: Metric, output: RagOutput) -> list[Path]:
    """The file of a folder's page for a browser; none with --no-html.

    Raises:
        InputError: --html is a file that the run reads or writes.
    """
    page_path, _ = judge_folders.report_paths(output, metric.name)
    others = judge_folders.written(output, metric)
    return outputs.page_paths(args, page_path, output.path, *others)


def results(metric: str, judged: Sequence[Judged]) -> list[str]:
    """The results of the closing block: the number of one folder, or the range of several."""
    if not judged:
        return []
    if len(judged) == 1:
        [one] = judged
        return [f"{metric}: {one.report.headline}", *_noise(one)]
    means = [one.report.evaluation.details["summary"].get("mean") for one in judged]
    known = [mean for mean in means if mean is not None]
    if not known:
        return [f"{metric}: no record was judged"]
    told = f"{metric}: means from {min(known):.5f} to {max(known):.5f} over {len(known)} folders"
    return [told, *(f"{one.folder}: {line}" for one in judged for line in _noise(one))]


def _noise(one: Judged) -> list[str]:
    found = one.report.evaluation
    return messages.noise_lines(found.noise, found.audited, found.decisions)


def _separator(metric: Metric) -> str:
    return ": " if metric.kind == "pairwise" else " "


def _answered(report: Report) -> bool:
    """Whether the judge answered about any record."""
    return any(one["known"] is not None for one in report.items)


def _about(args: argparse.Namespace, metric: Metric, output: RagOutput) -> dict[str, Any]:
    """What a report's settings hold beside the model's and the system's own."""
    out: dict[str, Any] = {"read_as": metric.kind}
    if metric.kind in ("text", "pairwise"):
        out["max_new_tokens"] = metric.chosen["evaluator"].max_new_tokens
    if metric.kind == "pairwise":
        out |= {"opponent": args.opponent_name, "opponent_folder": str(args.opponent_folder)}
    if args.llm is not None or args.bem is not None:
        out["dtype_flag"] = args.dtype
    return out | {
        "folder": str(output.folder),
        "split": output.split,
        "sample": output.sample,
    }

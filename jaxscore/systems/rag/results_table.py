"""`results`: a table of the metrics of all experiments, in BERGEN's formats."""

import contextlib
import glob
import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from jaxscore.errors import InputError, near
from jaxscore.report.markdown import cell
from jaxscore.systems.rag import experiment_folder, pairwise
from jaxscore.systems.rag.pairwise import OUTCOMES, Stored
from jaxscore.systems.rag.retrieval_runs import STAGES

Row = dict[str, Any]  # column -> text, number or None

SETTINGS = (
    "exp_folder", "query_dataset", "doc_dataset", "Generator", "Retriever", "Reranker", "r_top",
    "rr_top", "gen_time",
)  # fmt: skip
# Counts, None where the files of a folder do not have them:
#   n_records   rows of eval_<split>_out.json, usable or not; without that file, the maximum of
#               records in a judge's report
#   n_failed    rows that cannot be used, and records without a judgment
#   n_unread    records for which an answer of a judge names no label, or several; None if no judge
#               wrote answers
COUNTS = ("n_records", "n_failed", "n_unread")
# The published tables: published column -> column here. `all` has all settings and metrics.
SHORT = {
    "exp_folder": "exp_folder", "query_dataset": "query_dataset", "Generator": "Generator",
    "Retriever": "Retriever", "Reranker": "Reranker",
}  # fmt: skip
FORMATS: dict[str, dict[str, str]] = {
    "all": {},
    "tiny": SHORT | {"M": "M", "LLMeval": "LLMeval"},
    "simple": SHORT
    | {"M": "M", "EM": "EM", "R": "Recall", "Rg-L": "Rouge-L", "BEM": "BEM", "LLMeval": "LLMeval"},
    "full": {
        "exp_folder": "exp_folder", "Retriever": "Retriever", "P_1": "P_1",
        "Reranker": "Reranker", "Generator": "Generator", "gen_time": "gen_time",
        "query_dataset": "query_dataset", "r_top": "r_top", "rr_top": "rr_top", "M": "M",
        "EM": "EM", "F1": "F1", "P": "Precision", "R": "Recall", "Rg-1": "Rouge-1",
        "Rg-2": "Rouge-2", "Rg-L": "Rouge-L", "BEM": "BEM", "LLMeval": "LLMeval",
    },
}  # fmt: skip


def load(
    experiments: Path, split: str, form: str = "all", *, limit: int | None = None
) -> tuple[list[Row], list[tuple[str, str]]]:
    """Return a row for each folder with metrics, ordered by name, and the (folder, error) pairs.

    A reranked run's metrics are prefixed with `rerank_`. A judge counts in `COUNTS` if the table
    has its metric.

    Args:
        form: one of FORMATS, see `table`.
        limit: the number of first folders to read; None is all.

    Raises:
        InputError: no folder has metrics.
    """
    rows: list[Row] = []
    failures: list[tuple[str, str]] = []
    folders = experiment_folder.folders(experiments, split, "metrics")[:limit]
    for folder in folders:
        sources: list[Row] = [{"exp_folder": folder.name}]
        for read in (_settings, _generation_time, _rankings, _metrics):
            try:
                sources.append(read(folder, split))
            except InputError as problem:
                failures.append((str(folder), str(problem)))
        row: Row = {}
        for columns in sources:
            columns = {_utf8(name): value for name, value in columns.items()}
            row = {**row, **columns, **row}  # a metric cannot take a setting's name
        for name, value in row.items():
            if isinstance(value, str):
                row[name] = _utf8(value)
            elif not isinstance(value, int | float | None):
                reason = f"metric {name!r} is not a number: {str(value)[:60]}"
                failures.append((str(folder), reason))
                row[name] = None
        rows.append(row)
    shown = {key for key in _columns(rows, form).values() if _filled(rows, key)}
    for folder, row in zip(folders, rows, strict=True):
        try:
            row |= _counts(folder, split, shown)
        except InputError as problem:
            failures.append((str(folder), str(problem)))
    return rows, failures


def table(rows: Sequence[Row], form: str, sort: str) -> list[Row]:
    """Return the rows with the columns of a format and COUNTS, ordered by a column, then by folder.

    Empty cells come last, and columns that are empty in every row are left out. Folders are
    ordered by their whole names, also where a format shortens them.

    Raises:
        InputError: no such column; lists the columns.
    """
    columns = _columns(rows, form) | {name: name for name in COUNTS}
    key = columns.get(sort, sort)
    if key not in columns.values():
        like = near(sort, columns)
        hint = f"; is it {like}?" if like else ""
        raise InputError(f"--sort {sort}: no such column; there are {', '.join(columns)}{hint}")
    ordered = sorted(rows, key=lambda row: _sort_key(row, key))
    filled = {
        name: key for name, key in columns.items() if name == "exp_folder" or _filled(rows, key)
    }
    out = [{name: row.get(key) for name, key in filled.items()} for row in ordered]
    if form in ("tiny", "simple"):
        for row in out:
            for name in filled.keys() & {"Generator", "Retriever", "Reranker"}:
                row[name] = PurePosixPath(row[name] or "none").name
    return out


def _columns(rows: Sequence[Row], form: str) -> dict[str, str]:
    """Return a format's columns -> columns of rows; without `COUNTS` in a published format."""
    return FORMATS[form] or {
        name: name for name in (*SETTINGS, *COUNTS, *(name for row in rows for name in row))
    }


def _filled(rows: Sequence[Row], key: str) -> bool:
    return any(row.get(key) is not None for row in rows)


def _sort_key(row: Row, column: str) -> tuple[Any, ...]:
    """Return a key that sorts texts before numbers before empty cells, and ties by folder."""
    value = row.get(column)
    is_number = isinstance(value, int | float)
    return value is None, is_number, value if is_number else 0, str(value), row["exp_folder"]


def _utf8(text: str) -> str:
    """Replace lone surrogates, which are valid in JSON and YAML but not in a CSV file."""
    return text.encode("utf-8", "replace").decode()


def _settings(folder: Path, split: str) -> Row:
    config = experiment_folder.read_config(folder, split)
    return {name: value for name, value in config.items() if name in SETTINGS}


def _generation_time(folder: Path, split: str) -> Row:
    times = experiment_folder.read_metrics(folder / f"eval_{split}_generation_time.json")
    return {"gen_time": times.get("Generation time")}


def _reports(folder: Path, split: str) -> list[Stored]:
    """Return the judges' reports in a folder; other files are ignored."""
    paths = sorted(folder.glob(f"eval_{glob.escape(split)}_judge_*.json"))
    return [report for report in map(pairwise.load, paths) if report is not None]


def _counts(folder: Path, split: str, shown: Collection[str]) -> Row:
    """Return `COUNTS`, with the judges of the metrics in `shown`.

    Raises:
        InputError: the file of records cannot be read.
    """
    reports = [r for r in _reports(folder, split) if not {*r.names}.isdisjoint(shown)]
    n_failed = len(_indices(reports, None))
    wrote = any(report.score_source in ("text", "pairwise") for report in reports)
    n_unread = len(_indices(reports, False)) if wrote else None
    try:
        experiment = experiment_folder.load(folder, split)
    except InputError:
        if (folder / f"eval_{split}_out.json").exists():
            raise
        if not reports:
            return dict.fromkeys(COUNTS)
        n_records = max(len(report.records) for report in reports)
    else:
        n_records = len(experiment.rows)
        n_failed += n_records - len(experiment.usable)
    return dict(zip(COUNTS, (n_records, n_failed, n_unread), strict=True))


def _indices(reports: Iterable[Stored], verdict: bool | None) -> set[int]:
    """Return the indices of the records whose `known` has this value in any report."""
    return {
        record["index"]
        for report in reports
        for record in report.records
        if isinstance(record, dict) and isinstance(record.get("index"), int)
        if record.get("known", True) is verdict
    }


def _rankings(folder: Path, split: str) -> Row:
    return {
        f"rerank_{name}" if stage == "reranking" else name: value
        for stage in STAGES
        for name, value in _means(folder / f"eval_{split}_{stage}_metrics.json").items()
    }


def _metrics(folder: Path, split: str) -> Row:
    means = _means(experiment_folder.metrics_path(folder, split))
    unread = {report.metric for report in _reports(folder, split) if not report.has_scores}
    return {
        name: None if name in unread or _of_nothing(name, means) else value
        for name, value in means.items()
    }


def _of_nothing(name: str, means: Row) -> bool:
    """Return True if a metric is the rate of a comparison without a readable answer.

    Published scripts write 0 for win, tie and lose then, which otherwise add up to 100.
    """
    stem, _, outcome = name.rpartition("_")
    return outcome in OUTCOMES and all(means.get(f"{stem}_{rate}") == 0 for rate in OUTCOMES)


def _means(path: Path) -> Row:
    return {name: _mean(value) for name, value in experiment_folder.read_metrics(path).items()}


def _mean(value: Any) -> Any:
    """Return a metric as a number; for the published code's lists of items' values, the mean."""
    if isinstance(value, list) and value and all(type(item) in (int, float) for item in value):
        with contextlib.suppress(OverflowError):  # the list is then reported as not a number
            return math.fsum(value) / len(value)
    return value


def markdown(table: Sequence[Row]) -> str:
    """Return the table in Markdown, with numbers right-aligned and rounded to four decimals."""

    def shown(value: object) -> str:
        text = f"{value:.4f}" if isinstance(value, float) else str("" if value is None else value)
        return cell(text)

    columns = []
    for name in table[0]:
        values = [row[name] for row in table]
        is_right = all(isinstance(value, int | float) for value in values if value is not None)
        cells = [shown(name), *map(shown, values)]
        width = max(3, *map(len, cells))
        rule = "-" * (width - 1) + ":" if is_right else "-" * width
        aligned = [text.rjust(width) if is_right else text.ljust(width) for text in cells]
        columns.append([aligned[0], rule, *aligned[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))

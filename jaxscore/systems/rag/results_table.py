"""`results`: the metrics of all experiments side by side, as BERGEN prints them."""

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
# Counts, as far as the files of a folder say them:
#   n_records   rows of eval_<split>_out.json, usable or not; without that file, the most records
#               that one of the judges' reports has
#   n_failed    rows that cannot be used, and records without a judgment
#   n_unread    records for which an answer of a judge names no label, or several; None if no judge
#               wrote answers
COUNTS = ("n_records", "n_failed", "n_unread")
# The published tables: column -> column of ours. `all` has every setting and metric instead.
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
    """A row for each folder with metrics, in the order of their names, and what cannot be read.

    A reranked run's metrics are prefixed with `rerank_`. A judge has a part in `COUNTS` if the
    table has its metric.

    Args:
        form: of FORMATS, as for `table`.
        limit: only the first so many folders.

    Raises:
        InputError: no folder has metrics.
    """
    rows: list[Row] = []
    failures: list[tuple[str, str]] = []
    folders = experiment_folder.folders(experiments, split, "metrics")[:limit]
    for folder in folders:
        parts: list[Row] = [{"exp_folder": folder.name}]
        for read in (_settings, _generation_time, _rankings, _metrics):
            try:
                parts.append(read(folder, split))
            except InputError as problem:
                failures.append((str(folder), str(problem)))
        row: Row = {}
        for part in parts:
            part = {_utf8(name): value for name, value in part.items()}
            row = {**row, **part, **row}  # a metric cannot take a setting's name
        for name, value in row.items():
            if isinstance(value, str):
                row[name] = _utf8(value)
            elif not isinstance(value, int | float | None):
                no_number = f"metric {name!r} is no number: {str(value)[:60]}"
                failures.append((str(folder), no_number))
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
    """Rows of one of FORMATS and COUNTS, ordered by a column, then by folder; empty cells last.

    A column that is empty in every row is left out. The order of folders is that of the whole
    names, whatever a format shortens.

    Raises:
        InputError: no such column; lists those that there are.
    """
    columns = _columns(rows, form) | {name: name for name in COUNTS}
    key = columns.get(sort, sort)
    if key not in columns.values():
        like = near(sort, columns)
        hint = f"; is it {like}?" if like else ""
        raise InputError(f"--sort {sort}: no such column; there are {', '.join(columns)}{hint}")
    ordered = sorted(rows, key=lambda row: _place(row, key))
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
    """Columns of a format -> columns of ours; without `COUNTS` in a published format."""
    return FORMATS[form] or {
        name: name for name in (*SETTINGS, *COUNTS, *(name for row in rows for name in row))
    }


def _filled(rows: Sequence[Row], key: str) -> bool:
    return any(row.get(key) is not None for row in rows)


def _place(row: Row, column: str) -> tuple[Any, ...]:
    """By which rows are ordered: texts, then numbers, then nothing; equal ones by folder."""
    value = row.get(column)
    number = isinstance(value, int | float)
    return value is None, number, value if number else 0, str(value), row["exp_folder"]


def _utf8(text: str) -> str:
    """Without half surrogate pairs, which JSON and YAML can hold and a csv cannot."""
    return text.encode("utf-8", "replace").decode()


def _settings(folder: Path, split: str) -> Row:
    config = experiment_folder.read_config(folder, split)
    return {name: value for name, value in config.items() if name in SETTINGS}


def _generation_time(folder: Path, split: str) -> Row:
    times = experiment_folder.read_metrics(folder / f"eval_{split}_generation_time.json")
    return {"gen_time": times.get("Generation time")}


def _reports(folder: Path, split: str) -> list[Stored]:
    """What judges left in a folder, without files that are no such reports."""
    paths = sorted(folder.glob(f"eval_{glob.escape(split)}_judge_*.json"))
    return [found for found in map(pairwise.load, paths) if found is not None]


def _counts(folder: Path, split: str, shown: Collection[str]) -> Row:
    """`COUNTS`, to which the judges of the metrics in `shown` contribute.

    Raises:
        InputError: the file of records cannot be read.
    """
    reports = [one for one in _reports(folder, split) if not {*one.names}.isdisjoint(shown)]
    n_failed = len(_indices(reports, None))
    wrote = any(one.kind in ("text", "pairwise") for one in reports)
    n_unread = len(_indices(reports, False)) if wrote else None
    try:
        found = experiment_folder.load(folder, split)
    except InputError:
        if (folder / f"eval_{split}_out.json").exists():
            raise
        if not reports:
            return dict.fromkeys(COUNTS)
        n_records = max(len(one.records) for one in reports)
    else:
        n_records = len(found.rows)
        n_failed += n_records - len(found.usable)
    return dict(zip(COUNTS, (n_records, n_failed, n_unread), strict=True))


def _indices(reports: Iterable[Stored], known: bool | None) -> set[int]:
    """Indices of the records that any report has as known, or as not known."""
    return {
        record["index"]
        for found in reports
        for record in found.records
        if isinstance(record, dict) and isinstance(record.get("index"), int)
        if record.get("known", True) is known
    }


def _rankings(folder: Path, split: str) -> Row:
    return {
        f"rerank_{name}" if stage == "reranking" else name: value
        for stage in STAGES
        for name, value in _means(folder / f"eval_{split}_{stage}_metrics.json").items()
    }


def _metrics(folder: Path, split: str) -> Row:
    found = _means(experiment_folder.metrics_path(folder, split))
    unread = {one.metric for one in _reports(folder, split) if not one.has_scores}
    return {
        name: None if name in unread or _of_nothing(name, found) else value
        for name, value in found.items()
    }


def _of_nothing(name: str, means: Row) -> bool:
    """Whether a metric is the rate of a comparison without a readable answer.

    Published scripts write 0 for win, tie and lose then, which otherwise add up to 100.
    """
    stem, _, outcome = name.rpartition("_")
    return outcome in OUTCOMES and all(means.get(f"{stem}_{one}") == 0 for one in OUTCOMES)


def _means(path: Path) -> Row:
    return {name: _mean(value) for name, value in experiment_folder.read_metrics(path).items()}


def _mean(value: Any) -> Any:
    """A metric as one number; the published code also writes the list of items' values."""
    if isinstance(value, list) and value and all(type(one) in (int, float) for one in value):
        with contextlib.suppress(OverflowError):  # then it is reported as no number
            return math.fsum(value) / len(value)
    return value


def markdown(table: Sequence[Row]) -> str:
    """The displayed table, numbers with four decimals and at the right of their columns."""

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

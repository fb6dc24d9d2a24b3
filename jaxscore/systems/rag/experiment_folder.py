"""Experiment folders of a RAG benchmark in BERGEN's format (arXiv 2407.01102).

    experiments/<name>/config.yaml                  retriever, reranker and generator
                       eval_<split>_out.json        a list of records, one per question
                       eval_<split>_out_<N>.json    the first N of them, with --limit N
                       eval_<split>_metrics.json    {metric: mean}
                       eval_<split>_ranking_metrics.json

A metric is a column of the records and a mean in the metrics file. Both files are replaced
atomically, the records first; the mean of an older column is null until then. An interruption in
between leaves a column without its mean, which the next run computes again, and never a mean of
another column. Other fields and metrics stay unchanged, in their order. An unusable record gets
null in every column.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from jaxscore.errors import InputError
from jaxscore.io import processes
from jaxscore.io.atomic import atomic
from jaxscore.io.json_input import check_regular, json_kind, read_json
from jaxscore.io.json_output import to_json_value
from jaxscore.io.yaml_input import read_yaml
from jaxscore.systems.rag import FIELDS, Records

UNFINISHED = "tmp_"  # in the name of a folder whose experiment still runs
STAGES = {"Generator": "generator", "Retriever": "retriever", "Reranker": "reranker"}  # in a config
PROCESSORS = "modules.dataset_processor."  # before the name of a data set's class


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(Records):
    """The records of one folder and split.

    Attributes:
        sample: the number of first rows that were read; None is all.
    """

    folder: Path
    split: str
    sample: int | None

    @property
    def path(self) -> Path:
        """The file that was read."""
        return self.folder / f"eval_{self.split}_out.json"

    @property
    def target(self) -> Path:
        """The file that columns are written to."""
        if self.sample is None:
            return self.path
        return self.folder / f"eval_{self.split}_out_{self.sample}.json"

    @property
    def metrics_path(self) -> Path:
        """The file of the means."""
        return metrics_path(self.folder, self.split)

    def save(
        self,
        columns: Mapping[str, Mapping[int, float | str | None]],
        means: Mapping[str, float | None],
    ) -> None:
        """Write columns to the records, then means to the metrics file.

        The file of records is read again, so that columns that others wrote since `load` stay.

        Args:
            columns: name, not one of `FIELDS` -> {record's index: value}; other rows get null.
            means: name -> value, merged into the metrics file.

        Raises:
            InputError: the records have changed since they were loaded, or a file cannot be read
                or written. No other metric is lost.
        """
        if not processes.is_first():  # only the first process writes
            return
        rows = _read_rows(self.path, self.sample)
        if not _same_records(rows, self.rows):
            raise InputError(
                f"{self.path}: its records have changed since the run began, so their scores "
                "cannot be kept; run again"
            )
        if self.target != self.path and _exists(self.target):
            stored = _read_rows(self.target, None)
            if _same_records(stored, rows):
                rows = stored  # with the columns of other metrics on the same sample
        for index, row in enumerate(rows):
            if isinstance(row, dict):
                row.update((name, values.get(index)) for name, values in columns.items())
        old = read_metrics(self.metrics_path)
        with atomic(self.target) as file:
            _dump(rows, file)
            file.flush()  # a full disk fails here, while the old means are still valid
            if stale := [name for name in means if old.get(name) is not None]:
                merge_metrics(self.metrics_path, dict.fromkeys(stale))
        merge_metrics(self.metrics_path, means)


def folders(experiments: Path, split: str, file: str = "out") -> list[Path]:
    """Return the finished experiments' folders with a file `eval_<split>_<file>.json`.

    Raises:
        InputError: no such folder, or none in it has the file, or a name is not UTF-8.
    """
    try:
        paths = sorted(path for path in experiments.iterdir() if path.is_dir())
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError)
        raise InputError(
            f"{experiments}: {'no such folder' if missing else problem.strerror}; expected a "
            "folder of experiments, or give one experiment with --folder"
        ) from None
    for path in paths:
        if path.name != path.name.encode("utf-8", "replace").decode():
            raise InputError(f"{experiments}: the name of folder {path.name!a} is not UTF-8")
    name = f"eval_{split}_{file}.json"
    holding = [path for path in paths if UNFINISHED not in path.name and _exists(path / name)]
    if not holding:
        raise InputError(
            f"{experiments}: none of its {len(paths)} folders holds {name}; "
            "give another --split or --experiments-folder"
        )
    return holding


def load(folder: Path, split: str, *, sample: int | None = None) -> Experiment:
    """Read the records of `eval_<split>_out.json`.

    Args:
        sample: the number of first records to read; None is all.

    Raises:
        InputError: the file is missing, not UTF-8, not JSON, or not a list of records.
    """
    path = folder / f"eval_{split}_out.json"
    rows = _read_rows(path, sample)
    experiment = Experiment(where=str(path), rows=rows, folder=folder, split=split, sample=sample)
    if sample is not None and _exists(experiment.target):
        _read_rows(experiment.target, None)  # fail now rather than in `save`, after the work
    return experiment


def metrics_path(folder: Path, split: str) -> Path:
    """Return the file with the means of a split."""
    return folder / f"eval_{split}_metrics.json"


def read_metrics(path: Path) -> dict[str, Any]:
    """Return the object of a metrics file, in its order; empty if the file does not exist.

    Raises:
        InputError: it cannot be read or is not a JSON object.
    """
    if not _exists(path):
        return {}
    value = _read(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: found {json_kind(value)}, expected an object of metrics")
    return value


def merge_metrics(path: Path, means: Mapping[str, float | None]) -> None:
    """Add or replace means in a metrics file; the others stay.

    Raises:
        InputError: the file cannot be read or written.
    """
    merged = {**read_metrics(path), **means}
    with atomic(path) as file:
        _dump(merged, file)


def read_config(folder: Path, split: str) -> dict[str, str | int | None]:
    """Return an experiment's settings in `config.yaml`, by the columns of `results`.

    `generation_top_k` is the number of documents that the generator reads, the k of recall_k.
    Values that are not in the file are None.

    Raises:
        InputError: the file cannot be read, is not YAML of plain values, or is not a mapping.
    """
    path = folder / "config.yaml"
    check_regular(path)
    config = read_yaml(path) if os.path.lexists(path) else None
    if config is not None and not isinstance(config, dict):
        raise InputError(f"{path}: found {json_kind(config)}, expected a mapping of settings")

    def at(*keys: str) -> Any:
        value = config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def text(*keys: str) -> str | None:
        value = at(*keys)
        return value if isinstance(value, str) else None

    def count(name: str) -> int | None:
        value = at(name)
        return value if type(value) is int and value > 0 else None

    datasets = {
        f"{source}_dataset": text("dataset", split, source, "init_args", "_target_")
        for source in ("query", "doc")
    }
    names = {stage: text(stage, "init_args", "model_name") for stage in STAGES.values()}
    return {
        **{column: name and name.replace(PROCESSORS, "") for column, name in datasets.items()},
        **{column: names[stage] for column, stage in STAGES.items()},
        # A config has these also without the stage.
        "r_top": count("retrieve_top_k") if names["retriever"] else None,
        "rr_top": count("rerank_top_k") if names["reranker"] else None,
        "generation_top_k": count("generation_top_k"),
    }


def _same_records(rows: list[Any], other_rows: list[Any]) -> bool:
    return fields_of(rows) == fields_of(other_rows)


def fields_of(rows: list[Any]) -> list[Any]:
    """Return the rows without columns, in the order of `FIELDS`."""
    return [[row.get(name) for name in FIELDS] if isinstance(row, dict) else row for row in rows]


def _read_rows(path: Path, sample: int | None) -> list[Any]:
    value = _read(path)
    if not isinstance(value, list):
        raise InputError(f"{path}: found {json_kind(value)}, expected a list of records")
    if not value:
        raise InputError(f"{path}: the list is empty, expected one record per question")
    return value[:sample]


def _read(path: Path) -> Any:
    check_regular(path)
    return to_json_value(read_json(path, "one JSON value in the whole file"))  # NaN is null


def _exists(path: Path) -> bool:
    """Return True unless the file does not exist; reading reports any other error of `stat`."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _dump(value: Any, file: TextIO) -> None:
    # ASCII with escapes, as in the published scripts, represents any JSON string.
    json.dump(to_json_value(value), file, allow_nan=False, indent=2)
    file.write("\n")

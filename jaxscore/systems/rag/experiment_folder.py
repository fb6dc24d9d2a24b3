"""Experiment folders of a RAG benchmark, as BERGEN writes them (arXiv 2407.01102).

    experiments/<name>/eval_<split>_out.json        a list of records, one per question
                       eval_<split>_out_<N>.json    the first N of them, with --limit N
                       eval_<split>_metrics.json    {metric: mean}
                       eval_<split>_ranking_metrics.json

A metric is a column of the records and a mean in the metrics file. Both files are replaced whole,
the records first; a mean that exists already, of an older column, is null until then. So what
interrupts us in between leaves a column without its mean, which the next run computes again, and
never a mean of another column. Fields and metrics that we do not know stay as they are, in their
order.

A record that cannot be used is listed and gets null in every column; the others are kept.
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
from jaxscore.io.json_output import json_safe
from jaxscore.systems.rag import records
from jaxscore.systems.rag.records import FIELDS, Records

UNFINISHED = "tmp_"  # in the name of a folder whose experiment still runs


@dataclasses.dataclass(frozen=True, kw_only=True)
class RagOutput(Records):
    """The records of one folder and split.

    Attributes:
        sample: only the first so many rows were asked for; None is all.
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

    def save(
        self,
        columns: Mapping[str, Mapping[int, float | str | None]],
        means: Mapping[str, float | None],
    ) -> None:
        """Write columns to the records, then means to `eval_<split>_metrics.json`.

        The file of records is read again, so that columns that others wrote since `load` stay.
        With a sample the columns go to `eval_<split>_out_<N>.json`.

        Args:
            columns: name -> {record's index: value}; a row that is left out gets null.
            means: name -> value, merged into the metrics file.

        Raises:
            InputError: the records are others than those that were loaded, a column has the
                name of a field, or a file cannot be read or written. No other metric is lost.
        """
        if taken := [name for name in columns if name in FIELDS]:
            raise InputError(
                f"a metric cannot be named {taken[0]!r}, which is a field of the records; "
                "give it another name"
            )
        if not processes.is_first():  # another one may be writing these files
            return
        rows = _rows(self.path, self.sample)
        if not _same(rows, self.rows):
            raise InputError(
                f"{self.path}: other records than when the run began, so their scores cannot be "
                "kept; run again"
            )
        target = self.target
        if target != self.path and _there(target) and _same(found := _rows(target, None), rows):
            rows = found  # with the columns of other metrics on the same sample
        for index, row in enumerate(rows):
            if isinstance(row, dict):
                row.update((name, values.get(index)) for name, values in columns.items())
        path = metrics_path(self.folder, self.split)
        old = read_metrics(path)
        with atomic(target) as file:
            _dump(rows, file)
            file.flush()  # a disk that is full is met here, while the old means still hold
            if stale := [name for name in means if old.get(name) is not None]:
                merge_metrics(path, dict.fromkeys(stale))
        merge_metrics(path, means)


def folders(experiments: Path, split: str, file: str = "out") -> list[Path]:
    """Folders in `experiments` that hold `eval_<split>_<file>.json`, unfinished ones left out.

    Raises:
        InputError: no such folder, or none in it has the file, or a name is not UTF-8.
    """
    try:
        found = sorted(path for path in experiments.iterdir() if path.is_dir())
    except OSError as problem:
        missing = isinstance(problem, FileNotFoundError)
        raise InputError(
            f"{experiments}: {'no such folder' if missing else problem.strerror}; expected a "
            "folder of experiments, or give one experiment with --folder"
        ) from None
    for path in found:
        if path.name != path.name.encode("utf-8", "replace").decode():
            raise InputError(f"{experiments}: the name of folder {path.name!a} is not UTF-8")
    name = f"eval_{split}_{file}.json"
    held = [path for path in found if UNFINISHED not in path.name and _there(path / name)]
    if not held:
        raise InputError(
            f"{experiments}: none of its {len(found)} folders holds {name}; "
            "give another --split or --experiments-folder"
        )
    return held


def load(
    folder: Path, split: str, *, sample: int | None = None, question: bool = False
) -> RagOutput:
    """The records of `eval_<split>_out.json`.

    Args:
        sample: only the first so many.
        question: whether a record needs a question.

    Raises:
        InputError: the file is missing, not UTF-8, not JSON, or no list of records. A record
            that is not as expected is among the failures instead.
    """
    path = folder / f"eval_{split}_out.json"
    known = records.read(_rows(path, sample), str(path), question=question)
    output = RagOutput(
        where=known.where,
        rows=known.rows,
        records=known.records,
        failures=known.failures,
        folder=folder,
        split=split,
        sample=sample,
    )
    if sample is not None and _there(output.target):
        _rows(output.target, None)  # what `save` could not read is known before the work starts
    return output


def metrics_path(folder: Path, split: str) -> Path:
    """Where the means of a split are."""
    return folder / f"eval_{split}_metrics.json"


def read_metrics(path: Path) -> dict[str, Any]:
    """The object of a metrics file, in its order; empty where there is no file.

    Raises:
        InputError: it cannot be read or is no JSON object.
    """
    if not _there(path):
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


def _same(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of rows are the same records, whatever their columns."""

    def key(row: Any) -> Any:
        return [row.get(name) for name in FIELDS] if isinstance(row, dict) else row

    return len(one) == len(other) and all(key(a) == key(b) for a, b in zip(one, other, strict=True))


def _rows(path: Path, sample: int | None) -> list[Any]:
    value = _read(path)
    if not isinstance(value, list):
        raise InputError(f"{path}: found {json_kind(value)}, expected a list of records")
    if not value:
        raise InputError(f"{path}: the list is empty, expected one record per question")
    return value[:sample]


def _read(path: Path) -> Any:
    check_regular(path)
    return json_safe(read_json(path, "one JSON value in the whole file"))  # NaN is null


def _there(path: Path) -> bool:
    """Whether there is a file; one that cannot be looked at is, and reading it tells why."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _dump(value: Any, file: TextIO) -> None:
    # ASCII with escapes, as the published scripts write: it holds any string that JSON can.
    json.dump(json_safe(value), file, allow_nan=False, indent=2)
    file.write("\n")

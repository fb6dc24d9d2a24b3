"""How many records of an experiment folder its metrics are over, as far as its files say."""

import dataclasses
import glob
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxscore.errors import InputError
from jaxscore.systems.rag import experiment_folder, stored_judgement
from jaxscore.systems.rag.stored_judgement import Stored

COUNTS = ("n_records", "n_failed", "n_unread")


@dataclasses.dataclass(frozen=True)
class Counts:
    """Of one folder and split; None where no file says it.

    Attributes:
        n_records: rows of `eval_<split>_out.json`, usable or not; without that file, the most
            records that one of the reports has.
        n_failed: rows that cannot be used, and records that a judge could not be asked about.
        n_unread: records for which an answer of a judge names no label, or several; None where
            no judge wrote answers.
    """

    n_records: int | None
    n_failed: int | None
    n_unread: int | None

    def columns(self) -> dict[str, int | None]:
        """By the names of `COUNTS`."""
        return dataclasses.asdict(self)


def reports(folder: Path, split: str) -> list[Stored]:
    """What judges left in a folder; a file that is not such a report is passed over."""
    paths = sorted(folder.glob(f"eval_{glob.escape(split)}_judge_*.json"))
    return [found for path in paths if (found := stored_judgement.load(path)) is not None]


def load(folder: Path, split: str, reports: Sequence[Stored]) -> Counts:
    """Count; a record that several judges leave out counts once.

    Args:
        reports: of the judges that count.

    Raises:
        InputError: the file of records cannot be read.
    """
    failed = _indices(reports, None)
    wrote = any(found.kind in ("text", "pairwise") for found in reports)
    n_unread = len(_indices(reports, False)) if wrote else None
    try:
        output = experiment_folder.load(folder, split)
    except InputError:
        if (folder / f"eval_{split}_out.json").exists():
            raise
        if not reports:
            return Counts(None, None, None)
        return Counts(max(len(one.records) for one in reports), len(failed), n_unread)
    return Counts(len(output.rows), len(output.failures) + len(failed), n_unread)


def _indices(reports: Iterable[Stored], known: bool | None) -> set[int]:
    """Of the records that any report has as known, or not."""
    return {
        one["index"]
        for found in reports
        for one in found.records
        if isinstance(one, dict) and isinstance(one.get("index"), int)
        if one.get("known", True) is known
    }

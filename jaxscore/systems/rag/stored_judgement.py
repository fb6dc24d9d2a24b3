"""The report of an earlier run of `judge`, and what another run would do otherwise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.json_input import read_json
from jaxscore.systems.entries import Entry
from jaxscore.systems.rag.pairwise import OUTCOMES, Pair
from jaxscore.systems.rag.records import Item, record_of

# settings that a run leaves out of its file if they do not apply -> what stands for that
ABSENT: dict[str, Any] = {
    "endpoint": None,
    "lora": None,
    "quantized": None,
    "reproducible": False,
    "both_orders": False,
}
PLACES = ("model", "lora")  # may be paths, which have several spellings
JUDGED = ("index", "q_id", "question", "label", "response", "opponent")  # fields of a record
LONGEST = 60  # characters of a value in a message


def metric_names(metric: str, kind: str | None) -> list[str]:
    """Names of a metric in the metrics file: three rates of a comparison, else one mean."""
    return [f"{metric}_{name}" for name in OUTCOMES] if kind == "pairwise" else [metric]


class Stored(NamedTuple):
    """A report's JSON file.

    Attributes:
        metric: without the endings of a comparison.
        records: as the file has them.
    """

    metric: str
    kind: str
    settings: Mapping[str, Any]
    records: Sequence[Any]

    @property
    def names(self) -> list[str]:
        """The metric's names in the metrics file."""
        return metric_names(self.metric, self.kind)

    @property
    def has_scores(self) -> bool:
        """Whether a record has a score, so that the mean is one."""
        return any(isinstance(record, dict) and record.get("known") for record in self.records)


def load(path: Path) -> Stored | None:
    """Read a report's JSON file; None if it is missing or was not written by a run."""
    try:
        value = read_json(path, "the report of an earlier run") if path.is_file() else None
    except InputError:
        return None
    kinds = {"metric": str, "kind": str, "settings": dict, "records": list}
    if not isinstance(value, dict) or not all(
        isinstance(value.get(name), kind) for name, kind in kinds.items()
    ):
        return None
    return Stored(*(value[name] for name in kinds))


def differences(
    stored: Stored, settings: Mapping[str, Any], judged: Sequence[Entry[Item]] | Sequence[Pair]
) -> list[str]:
    """Describe what another run would do otherwise; empty if it would do the same.

    Args:
        settings: of the other run, by the names that a report has. A setting that the stored
            report does not have is not compared, unless `ABSENT` says what that means.
        judged: what the other run would judge.
    """
    out = []
    for name, value in settings.items():
        if name not in stored.settings and name not in ABSENT:
            continue
        found = stored.settings.get(name, ABSENT.get(name))
        if found == value or name == "evaluator":  # a name or a path; its file's bytes decide
            continue
        if name == "evaluator_sha256":
            was, now = stored.settings.get("evaluator"), settings.get("evaluator")
            out.append(
                f"the evaluator file {now} (--llm-prompt) has changed since"
                if was == now
                else f"the evaluator (--llm-prompt) is {was} there and {now} here"
            )
        elif name not in PLACES or not _is_same_place(found, value):
            out.append(f"{name} is {_shown(found)} there and {_shown(value)} here")
    there = [
        {name: record[name] for name in JUDGED if name in record}
        if isinstance(record, dict)
        else None
        for record in stored.records
    ]
    if there != [
        {**record_of(one.entry), "opponent": one.opponent}
        if isinstance(one, Pair)
        else record_of(one)
        for one in judged
    ]:
        out.append("the records (questions, references, responses) are not the same")
    return out


def _shown(value: Any) -> str:
    shown = "none" if value is None else str(value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def _is_same_place(one: Any, other: Any) -> bool:
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    try:
        return Path(one).exists() and Path(one).resolve() == Path(other).resolve()
    except (OSError, ValueError, RuntimeError):
        return False

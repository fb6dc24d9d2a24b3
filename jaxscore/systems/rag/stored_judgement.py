"""What an earlier run of `judge` left beside its metric, and whether another run would differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.json_input import read_json
from jaxscore.systems.rag.judge_pairwise import OUTCOMES, Pair
from jaxscore.systems.rag.records import Record

# settings that a run leaves out of its file where they do not apply -> what stands for that
ABSENT: dict[str, Any] = {
    "endpoint": None,
    "lora": None,
    "quantized": None,
    "reproducible": False,
    "both_orders": False,
}
PLACES = ("model", "lora")  # may be paths, which have several spellings
COMPARED = ("index", "q_id", "question", "label", "response", "opponent")  # of a record
SHOWN = 60  # characters of a value in a message


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
        """The metric's names in the metrics file: a comparison has three."""
        return metric_names(self.metric, self.kind)

    @property
    def any_known(self) -> bool:
        """Whether a record has a score, so that the mean is one."""
        return any(isinstance(one, dict) and one.get("known") for one in self.records)


def metric_names(metric: str, kind: str | None) -> list[str]:
    """What stands in the metrics file for a metric: three rates of a comparison, else one mean."""
    return [f"{metric}_{one}" for one in OUTCOMES] if kind == "pairwise" else [metric]


def load(path: Path) -> Stored | None:
    """The JSON file of a report; None where there is none, or one that says nothing of a run."""
    try:
        value = read_json(path, "the report of an earlier run") if path.is_file() else None
    except InputError:
        return None
    if not isinstance(value, dict):
        return None
    kinds = {"metric": str, "kind": str, "settings": dict, "records": list}
    if not all(isinstance(value.get(name), kind) for name, kind in kinds.items()):
        return None
    return Stored(*(value[name] for name in kinds))


def differences(
    stored: Stored, settings: Mapping[str, Any], judged: Sequence[Record] | Sequence[Pair]
) -> list[str]:
    """What another run would do otherwise, for people; nothing where it would do the same.

    Args:
        settings: of the other run, by the names that a report has. A setting that the stored
            report does not have is not compared, unless `ABSENT` says what that means.
        judged: what the other run would judge.
    """
    out = []
    for name, wanted in settings.items():
        if name not in stored.settings and name not in ABSENT:
            continue
        found = stored.settings.get(name, ABSENT.get(name))
        if found != wanted and name == "evaluator_sha256":
            was, now = stored.settings.get("evaluator"), settings.get("evaluator")
            out.append(
                f"the evaluator file {now} (--llm-prompt) has changed since"
                if was == now
                else f"the evaluator (--llm-prompt) is {was} there and {now} here"
            )
        elif name == "evaluator":
            continue  # a name or a path; its file's bytes decide
        elif found != wanted and not (name in PLACES and _same_place(found, wanted)):
            out.append(f"{name} is {_shown(found)} there and {_shown(wanted)} here")
    if not _same_records(stored.records, [_compared(one) for one in judged]):
        out.append("the records (questions, references, responses) are not the same")
    return out


def _shown(value: Any) -> str:
    shown = "none" if value is None else str(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"


def _same_place(one: Any, other: Any) -> bool:
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    try:
        return Path(one).exists() and Path(one).resolve() == Path(other).resolve()
    except (OSError, ValueError, RuntimeError):
        return False


def _compared(one: Record | Pair) -> dict[str, Any]:
    record = one.record if isinstance(one, Pair) else one
    out = {name: getattr(record, name) for name in COMPARED[:-1]}
    return {**out, "opponent": one.opponent} if isinstance(one, Pair) else out


def _same_records(stored: Sequence[Any], wanted: Sequence[Mapping[str, Any]]) -> bool:
    found = [
        {name: one[name] for name in COMPARED if name in one} if isinstance(one, dict) else None
        for one in stored
    ]
    return found == list(wanted)

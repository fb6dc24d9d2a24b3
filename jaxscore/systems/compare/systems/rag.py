"""Records of `judge` and of `metrics`."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, System, Title, Unit, shown
from jaxscore.systems.rag.evaluator_file import UNKNOWN
from jaxscore.systems.rag.lexical_evaluation import HITS
from jaxscore.systems.rag.records import FIELDS

VERDICTS = {1.0: "win", 0.5: "tie", 0.0: "lose"}
JUDGED = {"score": "score of the judge"}
JUDGED_CHOICES = {
    "label": Title("likeliest label", statistic="log-probability of a label"),
    "verdict": Title("win, tie or lose"),
}


def read_judged(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per record of the judge's report; one whose answer is not known has no score."""
    named = _named(record)
    if (error := fields.error(record)) is not None:
        yield Unit(**named, error=error)
        return
    if record.get("known") is None:
        yield Unit(**named, error="the judge could not be asked about it")
        return
    score = fields.number(record.get("score"), "score") if fields.mark(record, "known") else None
    choices = {}
    probability = record.get("probability")
    if isinstance(probability, dict) and probability:
        labels = list(probability)
        values = fields.finite({"probability": [*probability.values()]}, "probability",
                               count=len(labels))  # fmt: skip
        choices["label"] = Choice(
            labels[fields.best(values)],
            fields.lead(fields.logs(values)),
            fields.mark(record, "within_noise"),
        )
    if facts.get("read_as") == "pairwise":
        choices["verdict"] = Choice(None if score is None else VERDICTS.get(score, str(score)))
    yield Unit(**named, numbers={"score": score}, choices=choices)


def read_columns(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per record of `eval_<split>_out.json`, with all of its columns of numbers.

    `UNKNOWN` in a column of the judge is no score and has no part in means.
    """
    numbers, choices = {}, {}
    for name, value in record.items():
        if (
            name in (*FIELDS, "index")
            or isinstance(value, bool)
            or not isinstance(value, int | float)
        ):
            continue
        if name in HITS and value in (0, 1):
            choices[name] = Choice(value == 1)
        else:
            numbers[name] = None if value == UNKNOWN else fields.number(value, name)
    yield Unit(**_named(record), numbers=numbers, choices=choices)


def _named(record: Mapping[str, Any]) -> dict[str, Any]:
    id = fields.name(record, "q_id")
    question = record.get("question")
    return {
        "id": id,
        "name": shown(f"{id}: {question}" if question else id),
        "text": (question or "", record.get("label")),
        "answer": record.get("response"),
    }


JUDGE = System(
    name="judge",
    what="records",
    commands=("judge", "bem"),
    read=read_judged,
    numbers=JUDGED,
    choices=JUDGED_CHOICES,
    fixed=("read_as", "label_score"),
)
METRICS = System(
    name="metrics",
    what="records",
    commands=("metrics",),
    read=read_columns,
    numbers={},
    choices={
        "M": Title("match", right=True),
        "EM": Title("exact match", right=True),
    },
    fixed=(),
)

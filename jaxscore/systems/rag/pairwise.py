"""Pairwise judgements: a language model decides which of two responses is better.

Judges have a position bias: many prefer the first response. So the order is drawn from the seed,
and the answer is switched back. `both` asks in both orders: a response wins or loses if both
answers agree, and disagreement is a tie (Zheng et al., arXiv 2306.05685, section 3.4). The rates
are over the records whose answers name one label.
"""

import collections
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.analysis.bootstrap import proportion
from jaxscore.errors import InputError
from jaxscore.io.json_input import read_json
from jaxscore.shell.system import Record
from jaxscore.systems.rag import Findings, Item, Records
from jaxscore.systems.rag.evaluator_file import UNKNOWN, Question
from jaxscore.text.chat_template import Message
from jaxscore.types.results import Generated

WIN, TIE, LOSE = 1.0, 0.5, 0.0
OUTCOMES = {"win": WIN, "tie": TIE, "lose": LOSE}
SHOWN = 10  # ids in a message


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """One question with two responses.

    Attributes:
        opponent: the other response, or "" if it cannot be used.
        switched: the orders of the pair; True puts the opponent's response first.
        error: the reason why the opponent cannot be used.
    """

    item: Item
    opponent: str = ""
    switched: tuple[bool, ...] = ()
    error: str | None = None

    def repeated(self) -> Record:
        """Return the fields that the pair's record repeats."""
        return {**self.item.repeated(), "opponent": self.opponent}


def match(
    items: Iterable[Item], opponents: Records, *, seed: int, both: bool, where: str = ""
) -> list[Pair]:
    """Pair each of our records with the opponent's response to the same question.

    The order is drawn from the seed and the q_id alone, so that it does not depend on what else
    is in the folder.

    Args:
        where: our file, for messages.

    Raises:
        InputError: q_ids of ours that the opponent does not have, counted and listed.
    """
    items = list(items)
    responses: dict[object, list[str]] = collections.defaultdict(list)
    for item in opponents.usable:
        responses[item.q_id].append(item.response)
    ids = (row.get("q_id") for row in opponents.rows if isinstance(row, dict))
    there = {id for id in ids if isinstance(id, str | int)}
    if missing := [item.q_id for item in items if item.q_id not in there]:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise InputError(
            f"{opponents.where or 'the opponent'}: {len(missing)} of the {len(items)} q_ids of "
            f"{where or 'the records'} are not in it: {', '.join(map(repr, missing[:SHOWN]))}"
            f"{more}; the opponent must have answered the same questions"
        )
    pairs = []
    for item in items:
        answers = responses[item.q_id]
        if len(answers) == 1:
            first = random.Random(f"{seed} {item.q_id!r}").random() < 0.5
            pairs.append(Pair(item, answers[0], (False, True) if both else (first,)))
        else:
            why = "cannot be used" if not answers else f"occurs {len(answers)} times"
            location = f" in {opponents.where}" if opponents.where else ""
            pairs.append(Pair(item, error=f"its opponent{location} {why}"))
    return pairs


def render_conversations(
    question: Question, pairs: Sequence[Pair], *, system: bool
) -> list[list[Message]]:
    """Return the judge's prompts: each pair in each of its orders.

    Args:
        system: True if the judge takes a system turn.
    """
    asked = []
    for pair in pairs:
        for switched in pair.switched:
            first, second = pair.item.response, pair.opponent
            if switched:
                first, second = second, first
            values = {
                "question": pair.item.question,
                "answer": str([*pair.item.label]),
                "prediction_1": first,
                "prediction_2": second,
            }
            asked.append(question.messages(values, system=system))
    return asked


def by_texts(
    question: Question, pairs: Sequence[Pair], answers: Iterable[Generated]
) -> Iterator[Record]:
    """Yield the record of each pair, from the answers to `render_conversations`.

    `score` is `WIN`, `TIE` or `LOSE` of our response, `UNKNOWN` if an answer names no label or
    several, None if the request to the judge failed. `answers` has the worth of each answer in the
    prompt's order, before switching back.
    """
    left = iter(answers)
    for pair in pairs:
        if pair.error is not None:
            yield {**pair.item.repeated(), "error": pair.error}
        else:
            verdict = _verdict(question, pair.switched, [next(left) for _ in pair.switched])
            yield {**pair.repeated(), **verdict}


def _verdict(
    question: Question, orders: Sequence[bool], answers: Sequence[Generated]
) -> dict[str, Any]:
    verdict: dict[str, Any] = {
        "score": None,
        "known": None,
        "switched": list(orders),
        "answers": [],
        "texts": [],
    }
    if errors := [answer.error for answer in answers if answer.error is not None]:
        return {**verdict, "error": errors[0]}
    worths = [question.worth(answer.text) for answer in answers]
    scores = {
        1.0 - worth if switched else worth for worth, switched in zip(worths, orders, strict=True)
    }
    score = UNKNOWN if UNKNOWN in worths else scores.pop() if len(scores) == 1 else TIE
    texts = [answer.text for answer in answers]
    return {
        **verdict,
        "score": score,
        "known": score != UNKNOWN,
        "answers": worths,
        "texts": texts,
    }


def compute_findings(records: Sequence[Record]) -> Findings:
    """Return the rates of win, tie and lose, and measures of the judge's position bias.

    The summary has `agree`, the percentage of the records asked in both orders whose two answers
    agree, and `first`, the percentage of answers for the first response among those that prefer a
    response: 50 without position bias. Both are None over zero answers.
    """
    decided = [record for record in records if record["known"]]
    both = [record["answers"] for record in decided if len(record["answers"]) == 2]
    agree = sum(first == 1.0 - second for first, second in both)
    answers = [worth for record in records for worth in record["answers"] if worth in (WIN, LOSE)]
    n_unknown = sum(record["known"] is False for record in records)
    rates = {
        name: proportion([record["score"] == value for record in decided])
        for name, value in OUTCOMES.items()
    }
    warnings = []
    if n_unknown:
        warnings.append(
            f"of {n_unknown} records an answer names no label, or several; they are outside the "
            "rates" + ("" if decided else ", which are null: no record is in them")
        )
    return Findings(
        score_source="pairwise",
        estimates=rates,
        summary={
            "n": len(decided),
            "rates": {
                name: {
                    "percent": _percent(
                        sum(record["score"] == OUTCOMES[name] for record in decided), rate.n
                    ),
                    "interval": [
                        None if bound is None else 100.0 * bound for bound in (rate.low, rate.high)
                    ],
                }
                for name, rate in rates.items()
            },
            "agree": _percent(agree, len(both)),
            "first": _percent(answers.count(WIN), len(answers)),
            "n_unknown": n_unknown,
        },
        warnings=warnings,
    )


def _percent(n: int, of: int) -> float | None:
    return 100.0 * n / of if of else None


# settings that a run leaves out of its file if they do not apply -> the value that this means
ABSENT: dict[str, Any] = {
    "endpoint": None,
    "lora": None,
    "quantized": None,
    "reproducible": False,
    "both_orders": False,
    "label_match": "substring",
}
PATH_SETTINGS = ("model", "lora")  # may be paths, which have several spellings
JUDGED = ("index", "q_id", "question", "label", "response", "opponent")  # fields of a record
LONGEST = 60  # characters of a value in a message


def metric_names(metric: str, score_source: str | None) -> list[str]:
    """Return names of a metric in the metrics file: three rates of a comparison, else one mean."""
    return [f"{metric}_{name}" for name in OUTCOMES] if score_source == "pairwise" else [metric]


class Stored(NamedTuple):
    """A report's JSON file.

    Attributes:
        metric: the metric's name without the endings of a comparison.
        records: the file's records, unchecked.
    """

    metric: str
    score_source: str
    settings: Mapping[str, Any]
    records: Sequence[Any]

    @property
    def names(self) -> list[str]:
        """The metric's names in the metrics file."""
        return metric_names(self.metric, self.score_source)

    @property
    def has_scores(self) -> bool:
        """True if a record has a score, so that the mean is defined."""
        return any(isinstance(record, dict) and record.get("known") for record in self.records)


def load(path: Path) -> Stored | None:
    """Read a report's JSON file; None if it is missing or was not written by a run."""
    try:
        value = read_json(path, "the report of an earlier run") if path.is_file() else None
    except InputError:
        return None
    kinds = {"metric": str, "kind": str, "settings": dict, "records": list}
    if not isinstance(value, dict) or not all(
        isinstance(value.get(name), expected) for name, expected in kinds.items()
    ):
        return None
    return Stored(*(value[name] for name in kinds))


def differences(stored: Stored, settings: Mapping[str, Any], judged: Sequence[Record]) -> list[str]:
    """Describe the differences of another run from a stored report.

    Args:
        settings: the other run's settings by their names in a report. A setting that is not in
            the stored report is compared only if `ABSENT` has its value.
        judged: the fields `JUDGED` of the other run's records.
    """
    out = []
    for name, value in settings.items():
        if name not in stored.settings and name not in ABSENT:
            continue
        stored_value = stored.settings.get(name, ABSENT.get(name))
        # An evaluator is a name or a path; its file's digest decides.
        if stored_value == value or name == "evaluator":
            continue
        if name == "evaluator_sha256":
            was, now = stored.settings.get("evaluator"), settings.get("evaluator")
            out.append(
                f"the evaluator file {now} (--llm-prompt) has changed since"
                if was == now
                else f"the evaluator (--llm-prompt) is {was} there and {now} here"
            )
        elif name not in PATH_SETTINGS or not _is_same_path(stored_value, value):
            out.append(f"{name} is {_shown(stored_value)} there and {_shown(value)} here")
    stored_records = [
        {name: record[name] for name in JUDGED if name in record}
        if isinstance(record, dict)
        else None
        for record in stored.records
    ]
    if stored_records != judged:
        out.append("the records (questions, references, responses) are not the same")
    return out


def _shown(value: Any) -> str:
    shown = "none" if value is None else str(value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def _is_same_path(value: Any, other: Any) -> bool:
    if not isinstance(value, str) or not isinstance(other, str):
        return False
    try:
        return Path(value).exists() and Path(value).resolve() == Path(other).resolve()
    except (OSError, ValueError, RuntimeError):
        return False

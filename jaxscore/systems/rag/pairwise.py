"""Which of two responses is better, says a language model.

Judges prefer a place: many take the first response, whatever it is. So the order is switched at
random, by seed, and the answer is switched back. `both` asks in either order: a response wins or
loses if both answers say so, and answers that disagree are a tie (Zheng et al., arXiv 2306.05685,
section 3.4). The rates are over the records whose answers name one label.
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
        opponent: the other response; "" if it cannot be used.
        switched: orders of the pair; True has the opponent's response first.
        error: why the opponent cannot be used.
    """

    item: Item
    opponent: str = ""
    switched: tuple[bool, ...] = ()
    error: str | None = None

    def repeated(self) -> Record:
        """The fields that its record repeats."""
        return {**self.item.repeated(), "opponent": self.opponent}


def match(
    ours: Iterable[Item], theirs: Records, *, seed: int, both: bool, where: str = ""
) -> list[Pair]:
    """Pair each of our records with the opponent's response to the same question.

    The order is drawn from the seed and the q_id alone, so that it does not depend on what else
    is in the folder.

    Args:
        where: our file, for messages.

    Raises:
        InputError: q_ids of ours that the opponent does not have, counted and listed.
    """
    ours = list(ours)
    responses: dict[object, list[str]] = collections.defaultdict(list)
    for item in theirs.usable:
        responses[item.q_id].append(item.response)
    ids = (row.get("q_id") for row in theirs.rows if isinstance(row, dict))
    there = {id for id in ids if isinstance(id, str | int)}
    if missing := [item.q_id for item in ours if item.q_id not in there]:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise InputError(
            f"{theirs.where or 'the opponent'}: {len(missing)} of the {len(ours)} q_ids of "
            f"{where or 'the records'} are not in it: {', '.join(map(repr, missing[:SHOWN]))}"
            f"{more}; the opponent must have answered the same questions"
        )
    pairs = []
    for item in ours:
        found = responses[item.q_id]
        if len(found) == 1:
            first = random.Random(f"{seed} {item.q_id!r}").random() < 0.5
            pairs.append(Pair(item, found[0], (False, True) if both else (first,)))
        else:
            why = "cannot be used" if not found else f"occurs {len(found)} times"
            place = f" in {theirs.where}" if theirs.where else ""
            pairs.append(Pair(item, error=f"its opponent{place} {why}"))
    return pairs


def conversations(
    question: Question, pairs: Sequence[Pair], *, system: bool
) -> list[list[Message]]:
    """The judge's prompts: each pair in each of its orders.

    Args:
        system: whether it takes a system turn.
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
    """The record of each pair, from the answers to `conversations`.

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
    ours = {
        1.0 - worth if switched else worth for worth, switched in zip(worths, orders, strict=True)
    }
    score = UNKNOWN if UNKNOWN in worths else ours.pop() if len(ours) == 1 else TIE
    texts = [answer.text for answer in answers]
    return {
        **verdict,
        "score": score,
        "known": score != UNKNOWN,
        "answers": worths,
        "texts": texts,
    }


def findings(records: Sequence[Record]) -> Findings:
    """Rates of winning, and how much the place decided.

    The summary has `agree`, the percentage of the records asked both ways whose two answers say
    the same, and `first`, the percentage of the answers for one response that are for the one
    that stood first: 50 has no preference for a place. They are None over no answers.
    """
    known = [record for record in records if record["known"]]
    both = [record["answers"] for record in known if len(record["answers"]) == 2]
    agree = sum(first == 1.0 - second for first, second in both)
    answers = [worth for record in records for worth in record["answers"] if worth in (WIN, LOSE)]
    n_unknown = sum(record["known"] is False for record in records)
    rates = {
        name: proportion([record["score"] == value for record in known])
        for name, value in OUTCOMES.items()
    }
    warnings = []
    if n_unknown:
        warnings.append(
            f"of {n_unknown} records an answer names no label, or several; they are outside the "
            "rates" + ("" if known else ", which are null: no record is in them")
        )
    return Findings(
        kind="pairwise",
        estimates=rates,
        summary={
            "n": len(known),
            "rates": {
                name: {
                    "percent": _percent(
                        sum(record["score"] == OUTCOMES[name] for record in known), rate.n
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


# settings that a run leaves out of its file if they do not apply -> what stands for that
ABSENT: dict[str, Any] = {
    "endpoint": None,
    "lora": None,
    "quantized": None,
    "reproducible": False,
    "both_orders": False,
    "label_match": "substring",
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


def differences(stored: Stored, settings: Mapping[str, Any], judged: Sequence[Record]) -> list[str]:
    """Describe what another run would do otherwise; empty if it would do the same.

    Args:
        settings: of the other run, by the names that a report has. A setting that the stored
            report does not have is not compared, unless `ABSENT` says what that means.
        judged: fields `JUDGED` of what the other run would judge.
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
    if there != judged:
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

"""Which of two responses is better, says a language model.

Judges prefer a place: many take the first response, whatever it is. So the order is switched at
random, by seed, and the answer is switched back. `both` asks in either order: a response wins or
loses if both answers say so, and answers that disagree are a tie (Zheng et al., arXiv 2306.05685,
section 3.4). The rates are over the records whose answers name one label.
"""

import collections
import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxscore.analysis.bootstrap import proportion
from jaxscore.errors import InputError
from jaxscore.io.json_input import read_json
from jaxscore.systems.entries import Entry
from jaxscore.systems.evaluation import Failure
from jaxscore.systems.rag import Findings, Item, Records, record_of
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
        switched: orders of the pair; True has the opponent's response first.
    """

    entry: Entry[Item]
    opponent: str
    switched: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PairVerdict:
    """What the judge says of one pair.

    Attributes:
        score: `WIN`, `TIE` or `LOSE` of our response, `UNKNOWN` if an answer names no label or
            several, None if the request to the judge failed.
        answers: worth of each answer in the prompt's order, before switching back.
        texts: each answer.
        error: why the request to the judge failed.
    """

    pair: Pair
    score: float | None = None
    answers: tuple[float, ...] = ()
    texts: tuple[str, ...] = ()
    error: str | None = None

    @property
    def known(self) -> bool | None:
        """Whether there is a score; None if the request to the judge failed."""
        return None if self.error is not None else self.score != UNKNOWN


def match(
    ours: Sequence[Entry[Item]], theirs: Records, *, seed: int, both: bool, where: str = ""
) -> tuple[list[Pair], list[Failure]]:
    """Pair our usable records with the opponent's response to the same question.

    The order is drawn from the seed and the q_id alone, so that it does not depend on what else
    is in the folder.

    Args:
        where: our file, for messages.

    Returns:
        The pairs, and the records whose opponent exists and cannot be used.

    Raises:
        InputError: q_ids of ours that the opponent does not have, counted and listed.
    """
    responses: dict[object, list[str]] = collections.defaultdict(list)
    for entry in theirs.usable:
        assert entry.item is not None
        responses[entry.id].append(entry.item.response)
    there = {entry.id for entry in theirs.entries}
    if missing := [entry.id for entry in ours if entry.id not in there]:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise InputError(
            f"{theirs.where or 'the opponent'}: {len(missing)} of the {len(ours)} q_ids of "
            f"{where or 'the records'} are not in it: {', '.join(map(repr, missing[:SHOWN]))}"
            f"{more}; the opponent must have answered the same questions"
        )
    pairs, failures = [], []
    for entry in ours:
        found = responses[entry.id]
        if len(found) == 1:
            first = random.Random(f"{seed} {entry.id!r}").random() < 0.5
            pairs.append(Pair(entry, found[0], (False, True) if both else (first,)))
        else:
            why = "cannot be used" if not found else f"occurs {len(found)} times"
            place = f" in {theirs.where}" if theirs.where else ""
            failures.append(Failure(entry.name, f"its opponent{place} {why}"))
    return pairs, failures


def conversations(
    question: Question, pairs: Sequence[Pair], *, system: bool
) -> list[list[Message]]:
    """The judge's prompts: each pair in each of its orders.

    Args:
        system: whether it takes a system turn.
    """
    asked = []
    for pair in pairs:
        item = pair.entry.item
        assert item is not None
        for switched in pair.switched:
            first, second = item.response, pair.opponent
            if switched:
                first, second = second, first
            values = {
                "question": item.question,
                "answer": str(item.label),
                "prediction_1": first,
                "prediction_2": second,
            }
            asked.append(question.messages(values, system=system))
    return asked


def by_texts(
    question: Question, pairs: Sequence[Pair], answers: Sequence[Generated]
) -> list[PairVerdict]:
    """One verdict per pair, from the answers to `conversations`."""
    left = iter(answers)
    return [_verdict(question, pair, [next(left) for _ in pair.switched]) for pair in pairs]


def _verdict(question: Question, pair: Pair, answers: Sequence[Generated]) -> PairVerdict:
    if errors := [one.error for one in answers if one.error is not None]:
        return PairVerdict(pair, error=errors[0])
    worths = tuple(question.worth(one.text) for one in answers)
    texts = tuple(one.text for one in answers)
    if UNKNOWN in worths:
        return PairVerdict(pair, UNKNOWN, worths, texts)
    ours = {
        1.0 - worth if switched else worth
        for worth, switched in zip(worths, pair.switched, strict=True)
    }
    return PairVerdict(pair, ours.pop() if len(ours) == 1 else TIE, worths, texts)


def findings(verdicts: Sequence[PairVerdict]) -> Findings:
    """Rates of winning, how much the place decided, and the fields of each record.

    The summary has `agree`, the percentage of the records asked both ways whose two answers say
    the same, and `first`, the percentage of the answers for one response that are for the one
    that stood first: 50 has no preference for a place. They are None over no answers.
    """
    known = [one for one in verdicts if one.known]
    both = [one.answers for one in known if len(one.answers) == 2]
    agree = sum(first == 1.0 - second for first, second in both)
    answers = [worth for one in verdicts for worth in one.answers if worth in (WIN, LOSE)]
    n_unknown = sum(one.known is False for one in verdicts)
    rates = {
        name: proportion([one.score == value for one in known]) for name, value in OUTCOMES.items()
    }
    remarks = []
    if n_unknown:
        remarks.append(
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
                    "percent": _percent(sum(one.score == OUTCOMES[name] for one in known), rate.n),
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
        fields=[
            {
                "opponent": one.pair.opponent,
                "score": one.score,
                "known": one.known,
                "switched": list(one.pair.switched),
                "answers": list(one.answers),
                "texts": list(one.texts),
            }
            for one in verdicts
        ],
        errors=[one.error for one in verdicts],
        remarks=remarks,
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

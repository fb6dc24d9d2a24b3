"""`judge --opponent-folder`: which of two responses is better, says a language model.

Judges prefer a place: many take the first response, whatever it is. So the order is switched at
random, by seed, and the answer is switched back. `both` asks in either order: a response wins or
loses where both answers say so, and what disagrees is a tie (Zheng et al., arXiv 2306.05685,
section 3.4). The rates are over the records whose answers name one label.
"""

import collections
import dataclasses
import random
from collections.abc import Sequence

from jaxscore.analysis.bootstrap import Estimate, proportion
from jaxscore.errors import InputError
from jaxscore.systems.rag.evaluator_file import UNKNOWN, Question
from jaxscore.systems.rag.judge_pointwise import worth
from jaxscore.systems.rag.records import Record, Records
from jaxscore.text.chat_template import Message
from jaxscore.types.results import Generated

WIN, TIE, LOSE = 1.0, 0.5, 0.0
OUTCOMES = {"win": WIN, "tie": TIE, "lose": LOSE}
SHOWN = 10  # ids in a message


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """One question with two responses.

    Attributes:
        switched: in which orders it is asked; True has the opponent's response first.
    """

    record: Record
    opponent: str
    switched: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PairVerdict:
    """What the judge says of one pair.

    Attributes:
        score: `WIN`, `TIE` or `LOSE` of our response, `UNKNOWN` where an answer names no label
            or several, None where the judge could not be asked.
        answers: worth of each answer as it was asked, before switching back.
        texts: each answer.
        error: why the judge could not be asked.
    """

    pair: Pair
    score: float | None
    answers: tuple[float, ...]
    texts: tuple[str, ...]
    error: str | None = None

    @property
    def known(self) -> bool:
        return self.score is not None and self.score != UNKNOWN


@dataclasses.dataclass(frozen=True)
class PairSummary:
    """Of all verdicts.

    Attributes:
        rates: share of the known that are `win`, `tie` and `lose`, with Wilson's interval; None
            where none is known.
        agree: percent of the records asked both ways whose two answers say the same; None where
            no record was.
        first: percent of the answers for one response that are for the one that stood first; 50
            has no preference for a place. None where there are none.
    """

    n_known: int
    n_unknown: int
    n_failed: int
    rates: dict[str, Estimate]
    agree: float | None
    first: float | None


def match(
    ours: Records, theirs: Records, *, seed: int, both: bool
) -> tuple[list[Pair], list[tuple[str, str]]]:
    """Our records with the opponent's response to the same question.

    The order is drawn from the seed and the q_id alone, so that it does not depend on what else
    is in the folder.

    Returns:
        The pairs, and (name, why) of records whose opponent exists and cannot be used.

    Raises:
        InputError: q_ids of ours that the opponent does not have, counted and listed.
    """
    found: dict[object, list[Record]] = collections.defaultdict(list)
    for record in theirs.records:
        found[record.q_id].append(record)
    there = {row["q_id"] for row in theirs.rows if _has_id(row)}
    if missing := [r.q_id for r in ours.records if r.q_id not in there]:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise InputError(
            f"{_named(theirs, 'the opponent')}: {len(missing)} of the {len(ours.records)} q_ids of "
            f"{_named(ours, 'the records')} are not in it: "
            f"{', '.join(map(repr, missing[:SHOWN]))}{more}; the opponent must have answered the "
            "same questions"
        )
    pairs, failures = [], []
    for record in ours.records:
        own = found[record.q_id]
        if len(own) == 1:
            first = random.Random(f"{seed} {record.q_id!r}").random() < 0.5
            switched = (False, True) if both else (first,)
            pairs.append(Pair(record, own[0].response, switched))
        else:
            why = "cannot be used" if not own else f"occurs {len(own)} times"
            place = f" in {theirs.where}" if theirs.where else ""
            failures.append((ours.name(record), f"its opponent{place} {why}"))
    return pairs, failures


def _named(records: Records, otherwise: str) -> str:
    return records.where or otherwise


def _has_id(row: object) -> bool:
    return isinstance(row, dict) and isinstance(row.get("q_id"), str | int)


def conversations(
    question: Question, pairs: Sequence[Pair], *, system: bool
) -> list[list[Message]]:
    """What the judge is asked: each pair in each of its orders."""
    return [
        question.prompt.messages(
            {
                **question.values,
                "question": pair.record.question,
                "answer": str(pair.record.label),
                "prediction_1": pair.opponent if switched else pair.record.response,
                "prediction_2": pair.record.response if switched else pair.opponent,
            },
            system=system,
        )
        for pair in pairs
        for switched in pair.switched
    ]


def evaluate(
    question: Question, pairs: Sequence[Pair], written: Sequence[Generated]
) -> list[PairVerdict]:
    """One verdict per pair, from the answers to `conversations`."""
    left = iter(written)
    return [_verdict(question, pair, [next(left) for _ in pair.switched]) for pair in pairs]


def _verdict(question: Question, pair: Pair, written: Sequence[Generated]) -> PairVerdict:
    if errors := [one.error for one in written if one.error is not None]:
        return PairVerdict(pair, None, (), (), errors[0])
    answers = tuple(worth(question, one.text) for one in written)
    texts = tuple(one.text for one in written)
    return PairVerdict(pair, _combined(pair, answers), answers, texts)


def _combined(pair: Pair, answers: Sequence[float]) -> float:
    """For our response: each answer switched back, and what disagrees is a tie."""
    if UNKNOWN in answers:
        return UNKNOWN
    ours = {
        1.0 - one if switched else one for one, switched in zip(answers, pair.switched, strict=True)
    }
    return ours.pop() if len(ours) == 1 else TIE


def percent(n: int, of: int) -> float | None:
    """`n` of `of` in percent; None of none."""
    return 100.0 * n / of if of else None


def summarise(verdicts: Sequence[PairVerdict]) -> PairSummary:
    """Rates of winning, and how much the place decided."""
    asked = [verdict for verdict in verdicts if verdict.error is None]
    known = [verdict for verdict in asked if verdict.known]
    both = [verdict for verdict in known if len(verdict.answers) == 2]
    agree = [verdict for verdict in both if verdict.answers[0] == 1.0 - verdict.answers[1]]
    answers = [one for verdict in asked for one in verdict.answers if one in (WIN, LOSE)]
    scores = [verdict.score for verdict in known]

    return PairSummary(
        n_known=len(known),
        n_unknown=len(asked) - len(known),
        n_failed=len(verdicts) - len(asked),
        rates={
            name: proportion([score == value for score in scores])
            for name, value in OUTCOMES.items()
        },
        agree=percent(len(agree), len(both)),
        first=percent(answers.count(WIN), len(answers)),
    )

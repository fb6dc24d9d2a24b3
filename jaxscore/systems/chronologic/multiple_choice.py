"""ChronoLogic's questions with lettered options: which letter does the model write?"""

import dataclasses
import math
import random
import re
import string
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Column
from jaxscore.analysis.forecasts import brier, skill
from jaxscore.errors import InputError
from jaxscore.io.json_output import where
from jaxscore.shell.fields import PAIRED, Decision, Metric, Paired
from jaxscore.systems.chronologic.answer_scores import Question, right_answers
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.results import Generated, LabelScores, ListedLabelScores

LETTERS = string.ascii_uppercase
INSTRUCTION = "Respond only with the letter of the correct answer:"
MAX_NEW_TOKENS = 10
CHOICE = re.compile(r"\b[A-Z]\b")
COLUMNS = {
    "accuracy": Column("correct", share=True),
    "skill": Column("skill"),
    "letter_accuracy": Column("letter_correct", share=True),
    "letter_brier": Column("letter_brier"),
}
# What a letter's token begins with in a vocabulary: nothing, or a blank as byte-level BPE and
# SentencePiece write it.
BLANKS = ("", "Ġ", "▁")


@dataclasses.dataclass(frozen=True)
class Quiz:
    """A question with lettered options: choice k has letter k."""

    choices: tuple[str, ...]
    truth: tuple[float, ...]
    prompt: str

    @property
    def correct(self) -> str:
        """The letters of the choices whose truth is 1."""
        is_right = right_answers(self.truth)
        return "".join(letter for letter, right in zip(LETTERS, is_right, strict=False) if right)


@dataclasses.dataclass(frozen=True)
class LetterMass:
    """Next-token probability of each letter of a quiz, under the whole vocabulary.

    Attributes:
        mass: float64 [choices], a letter's tokens with and without a blank taken together.
        outside: probability of everything else, letters beyond the choices included.
        unlisted: letters that an endpoint's list lacks; their mass is 0.
        error: why nothing is known.
    """

    mass: np.ndarray
    outside: float
    unlisted: str = ""
    error: str | None = None


def _logs(record: Mapping[str, Any]) -> list[float]:
    """Log-probability of each letter."""
    return [math.log(p) if p > 0 else -math.inf for p in record["letter_probabilities"]]


def _lead(record: Mapping[str, Any]) -> float:
    return margins.lead(_logs(record))


def _right_from_wrong(record: Mapping[str, Any]) -> float:
    if record.get("letter_probabilities") is None:
        return math.inf
    return margins.right_from_wrong(_logs(record), right_answers(record["truth"]))


def _written_option(record: Mapping[str, Any]) -> str:
    """The text of the option whose letter is written: the order of options may differ."""
    letter = record.get("chosen")
    if letter is None:
        return "(no letter)"
    if letter not in LETTERS or len(letter) != 1:
        raise InputError('field "chosen" is no letter')
    place = LETTERS.index(letter)
    choices: list[str] = record["choices"]
    return choices[place] if place < len(choices) else "(no option's letter)"


def _likeliest_option(record: Mapping[str, Any]) -> str:
    pairs = zip(record["letter_probabilities"], record["choices"], strict=True)
    return max(pairs, key=lambda pair: pair[0])[1]


STATISTIC = "log-probability of a letter"


def _options_in_any_order(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted(zip(record["choices"], map(str, record["truth"]), strict=True))


class LetterRecord(TypedDict, total=False):
    """A question of the mode "mcq"; `error` and no choice if no text was generated."""

    line: int | str
    question: Annotated[str, PAIRED]
    question_category: str
    prompt: str
    choices: Annotated[
        list[str],
        Paired(_options_in_any_order),
        Decision("option whose letter is written", value=_written_option, name="written"),
    ]
    truth: list[float]
    correct_letters: list[str]
    response: str
    chosen: str | None
    is_option: bool
    correct: Annotated[bool, Decision("the letter that is written is right", is_right=True)]
    skill: Annotated[float, Metric("skill score")]
    letter_probabilities: Annotated[
        list[float] | None,
        Decision(
            "option of the likeliest letter", False, STATISTIC, _likeliest_option, _lead,
            "within_noise", "likeliest", "label_logprob",
        ),
    ]  # fmt: skip
    letter_outside: float | None
    letter_correct: Annotated[
        bool | None,
        Decision(
            "the likeliest letter is right", True, STATISTIC, None, _right_from_wrong,
            "letter_correct_within_noise", spread="label_logprob",
        ),
    ]  # fmt: skip
    letter_brier: Annotated[float | None, Metric("Brier score of the letters")]
    letter_error: str
    letters_unlisted: list[str]
    within_noise: bool
    letter_correct_within_noise: bool


def quiz_of(
    question: Question,
    *,
    seed: int,
    metadata: bool = True,
    include_negation: bool = False,
    shuffle: bool = True,
) -> Quiz:
    """The quiz of a question.

    The order of its choices follows from the seed and its own texts alone: the same on every
    machine, and whichever other questions are in the file. The published script draws from one
    generator, question after question.

    Raises:
        InputError: no option is right, there are more options than letters, or negations are left
            out and the types are not known.
    """
    places = list(range(len(question.answer_strings)))
    if not include_negation:
        if question.answer_types is None:
            raise InputError(
                'no field "answer_types", which tells the negations that are left out; '
                "add it, or keep the negations (--include-negation)"
            )
        places = [place for place in places if question.answer_types[place] != "negation"]
    if not any(question.is_right[place] for place in places):
        dropped = "" if include_negation else " among those that are no negation"
        raise InputError(f"no answer is correct{dropped}, expected one of probability 1.0")
    if len(places) > len(LETTERS):
        raise InputError(
            f"{len(places)} options, and there are letters for {len(LETTERS)}; leave some out"
        )
    if shuffle:
        # Sorted by drawn numbers: Python keeps what a seed draws from version to version, and
        # promises nothing for what `shuffle` makes of it.
        texts = [str(seed), question.main_question, *question.answer_strings]
        drawn = random.Random("\n".join(texts))
        places.sort(key=lambda _: drawn.random())
    choices = tuple(question.answer_strings[place] for place in places)
    lines = [question.metadata_frame] if metadata and question.metadata_frame else []
    lines.append(f"QUESTION: {question.main_question}")
    lines += [f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    truth = tuple(question.answer_probabilities[place] for place in places)
    return Quiz(choices, truth, "\n".join([*lines, INSTRUCTION]))


def letter_ids(encoder: TextEncoder, n: int) -> list[tuple[int, ...]]:
    """For the first n letters the ids of the tokens that are it, after a blank or without one.

    Raises:
        InputError: the vocabulary has no such token for a letter.
    """
    vocabulary = encoder.tokenizer.get_vocab()
    letters = LETTERS[:n]
    found = [
        tuple(vocabulary[blank + letter] for blank in BLANKS if blank + letter in vocabulary)
        for letter in letters
    ]
    if missing := [letter for letter, ids in zip(letters, found, strict=True) if not ids]:
        raise InputError(
            f"the tokenizer has no token for the letters {', '.join(missing)}, so their "
            "probabilities are not available"
        )
    return found


def letter_mass(quiz: Quiz, scores: LabelScores, ids: Sequence[tuple[int, ...]]) -> LetterMass:
    """The mass of a local model.

    Args:
        scores: of the ids of the quiz's letters, one after another.
        ids: as of `letter_ids`.
    """
    if scores.error:
        return unknown_mass(scores.error)
    left = iter(np.exp(scores.logprob))
    mass = np.array([sum(next(left) for _ in own) for own in ids[: len(quiz.choices)]])
    if not mass.any():
        return unknown_mass("every letter has probability 0")
    return LetterMass(mass, scores.outside)


def unknown_mass(error: str) -> LetterMass:
    """Nothing is known, and why."""
    return LetterMass(np.zeros(0), 1.0, error=error)


def letter_texts(quiz: Quiz) -> tuple[str, ...]:
    """The labels to request from an endpoint: each letter without a blank and after one."""
    letters = LETTERS[: len(quiz.choices)]
    return tuple(blank + letter for letter in letters for blank in ("", " "))


def listed_letter_mass(scores: ListedLabelScores) -> LetterMass:
    """The mass from an endpoint's scores of `letter_texts`: an unlisted text counts as 0."""
    if scores.error:
        return unknown_mass(scores.error)
    mass = np.nan_to_num(np.exp(scores.logprob), nan=0.0).reshape(-1, 2).sum(axis=1)
    if not mass.any():
        return unknown_mass("the endpoint's list of next tokens holds none of the letters")
    unlisted = "".join(LETTERS[k] for k in np.flatnonzero(mass == 0))
    return LetterMass(mass, max(0.0, 1.0 - float(mass.sum())), unlisted)


def record_of(
    question: Question, quiz: Quiz, written: Generated, letters: LetterMass
) -> dict[str, Any]:
    """The record of a question without `line`; one without generated text has `error`."""
    record: dict[str, Any] = {
        "question": question.main_question,
        "question_category": question.question_category,
        "prompt": quiz.prompt,
        "choices": list(quiz.choices),
        "truth": list(quiz.truth),
        "correct_letters": list(quiz.correct),
    }
    if written.error:
        return {**record, "error": written.error}
    # A server may send a lone surrogate, which no file in UTF-8 can hold.
    response = written.text.encode("utf-8", "replace").decode()
    match = CHOICE.search(response)
    chosen = match.group() if match else None
    correct = chosen is not None and chosen in quiz.correct
    record |= {
        "response": response,
        "chosen": chosen,
        "is_option": chosen is not None and chosen in LETTERS[: len(quiz.choices)],
        "correct": correct,
        "skill": skill(correct, len(quiz.correct), len(quiz.choices)),
    }
    if letters.error:
        names = ("letter_probabilities", "letter_outside", "letter_correct", "letter_brier")
        return {**record, **dict.fromkeys(names), "letter_error": letters.error}
    probabilities = letters.mass / letters.mass.sum()
    record |= {
        "letter_probabilities": probabilities.tolist(),
        "letter_outside": letters.outside,
        "letter_correct": LETTERS[int(probabilities.argmax())] in quiz.correct,
        "letter_brier": brier(probabilities, quiz.truth),
    }
    if letters.unlisted:
        record["letters_unlisted"] = list(letters.unlisted)
    return record


def with_letters(records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The records whose letters have known probabilities."""
    return where(records, lambda record: record.get("letter_probabilities") is not None)


def count_responses(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of the responses, and one mean.

    Returns:
        `n`, those that name `no_letter` or a letter that is `no_option`, those whose question has
        `all_correct` options, those `without_letters`' probabilities, and `letter_outside`, the
        mean probability that is on no option's letter, None if none is known.
    """
    counts = dict.fromkeys(("n", "no_letter", "no_option", "all_correct", "without_letters"), 0)
    outside = array("d")
    for record in records:
        if "error" in record:
            continue
        counts["n"] += 1
        counts["no_letter"] += record["chosen"] is None
        counts["no_option"] += record["chosen"] is not None and not record["is_option"]
        counts["all_correct"] += len(record["correct_letters"]) == len(record["choices"])
        if record.get("letter_probabilities") is None:
            counts["without_letters"] += 1
        else:
            outside.append(record["letter_outside"])
    return {**counts, "letter_outside": float(np.mean(outside)) if outside else None}

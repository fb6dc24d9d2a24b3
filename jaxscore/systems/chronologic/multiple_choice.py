"""ChronoLogic's questions with lettered options, of which the model writes a letter."""

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
# Prefixes of a letter's token in a vocabulary: none, or the space of byte-level BPE or
# SentencePiece.
SPACES = ("", "Ġ", "▁")


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
    """Next-token probability of each letter of a quiz, over the whole vocabulary.

    Attributes:
        mass: float64 [choices], summed over a letter's tokens with and without a leading space.
        outside: the probability of all other tokens, including letters beyond the choices.
        unlisted: the letters that an endpoint's list lacks; their mass is 0.
        error: the reason why the probabilities are unknown.
    """

    mass: np.ndarray
    outside: float
    unlisted: str = ""
    error: str | None = None


def _logs(record: Mapping[str, Any]) -> list[float]:
    """Return the log-probability of each letter."""
    return [math.log(p) if p > 0 else -math.inf for p in record["letter_probabilities"]]


def _lead(record: Mapping[str, Any]) -> float:
    return margins.lead(_logs(record))


def _right_from_wrong(record: Mapping[str, Any]) -> float:
    if record.get("letter_probabilities") is None:
        return math.inf
    return margins.right_from_wrong(_logs(record), right_answers(record["truth"]))


def _written_option(record: Mapping[str, Any]) -> str:
    """Return the text of the written letter's option, since the order of options may differ."""
    letter = record.get("chosen")
    if letter is None:
        return "(no letter)"
    if letter not in LETTERS or len(letter) != 1:
        raise InputError('field "chosen" is not a letter')
    index = LETTERS.index(letter)
    choices: list[str] = record["choices"]
    return choices[index] if index < len(choices) else "(no option's letter)"


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
    """Return the quiz of a question.

    The order of its choices depends only on the seed and its texts: it is the same on every
    machine and with any other questions in the file. The published script draws from one generator
    for all questions.

    Raises:
        InputError: no option is right, there are more options than letters, or negations are left
            out and the types are unknown.
    """
    indices = list(range(len(question.answer_strings)))
    if not include_negation:
        if question.answer_types is None:
            raise InputError(
                'no field "answer_types", which marks the negations to leave out; add it, or keep '
                "the negations (--include-negation)"
            )
        indices = [k for k in indices if question.answer_types[k] != "negation"]
    if not any(question.is_right[k] for k in indices):
        dropped = "" if include_negation else " among those that are not a negation"
        raise InputError(f"no answer is correct{dropped}, expected one of probability 1.0")
    if len(indices) > len(LETTERS):
        raise InputError(
            f"{len(indices)} options, and there are letters for {len(LETTERS)}; leave some out"
        )
    if shuffle:
        # Sorted by drawn numbers: Python guarantees `random()` of a seed across versions, but not
        # `shuffle`.
        texts = [str(seed), question.main_question, *question.answer_strings]
        drawn = random.Random("\n".join(texts))
        indices.sort(key=lambda _: drawn.random())
    choices = tuple(question.answer_strings[k] for k in indices)
    lines = [question.metadata_frame] if metadata and question.metadata_frame else []
    lines.append(f"QUESTION: {question.main_question}")
    lines += [f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    truth = tuple(question.answer_probabilities[k] for k in indices)
    return Quiz(choices, truth, "\n".join([*lines, INSTRUCTION]))


def letter_ids(encoder: TextEncoder, n: int) -> list[tuple[int, ...]]:
    """Return the token ids of each of the first n letters, with and without a leading space.

    Raises:
        InputError: the vocabulary lacks such a token for a letter.
    """
    vocabulary = encoder.tokenizer.get_vocab()
    letters = LETTERS[:n]
    ids_by_letter = [
        tuple(vocabulary[space + letter] for space in SPACES if space + letter in vocabulary)
        for letter in letters
    ]
    if missing := [letter for letter, ids in zip(letters, ids_by_letter, strict=True) if not ids]:
        raise InputError(
            f"the tokenizer lacks a token for the letters {', '.join(missing)}, so their "
            "probabilities are not available"
        )
    return ids_by_letter


def letter_mass(quiz: Quiz, scores: LabelScores, ids: Sequence[tuple[int, ...]]) -> LetterMass:
    """Return the mass of a local model.

    Args:
        scores: the scores of the quiz's letter ids, in order.
        ids: the result of `letter_ids`.
    """
    if scores.error:
        return unknown_mass(scores.error)
    left = iter(np.exp(scores.logprob))
    mass = np.array([sum(next(left) for _ in letter) for letter in ids[: len(quiz.choices)]])
    if not mass.any():
        return unknown_mass("every letter has probability 0")
    return LetterMass(mass, scores.outside)


def unknown_mass(error: str) -> LetterMass:
    """Return unknown probabilities with the reason."""
    return LetterMass(np.zeros(0), 1.0, error=error)


def letter_texts(quiz: Quiz) -> tuple[str, ...]:
    """Return the labels to request from an endpoint: each letter with and without a space."""
    letters = LETTERS[: len(quiz.choices)]
    return tuple(space + letter for letter in letters for space in ("", " "))


def listed_letter_mass(scores: ListedLabelScores) -> LetterMass:
    """Return the mass from an endpoint's scores of `letter_texts`: an unlisted text counts as 0."""
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
    """Return the record of a question without `line`; one without generated text has `error`."""
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
    # A server may send a lone surrogate, which UTF-8 cannot encode.
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
    """Return the records whose letters have known probabilities."""
    return where(records, lambda record: record.get("letter_probabilities") is not None)


def count_responses(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the responses, and average the probability outside the letters.

    Returns:
        Counts of all responses (`n`), of those with `no_letter` or a letter that is `no_option`,
        of questions with only right options (`all_correct`) and of those `without_letters`'
        probabilities; and `letter_outside`, the mean probability outside the options' letters, or
        None if unknown.
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

"""ChronoLogic's questions with lettered options: which letter does the model write?"""

import dataclasses
import math
import random
import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Column
from jaxscore.analysis.brier import brier
from jaxscore.analysis.margins import Decisions
from jaxscore.analysis.skill import skill
from jaxscore.engine.rounding_audit import Noise
from jaxscore.errors import InputError
from jaxscore.systems.chronologic.answer_scores import Question
from jaxscore.systems.evaluation import Failure
from jaxscore.text.encoder import TextEncoder
from jaxscore.types.requests import GenerationRequest, LabelRequest, TextLabelRequest
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
    """A question as it is shown: choice k has letter k."""

    question: Question
    choices: tuple[str, ...]
    truth: tuple[float, ...]
    prompt: str

    @property
    def correct(self) -> str:
        """The letters of the choices whose truth is 1."""
        return "".join(LETTERS[k] for k, value in enumerate(self.truth) if value == 1.0)


@dataclasses.dataclass(frozen=True)
class LetterMass:
    """Next-token probability of each letter of a quiz, under the whole vocabulary.

    Attributes:
        mass: float64 [choices], a letter's tokens with and without a blank taken together.
        outside: probability of everything else, letters beyond the choices included.
        unlisted: letters of which an endpoint's list says nothing; their mass is 0.
        error: why nothing is known.
    """

    mass: np.ndarray
    outside: float
    unlisted: str = ""
    error: str | None = None


def quizzes(
    questions: Sequence[Question],
    *,
    seed: int,
    metadata: bool = True,
    include_negation: bool = False,
    shuffle: bool = True,
) -> tuple[list[Quiz], list[Failure]]:
    """The quizzes, and the questions that make none.

    The order of a question's choices follows from the seed and its own texts alone: the same on
    every machine, and whichever other questions are in the file. The published script draws
    from one generator, question after question.
    """
    made, failures = [], []
    for question in questions:
        try:
            made.append(_quiz(question, seed, metadata, include_negation, shuffle))
        except InputError as problem:
            failures.append(Failure(question.name, str(problem)))
    return made, failures


def _quiz(
    question: Question, seed: int, metadata: bool, include_negation: bool, shuffle: bool
) -> Quiz:
    kept = list(range(len(question.answers)))
    if not include_negation:
        if question.types is None:
            raise InputError(
                'no field "answer_types", which tells the negations that are left out; '
                "add it, or keep the negations (--include-negation)"
            )
        kept = [k for k in kept if question.types[k] != "negation"]
    if not any(question.truth[k] == 1.0 for k in kept):
        dropped = "" if include_negation else " among those that are no negation"
        raise InputError(f"no answer is correct{dropped}, expected one of probability 1.0")
    if len(kept) > len(LETTERS):
        raise InputError(
            f"{len(kept)} options, and there are letters for {len(LETTERS)}; leave some out"
        )
    if shuffle:
        # Sorted by drawn numbers: Python keeps what a seed draws from version to version, and
        # promises nothing for what `shuffle` makes of it.
        drawn = random.Random("\n".join([str(seed), question.text, *question.answers]))
        kept.sort(key=lambda _: drawn.random())
    choices = tuple(question.answers[k] for k in kept)
    lines = [question.frame] if metadata and question.frame else []
    lines.append(f"QUESTION: {question.text}")
    lines += [f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    prompt = "\n".join([*lines, INSTRUCTION])
    return Quiz(question, choices, tuple(question.truth[k] for k in kept), prompt)


def generation_requests(quizzes: Sequence[Quiz]) -> list[GenerationRequest]:
    """Greedy, a few tokens each."""
    return [GenerationRequest(quiz.question.line, quiz.prompt, MAX_NEW_TOKENS) for quiz in quizzes]


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
            "probabilities cannot be asked for"
        )
    return found


def label_requests(quizzes: Sequence[Quiz], ids: Sequence[tuple[int, ...]]) -> list[LabelRequest]:
    """What comes next after each prompt, for a local model; `ids` as of `letter_ids`."""
    return [
        LabelRequest(
            quiz.question.line,
            quiz.prompt,
            tuple(id for own in ids[: len(quiz.choices)] for id in own),
        )
        for quiz in quizzes
    ]


def letter_mass(quiz: Quiz, scores: LabelScores, ids: Sequence[tuple[int, ...]]) -> LetterMass:
    """The answer to a `label_requests`."""
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


def text_label_requests(quizzes: Sequence[Quiz]) -> list[TextLabelRequest]:
    """`label_requests` for an endpoint."""
    return [
        TextLabelRequest(
            quiz.question.line,
            quiz.prompt,
            tuple(b + letter for letter in LETTERS[: len(quiz.choices)] for b in ("", " ")),
        )
        for quiz in quizzes
    ]


def listed_letter_mass(quiz: Quiz, scores: ListedLabelScores) -> LetterMass:
    """The answer to a `text_label_requests`: a form that is not listed counts as 0."""
    if scores.error:
        return unknown_mass(scores.error)
    mass = np.nan_to_num(np.exp(scores.logprob), nan=0.0).reshape(-1, 2).sum(axis=1)
    if not mass.any():
        return unknown_mass("the endpoint's list of next tokens holds none of the letters")
    unlisted = "".join(LETTERS[k] for k in np.flatnonzero(mass == 0))
    return LetterMass(mass, max(0.0, 1.0 - float(mass.sum())), unlisted)


def evaluate(
    quizzes: Sequence[Quiz], written: Sequence[Generated], masses: Sequence[LetterMass]
) -> list[dict[str, Any]]:
    """One result per quiz; one without generated text has `error`."""
    return [
        _evaluate(quiz, one, mass) for quiz, one, mass in zip(quizzes, written, masses, strict=True)
    ]


def _evaluate(quiz: Quiz, written: Generated, letters: LetterMass) -> dict[str, Any]:
    out: dict[str, Any] = {
        "line": quiz.question.line,
        "question": quiz.question.text,
        "question_category": quiz.question.category,
        "prompt": quiz.prompt,
        "choices": list(quiz.choices),
        "truth": list(quiz.truth),
        "correct_letters": list(quiz.correct),
    }
    if written.error:
        return {**out, "error": written.error}
    # A server may send half a surrogate pair, which no file in UTF-8 can hold.
    response = written.text.encode("utf-8", "replace").decode()
    match = CHOICE.search(response)
    chosen = match.group() if match else None
    correct = chosen is not None and chosen in quiz.correct
    out |= {
        "response": response,
        "chosen": chosen,
        "is_option": chosen is not None and chosen in LETTERS[: len(quiz.choices)],
        "correct": correct,
        "skill": skill(correct, len(quiz.correct), len(quiz.choices)),
    }
    if letters.error:
        names = ("letter_probabilities", "letter_outside", "letter_correct", "letter_brier")
        return {**out, **dict.fromkeys(names), "letter_error": letters.error}
    probabilities = letters.mass / letters.mass.sum()
    out |= {
        "letter_probabilities": probabilities.tolist(),
        "letter_outside": letters.outside,
        "letter_correct": LETTERS[int(probabilities.argmax())] in quiz.correct,
        "letter_brier": brier(probabilities, quiz.truth),
    }
    if letters.unlisted:
        out["letters_unlisted"] = list(letters.unlisted)
    return out


def mark(results: Sequence[dict[str, Any]], noise: Noise) -> list[Decisions]:
    """Add to each quiz whose letters' probabilities are known what rounding could turn.

    `within_noise` is of which letter is the likeliest, `letter_correct_within_noise` of whether
    that one is correct. The logarithm of a letter's probability, a sum over its tokens, moves by
    no more than their log-probabilities do. What is written is not audited.
    """
    spread = noise.spread["label_logprob"].largest
    known = [result for result in results if result.get("letter_probabilities") is not None]
    for result in known:
        logs = [math.log(p) if p > 0 else -math.inf for p in result["letter_probabilities"]]
        right = [value == 1.0 for value in result["truth"]]
        result["within_noise"] = margins.within(margins.lead(logs), spread)
        result["letter_correct_within_noise"] = margins.within(
            margins.right_from_wrong(logs, right), spread
        )
    statistic = "label_logprob, as the letters' log-probability"
    return [
        margins.count(what, statistic, spread, [result[field] for result in known])
        for what, field in (
            ("likeliest letter", "within_noise"),
            ("whether it is correct", "letter_correct_within_noise"),
        )
    ]


def responses(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the responses are like: counts, and one mean.

    Returns:
        `n`, those that name `no_letter` or a letter that is `no_option`, those whose question has
        `all_correct` options, those `without_letters`' probabilities, and `letter_outside`, the
        mean probability that is on no option's letter, None where none is known.
    """
    good = [result for result in results if "error" not in result]
    outside = [r["letter_outside"] for r in good if r["letter_outside"] is not None]
    return {
        "n": len(good),
        "no_letter": sum(r["chosen"] is None for r in good),
        "no_option": sum(r["chosen"] is not None and not r["is_option"] for r in good),
        "all_correct": sum(len(r["correct_letters"]) == len(r["choices"]) for r in good),
        "without_letters": len(good) - len(outside),
        "letter_outside": float(np.mean(outside)) if outside else None,
    }

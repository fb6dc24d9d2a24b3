"""Examples of `chronologic`: questions with a right answer, or with its letter."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxscore.errors import InputError
from jaxscore.systems.chronologic.answer_scores import Question, context, question_from, split
from jaxscore.systems.chronologic.multiple_choice import Quiz, quizzes
from jaxscore.systems.prompting import Example, Prompting


def read(given: Any, position: int, where: str) -> Question:
    """A question with a right answer, which is shown with it; a `Question` stays as it is.

    Args:
        position: from 1.
        where: for messages.

    Raises:
        InputError: it is no usable question, or no answer has probability 1.
    """
    if not isinstance(given, Question):
        given = question_from(given, "", position, where)
    if not given.has_right_answer:
        raise InputError(f"{where}: no answer has probability 1, so none can be shown as right")
    return given


def examples(
    shots: Sequence[Question], *, metadata: bool = True, separator: str | None = None
) -> list[Example]:
    """Each question with its first right answer.

    Args:
        separator: as of `split`.
    """
    prompts = [context(one, metadata=metadata) for one in shots]
    return [
        Example(*split(prompt, one.answers[one.truth.index(1.0)], separator), prompt)
        for prompt, one in zip(prompts, shots, strict=True)
    ]


def quiz_examples(shots: Sequence[Question], **shown: Any) -> list[Example]:
    """Each question as it is asked, with the first of its right letters after a blank.

    Args:
        shown: `seed`, `metadata`, `include_negation` and `shuffle` as of `quizzes`.

    Raises:
        InputError: a question makes no quiz.
    """
    made, failures = quizzes(shots, **shown)
    for name, error in failures:
        raise InputError(f"few-shot example {name}: {error}")
    return [
        Example(
            quiz.prompt, f" {quiz.correct[0]}", context(quiz.question, metadata=shown["metadata"])
        )
        for quiz in made
    ]


def prompted_quiz(quiz: Quiz, prompting: Prompting, metadata: bool) -> Quiz:
    """The quiz after system prompt and examples, or in a conversation."""
    key = context(quiz.question, metadata=metadata)
    return dataclasses.replace(quiz, prompt=prompting.context_of(quiz.prompt, key))

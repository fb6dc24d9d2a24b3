"""Questions of `chronologic`: their answers' scores, or letters."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxscore.errors import InputError
from jaxscore.io.json_input import require_field
from jaxscore.systems.compare.systems import fields
from jaxscore.systems.compare.unit import Choice, System, Title, Unit, shown

NUMBERS = {
    "brier": "Brier score of a question",
    "right_probability": "probability of the right answers of a question",
    "answer_logprob": "mean log-probability of an answer, nats per token",
}
CHOICES = {
    "top_correct": Title(
        "the most probable answer is right", right=True, statistic="mean log-probability"
    ),
    "top_answer": Title("most probable answer", statistic="mean log-probability"),
}
LETTER_NUMBERS = {"skill": "skill score", "letter_brier": "Brier score of the letters"}
LETTER_CHOICES = {
    "correct": Title("the letter that is written is right", right=True),
    "letter_correct": Title(
        "the likeliest letter is right", right=True, statistic="log-probability of a letter"
    ),
    "written": Title("option whose letter is written"),
    "likeliest": Title("option of the likeliest letter", statistic="log-probability of a letter"),
}


def read(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per question; each answer has a number of its own."""
    question = require_field(dict(record), "question", str, "the question")
    answers = fields.listed(record, "answers")
    truth = fields.numbers(record, "truth", count=len(answers))
    named: dict[str, Any] = {
        "id": None,
        "name": _name(record, question),
        "text": (question, answers, truth),
    }
    if (error := fields.error(record)) is not None:
        yield Unit(**named, error=error)
        return
    scores = fields.finite(record, "scores", count=len(answers))
    probabilities = fields.finite(record, "probabilities", count=len(answers))
    right = [one == 1.0 for one in truth]
    mass = sum(p for p, good in zip(probabilities, right, strict=True) if good)
    n_tokens = fields.numbers(record, "n_tokens", count=len(answers))
    yield Unit(
        **named,
        n_tokens=sum(int(one or 0) for one in n_tokens),
        numbers={
            **fields.known(record, ("brier",)),
            "right_probability": mass if any(right) else None,
            "answer_logprob": scores,
        },
        choices={
            "top_correct": Choice(
                fields.mark(record, "top_correct"),
                fields.right_from_wrong(scores, right),
                fields.mark(record, "correct_within_noise"),
            ),
            "top_answer": Choice(
                str(answers[fields.best(probabilities)]),
                fields.lead(scores),
                fields.mark(record, "within_noise"),
            ),
        },
    )


def read_letters(record: Mapping[str, Any], place: int, facts: Mapping[str, Any]) -> Iterator[Unit]:
    """One unit per question; options are named by their texts, since their order may differ."""
    question = require_field(dict(record), "question", str, "the question")
    options = [str(one) for one in fields.listed(record, "choices")]
    truth = fields.numbers(record, "truth", count=len(options))
    named: dict[str, Any] = {
        "id": None,
        "name": _name(record, question),
        "text": (question, sorted(zip(options, map(str, truth), strict=True))),
    }
    if (error := fields.error(record)) is not None:
        yield Unit(**named, error=error)
        return
    choices = {
        "correct": Choice(fields.mark(record, "correct")),
        "written": Choice(_option(record.get("chosen"), options)),
    }
    if record.get("letter_probabilities") is not None:
        probabilities = fields.finite(record, "letter_probabilities", count=len(options))
        logs = fields.logs(probabilities)
        choices["letter_correct"] = Choice(
            fields.mark(record, "letter_correct"),
            fields.right_from_wrong(logs, [one == 1.0 for one in truth]),
            fields.mark(record, "letter_correct_within_noise"),
        )
        choices["likeliest"] = Choice(
            options[fields.best(probabilities)],
            fields.lead(logs),
            fields.mark(record, "within_noise"),
        )
    yield Unit(**named, numbers=fields.known(record, tuple(LETTER_NUMBERS)), choices=choices)


def _name(record: Mapping[str, Any], question: str) -> str:
    return shown(f"line {record.get('line')}: {question}")


def _option(letter: Any, options: list[str]) -> str:
    """The text of the option that a letter names."""
    if letter is None:
        return "(no letter)"
    if not isinstance(letter, str) or len(letter) != 1:
        raise InputError('field "chosen" is no letter')
    place = ord(letter) - ord("A")
    return options[place] if 0 <= place < len(options) else "(no option's letter)"


SYSTEM = System(
    name="chronologic",
    what="questions",
    commands=("chronologic",),
    read=read,
    numbers=NUMBERS,
    choices=CHOICES,
    fixed=("boundary", "answer_separator"),
)
LETTERS = System(
    name="chronologic --mcq",
    what="questions",
    commands=("chronologic",),
    read=read_letters,
    numbers=LETTER_NUMBERS,
    choices=LETTER_CHOICES,
    fixed=("include_negation",),
)

"""`chronologic`: which answer would a text of that time give? (ChronoLogic)

Each answer is scored by its mean log-probability after the question, the scores of a question
become probabilities by a softmax, and the Brier score says how far they are from the truth.
`multiple_choice` asks the same questions with lettered options.
"""

import collections
import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.analysis import margins
from jaxscore.analysis.bootstrap import Column
from jaxscore.analysis.brier import brier, uniform_brier
from jaxscore.analysis.margins import Decisions
from jaxscore.analysis.softmax import softmax
from jaxscore.engine.rounding_audit import Noise
from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING, read_rows
from jaxscore.io.json_input import json_kind, require_field
from jaxscore.systems.evaluation import Failure
from jaxscore.systems.prompting import PLAIN, Prompting
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest, Strip

# flag value -> policy of `jaxscore.text.encoder`; upstream is what the published script scores
BOUNDARIES: dict[str, Boundary] = {
    "joint": "joint",
    "separate": "separate",
    "upstream": "skip_context",
}
ADVICE = (
    "joint, the formula of the paper: all tokens of the answer; separate splits off the "
    "blank before it, as no text does; upstream drops its first token, and an answer of one token "
    "then scores 0, the best there is: take it to repeat published numbers alone"
)
COLUMNS = {
    "brier": Column("brier"),
    "uniform_brier": Column("uniform_brier"),
    "top_accuracy": Column("top_correct", share=True),
}
LISTS = ("answer_strings", "answer_probabilities", "answer_types")
FIELDS = ("main_question", "metadata_frame", "question_category", *LISTS)
NO_CATEGORY = "(none)"
SEPARATOR = " "  # published, between `ANSWER:` and an answer; part of the context
SHOWN = 60  # characters of a question in a message


@dataclasses.dataclass(frozen=True)
class Question:
    """A question with its answers.

    Attributes:
        file: its name; empty where the question comes from no file.
        line: its number in the file, else its position from 1.
        frame: what is told before the question; may be empty.
        types: the kind of each answer, such as "negation"; None where the file has none.
        truth: of each answer, 0 to 1.
    """

    file: str
    line: int
    frame: str
    text: str
    category: str
    answers: tuple[str, ...]
    types: tuple[str, ...] | None
    truth: tuple[float, ...]

    @property
    def name(self) -> str:
        """What to call it in a list of failures."""
        return _name(self.file, self.line, self.text)

    @property
    def has_right_answer(self) -> bool:
        """Whether an answer has truth 1, so that naming it is right."""
        return 1.0 in self.truth


def _name(file: str, line: int, text: object) -> str:
    where = f"{file}:{line}" if file else f"question {line}"
    if not isinstance(text, str):
        return where
    return f"{where} {text[:SHOWN]!r}{'…' if len(text) > SHOWN else ''}"


def load(
    path: Path, limit: int | None = None, columns: Mapping[str, str] = NOTHING
) -> tuple[list[Question], list[Failure]]:
    """Questions of a file, and the lines that hold none.

    `main_question`, `answer_strings` and `answer_probabilities` must be there; `metadata_frame`,
    `question_category` and `answer_types` may be null or left out.

    Args:
        path: JSONL, or a table, see `jaxscore.io.items`.
        limit: lines that are read; None for all.
        columns: field -> its name in the file.

    Raises:
        InputError: the file cannot be read, a line is no JSON object, or no line is usable.
    """
    found = itertools.islice(read_rows(path, columns, LISTS), limit)
    return read(((row.number, row.item) for row in found), path)


def read(
    items: Iterable[tuple[int, Any]], path: Path | None = None
) -> tuple[list[Question], list[Failure]]:
    """Questions from (number, object as the input file has it), and the objects that are none.

    A `Question` stays as it is, and so does a `Failure`.

    Args:
        path: the file, for messages.

    Raises:
        InputError: no object is usable.
    """
    file = "" if path is None else path.name
    questions: list[Question] = []
    failures: list[Failure] = []
    for number, item in items:
        if isinstance(item, Question):
            questions.append(item)
            continue
        if isinstance(item, Failure):
            failures.append(item)
            continue
        known = isinstance(item, dict)
        name = _name(file, number, item.get("main_question") if known else None)
        try:
            questions.append(question_from(item, file, number, name))
        except InputError as problem:
            failures.append(Failure(name, str(problem).removeprefix(f"{name}: ")))
    if not questions:
        where = "" if path is None else f"{path}: "
        what = "object" if path is None else "line"
        first = f"; the first, {failures[0].name}: {failures[0].error}" if failures else ""
        raise InputError(f"{where}no {what} holds a usable question{first}")
    return questions, failures


def question_from(item: Any, file: str, line: int, where: str) -> Question:
    """One question from an object as the input file has it.

    Args:
        file, line: as of `Question`.
        where: for messages.

    Raises:
        InputError: it is no object, or a field is missing, of another type, or contradicts another.
    """
    if not isinstance(item, dict):
        raise InputError(f"{where}: found {json_kind(item)}, expected an object")
    optional = {
        name: require_field(item, name, (str, type(None)), where) if name in item else None
        for name in ("metadata_frame", "question_category")
    }
    answers = _strings(item, "answer_strings", where)
    truth = require_field(item, "answer_probabilities", list, where)
    for k, value in enumerate(truth):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1:
            raise InputError(
                f'{where}: field "answer_probabilities", entry {k + 1} is {str(value)[:20]!r}, '
                "expected a number from 0 to 1"
            )
    types = None if item.get("answer_types") is None else _strings(item, "answer_types", where)
    if not answers:
        raise InputError(f"{where}: it has no answer; expected at least one in answer_strings")
    for name, values in (("answer_probabilities", truth), ("answer_types", types)):
        if values is not None and len(values) != len(answers):
            raise InputError(
                f"{where}: {name} has {len(values)} entries and answer_strings {len(answers)}; "
                "expected one for each answer"
            )
    return Question(
        file=file,
        line=line,
        frame=optional["metadata_frame"] or "",
        text=require_field(item, "main_question", str, where),
        category=optional["question_category"] or NO_CATEGORY,
        answers=tuple(answers),
        types=None if types is None else tuple(types),
        truth=tuple(float(value) for value in truth),
    )


def _strings(item: dict[str, Any], name: str, where: str) -> list[str]:
    values = require_field(item, name, list, where)
    for k, value in enumerate(values):
        if not isinstance(value, str):
            raise InputError(
                f'{where}: field "{name}", entry {k + 1} is {str(value)[:20]}, expected a string'
            )
    return values


def sample(questions: Sequence[Question], n: int, seed: int) -> list[Question]:
    """At most n of them, drawn by the seed, in the file's order."""
    chosen = random.Random(seed).sample(range(len(questions)), min(n, len(questions)))
    return [questions[k] for k in sorted(chosen)]


def repeated(questions: Sequence[Question]) -> list[str]:
    """Remarks on questions with an answer twice: legal, and each of them gets a share."""
    out = []
    for question in questions:
        counts = collections.Counter(question.answers)
        twice = next((answer for answer, count in counts.items() if count > 1), None)
        if twice is not None:
            out.append(f"{question.name}: answer {twice[:SHOWN]!r} occurs more than once")
    return out


def without_truth(questions: Sequence[Question]) -> list[str]:
    """Remarks on questions without a right answer: legal, as in the published script."""
    out = []
    for question in questions:
        if not any(question.truth):
            why = "no answer is correct, so no Brier score of 0 is possible"
        elif not question.has_right_answer:
            why = "no answer has probability 1"
        else:
            continue
        out.append(f"{question.name}: {why}; top accuracy leaves the question out")
    return out


def without_frame(questions: Sequence[Question]) -> bool:
    """Whether no question has a metadata frame that could be left out."""
    return not any(question.frame for question in questions)


def context(question: Question, *, metadata: bool = True) -> str:
    """What stands before an answer, to the letter of the published script."""
    frame = f"{question.frame}\n" if metadata and question.frame else ""
    return f"{frame}QUESTION: {question.text}\nANSWER: "


def split(prompt: str, answer: str, separator: str | None) -> tuple[str, str]:
    """A context and an answer with another separator between them than the published one.

    Args:
        prompt: as `context` makes it.
        separator: becomes part of the answer; None leaves the two as they are.
    """
    if separator is None:
        return prompt, answer
    return prompt.removesuffix(SEPARATOR), separator + answer


def requests(
    questions: Sequence[Question],
    *,
    metadata: bool = True,
    prompting: Prompting = PLAIN,
    separator: str | None = None,
) -> list[Request]:
    """One per answer.

    Args:
        separator: as of `split`.
    """
    out = []
    for question in questions:
        key = context(question, metadata=metadata)
        prompt, _ = split(key, "", separator)
        whole = prompting.context_of(prompt, key)
        for k, answer in enumerate(question.answers, start=1):
            _, answer = split(key, answer, separator)
            out.append(Request(f"{question.line}.{k}", whole, prompting.continuation_of(answer)))
    return out


def evaluate(
    questions: Sequence[Question], scored: Sequence[ScoredRequest], boundary: str
) -> list[dict[str, Any]]:
    """One result per question; one that failed has `error` and no scores.

    Args:
        boundary: of the flag; "upstream" gives an answer with no token left the score 0.0, as
            the published script does, and any other fails the question.
    """
    left = iter(scored)
    return [_evaluate(question, left, boundary) for question in questions]


def _evaluate(question: Question, left: Iterator[ScoredRequest], boundary: str) -> dict[str, Any]:
    own = [next(left) for _ in question.answers]
    out: dict[str, Any] = {
        "line": question.line,
        "question": question.text,
        "question_category": question.category,
        "answers": list(question.answers),
        "answer_types": None if question.types is None else list(question.types),
        "truth": list(question.truth),
    }
    for k, one in enumerate(own):
        empty = not one.n_scored and boundary != "upstream"
        error = one.error or ("it has no tokens, so it has no probability" if empty else None)
        if error:
            return {**out, "error": f"answer {k + 1}: {error}"}
    scores = [0.0 if one.mean_logprob is None else one.mean_logprob for one in own]
    probabilities = softmax(scores)
    out |= {
        "scores": scores,
        "probabilities": probabilities.tolist(),
        "n_tokens": [one.n_tokens for one in own],
        "brier": brier(probabilities, question.truth),
        "uniform_brier": uniform_brier(question.truth),
        # Ties go to the first, as argmax has it. Without a right answer nobody can name it.
        "top_correct": question.truth[int(probabilities.argmax())] == 1.0
        if question.has_right_answer
        else None,
    }
    if any(one.truncated for one in own):
        out["truncated"] = [one.truncated for one in own]
    return out


def strips(
    questions: Sequence[Question], requests: Sequence[Request], scored: Sequence[ScoredRequest]
) -> list[list[Strip]]:
    """The tokens of each question's answers; `requests` are those of `requests`, and scored."""
    left = zip(requests, scored, strict=True)
    return [
        [
            Strip(answer, one.context, own)
            for answer, (one, own) in zip(q.answers, left, strict=False)
        ]
        for q in questions
    ]


def mark(results: Sequence[dict[str, Any]], noise: Noise) -> list[Decisions]:
    """Add to each question that was scored what rounding could turn.

    `within_noise` is of which answer is the most probable, `correct_within_noise` of whether that
    one is correct, None where no answer is. Both are decided by the scores, whose order a softmax
    keeps.
    """
    spread = noise.spread["mean_logprob"].largest
    good = [result for result in results if "error" not in result]
    for result in good:
        scores, right = result["scores"], [value == 1.0 for value in result["truth"]]
        result["within_noise"] = margins.within(margins.lead(scores), spread)
        result["correct_within_noise"] = (
            margins.within(margins.right_from_wrong(scores, right), spread) if any(right) else None
        )
    return [
        margins.count(what, "mean_logprob", spread, [result[field] for result in good])
        for what, field in (
            ("most probable answer", "within_noise"),
            ("whether it is correct", "correct_within_noise"),
        )
    ]


def failures(questions: Sequence[Question], results: Sequence[dict[str, Any]]) -> list[Failure]:
    """The questions that could not be evaluated."""
    pairs = zip(questions, results, strict=True)
    return [Failure(q.name, result["error"]) for q, result in pairs if "error" in result]

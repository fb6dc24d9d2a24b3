"""ChronoLogic: the answers that a text of a given time would give.

Scores the answers of questions (`answer_scores`), or lets the model choose among lettered options
(`multiple_choice`).
"""

import dataclasses
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from jaxscore.analysis.bootstrap import Estimate, summarise
from jaxscore.analysis.forecasts import calibration
from jaxscore.errors import InputError
from jaxscore.io.items import NOTHING, Row
from jaxscore.io.json_output import where
from jaxscore.lm import require_local
from jaxscore.report.counts import counted
from jaxscore.report.document import Document
from jaxscore.shell.flags import SWITCH, Flag, flag
from jaxscore.shell.items import Items
from jaxscore.shell.prompts import AnswerSettings, Example
from jaxscore.shell.report import Report
from jaxscore.shell.settings import IntervalSettings
from jaxscore.shell.system import PAGE, SHOWN, Layout, Summary, System, failed
from jaxscore.systems.chronologic import answer_scores, multiple_choice
from jaxscore.systems.chronologic.answer_scores import AnswerRecord, Question, split
from jaxscore.systems.chronologic.multiple_choice import LetterMass, LetterRecord, Quiz
from jaxscore.systems.chronologic.report import report
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import GenerationRequest, LabelRequest, Request, TextLabelRequest
from jaxscore.types.results import Strip

MODES = ("sample", "full", "mcq")
# setting -> the modes that it has an effect in; the others have one in each
EFFECTIVE = {
    "samples": ("sample",),
    "boundary": ("sample", "full"),
    "calibrate": ("sample", "full"),
    "truncate": ("sample", "full"),
    "answer_separator": ("sample", "full"),
    "include_negation": ("mcq",),
    "shuffle": ("mcq",),
}
# setting -> policy of `jaxscore.text.encoder`; upstream is what the published script scores
BOUNDARIES: dict[str, Boundary] = {
    "joint": "joint",
    "separate": "separate",
    "upstream": "skip_context",
}
ADVICE = (
    "joint, the formula of the paper: all tokens of the answer; separate splits off the "
    "space before it, unlike normal text; upstream drops its first token, and an answer of one "
    "token then scores 0, the best score: take it only to repeat published numbers"
)


NO_FRAME = "setting metadata: of no effect, none of {n} questions has a metadata_frame to leave out"


def _mode_flag(name: str, mode: str, help: str) -> Flag:
    return Flag(names=(name,), words=SWITCH, excludes="mode", load=lambda _: mode, help=help)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings, IntervalSettings):
    """Settings of `chronologic`."""

    boundaries = BOUNDARIES
    advice = ADVICE
    fixed = (*AnswerSettings.fixed, "include_negation")
    mode: Literal["sample", "full", "mcq"] = flag(
        "sample",
        help="sample: questions drawn by the seed; full: all; mcq: the model writes a letter",
        is_flag=False,
        also=(
            _mode_flag("--full-eval", "full", "score every question"),
            _mode_flag("--mcq", "mcq", "multiple choice on every question"),
        ),
    )
    samples: int = flag(
        5,
        least=1,
        metavar="N",
        help="questions drawn if neither --full-eval nor --mcq is given (default 5)",
    )
    metadata: bool = flag(True, help="leave the metadata frame out of the prompts")
    include_negation: bool = flag(False, help="--mcq: keep the options of type negation")
    shuffle: bool = flag(True, help="--mcq: keep the options in the file's order", is_advanced=True)
    calibrate: bool = flag(
        False,
        help="fit a softmax temperature on half of the questions, drawn by the seed, and show "
        "what it does on the others",
    )
    boundary: Literal["joint", "separate", "upstream"] = flag(
        "joint",
        help="where an answer starts. joint: encoded as one text with what is before it "
        "(default); separate: encoded apart; upstream: as many tokens are skipped as the "
        "context has alone, as the published script does",
    )

    def __post_init__(self) -> None:
        """Check all values and what contradicts; see `AnswerSettings`."""
        super().__post_init__()
        if self.mode == "mcq" and self.calibrate:
            raise InputError(
                "calibrate scales the scores of answers, which mode mcq does not take; give mode "
                "full (--full-eval)"
            )
        if self.mode == "mcq" and self.truncate is not None:
            raise InputError("truncate: mode mcq shows its prompts whole; leave truncate out")

    def with_examples(self, read: Callable[[Any, int, str], Any]) -> Self:
        """See `PromptSettings.with_examples`; in the mode "mcq" each example makes a quiz."""
        if self.mode != "mcq":
            return super().with_examples(read)

        def read_quiz(value: Any, position: int, where: str) -> Question:
            question: Question = read(value, position, where)
            try:
                _quiz_of(question, self)
            except InputError as problem:
                raise InputError(f"{where}: {problem}") from None
            return question

        return super().with_examples(read_quiz)

    def policies(self) -> dict[str, str]:
        """See `ScoringSettings.policies`; the mode "mcq" scores no text."""
        return {} if self.mode == "mcq" else super().policies()

    def variants(self) -> dict[str, dict[str, Self]]:
        """See `AnswerSettings.variants`.

        The published context ends in a space, so "with a space" is the answer together with it.
        The boundary "joint" reads it so already.
        """
        if self.mode == "mcq":
            return {}
        variants = super().variants()
        if self.boundary == "joint":
            variants.pop("blank", None)
        return variants

    def unused(self) -> list[str]:
        """Return warnings about changed settings without effect in the mode."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [
            f"setting {name}: of no effect in mode {self.mode}, only in {' and '.join(modes)}"
            for name, modes in EFFECTIVE.items()
            if self.mode not in modes and getattr(self, name) != defaults[name]
        ]

    def record(self) -> dict[str, Any]:
        """Return the settings for a report that have an effect in the mode."""
        values = super().record()
        return {k: v for k, v in values.items() if self.mode in EFFECTIVE.get(k, MODES)}


def _labelled(row: Row) -> Row:
    return row._replace(where=label(row.item, row.where))


def label(value: Any, where: str) -> str:
    """Return a question's name in messages: `questions.jsonl:3 'Which city?'`."""
    location = re.sub("^item (?=[0-9]+$)", "question ", Path(where).name).replace(": item ", ":")
    text = value.get("main_question") if isinstance(value, dict) else None
    if not isinstance(text, str):
        return location
    return f"{location} {text[:SHOWN]!r}{'…' if len(text) > SHOWN else ''}"


class Record(AnswerRecord, LetterRecord, total=False):
    """A question of any mode."""


def _score(lm: Any, questions: Iterable[Question], settings: Settings) -> Iterator[dict[str, Any]]:
    """Score the answers of each question."""
    prompting = settings.prompting(lm, _answer_examples(settings))
    settings.note(lm, prompting, (question.context(settings.metadata) for question in questions))

    pending: deque[list[Request]] = deque()  # of questions without a record

    def requests() -> Iterator[Request]:
        for question in questions:
            of_question = answer_scores.requests(
                question,
                metadata=settings.metadata,
                prompting=prompting,
                separator=settings.answer_separator,
            )
            pending.append(of_question)
            yield from of_question

    results = lm.stream(
        requests(),
        n_requests=sum(len(question.answer_strings) for question in questions),
        **settings.options(),
    )
    for question in questions:
        scored = list(itertools.islice(results, len(question.answer_strings)))
        parts = zip(question.answer_strings, pending.popleft(), scored, strict=True)
        strips = [
            Strip(answer, request.context, result).to_page() for answer, request, result in parts
        ]
        record = answer_scores.record_of(question, scored, settings.boundary)
        yield {**record, PAGE: {"strips": strips}}
    next(results, None)  # ends the measured time


def _summary_of_answers(records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
    good = where(records, lambda record: "error" not in record)
    numbers = summarise(
        good, answer_scores.COLUMNS, settings.n_bootstrap, settings.seed, "question_category"
    )
    details: dict[str, Any] = {
        "calibration": calibration(
            (record["probabilities"] for record in good), (record["truth"] for record in good)
        ),
    }
    if settings.calibrate:
        from jaxscore.systems.chronologic import temperature  # here: importing it imports JAX

        details["temperature_scaling"] = temperature.rescale(good, settings.seed)
    return Summary(
        headline=score_headline(numbers["overall"]),
        numbers=numbers,
        details=details,
        failures=failed(records, "line"),
        warnings=[
            *settings.unused(),
            *answer_scores.repeated_answers(good, "answers"),
            *answer_scores.without_right_answer(good),
        ],
    )


def _answer_examples(settings: Settings) -> list[Example]:
    """Return each few-shot question with its first right answer."""
    examples = []
    for question in settings.drawn():
        prompt = question.context(settings.metadata)
        answer = question.answer_strings[question.is_right.index(True)]
        examples.append(Example(*split(prompt, answer, settings.answer_separator), prompt))
    return examples


def _choose(lm: Any, questions: Iterable[Question], settings: Settings) -> Iterator[dict[str, Any]]:
    """Let the model write a letter, and compute the probability of each letter."""
    prompting = settings.prompting(lm, quiz_examples(settings))
    quizzes: list[Quiz | str] = []  # the error of a question without a quiz
    keys = []
    for question in questions:
        try:
            quiz = _quiz_of(question, settings)
        except InputError as problem:
            quizzes.append(str(problem))
            continue
        keys.append(question.context(settings.metadata))
        prompt = prompting.context_of(quiz.prompt, keys[-1])
        quizzes.append(dataclasses.replace(quiz, prompt=prompt))
    settings.note(lm, prompting, keys)
    asked = [quiz for quiz in quizzes if isinstance(quiz, Quiz)]
    special_tokens = prompting.special_tokens
    written = iter(
        lm.generate(
            [
                GenerationRequest(
                    k, quiz.prompt, multiple_choice.MAX_NEW_TOKENS, special_tokens=special_tokens
                )
                for k, quiz in enumerate(asked)
            ]
        )
    )
    masses = iter(_letter_masses(lm, asked, special_tokens=special_tokens))
    for question, outcome in zip(questions, quizzes, strict=True):
        if isinstance(outcome, Quiz):
            yield multiple_choice.record_of(question, outcome, next(written), next(masses))
        else:
            yield {
                "question": question.main_question,
                "question_category": question.question_category,
                "error": outcome,
            }


def _summary_of_letters(records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
    lettered = multiple_choice.with_letters(records)
    numbers = summarise(
        records, multiple_choice.COLUMNS, settings.n_bootstrap, settings.seed, "question_category"
    )
    responses = multiple_choice.count_responses(records)
    return Summary(
        headline=quiz_headline(numbers["overall"], responses["no_letter"]),
        numbers=numbers,
        details={
            "responses": responses,
            "calibration": calibration(
                (record["letter_probabilities"] for record in lettered),
                (record["truth"] for record in lettered),
            ),
        },
        failures=failed(records, "line"),
        warnings=[
            *settings.unused(),
            *answer_scores.repeated_answers(records, "choices"),
        ],
    )


def _quiz_of(question: Question, settings: Settings) -> Quiz:
    return multiple_choice.quiz_of(
        question,
        seed=settings.seed,
        metadata=settings.metadata,
        include_negation=settings.include_negation,
        shuffle=settings.shuffle,
    )


def quiz_examples(settings: Settings) -> list[Example]:
    """Return each few-shot question as in a prompt, with a space and its first right letter."""
    examples = []
    for question in settings.drawn():
        quiz = _quiz_of(question, settings)
        key = question.context(settings.metadata)
        examples.append(Example(quiz.prompt, f" {quiz.correct[0]}", key))
    return examples


def _letter_masses(lm: Any, quizzes: Sequence[Quiz], *, special_tokens: bool) -> list[LetterMass]:
    if not lm.capabilities.is_local:
        listed = lm.label(
            [
                TextLabelRequest(k, quiz.prompt, multiple_choice.letter_texts(quiz))
                for k, quiz in enumerate(quizzes)
            ]
        )
        return [multiple_choice.listed_letter_mass(scores) for scores in listed]
    encoder = require_local("chronologic", lm).encoder
    try:
        largest_n = max((len(quiz.choices) for quiz in quizzes), default=0)
        ids = multiple_choice.letter_ids(encoder, largest_n)
    except InputError as problem:  # the written letters remain usable
        return [multiple_choice.unknown_mass(str(problem)) for _ in quizzes]
    scores = lm.label(
        LabelRequest(
            k,
            quiz.prompt,
            tuple(id for letter in ids[: len(quiz.choices)] for id in letter),
            special_tokens=special_tokens,
        )
        for k, quiz in enumerate(quizzes)
    )
    return [
        multiple_choice.letter_mass(quiz, result, ids)
        for quiz, result in zip(quizzes, scores, strict=True)
    ]


def score_headline(means: Mapping[str, Estimate]) -> str:
    """Return the mean Brier score with its interval as text."""
    brier, uniform = means["brier"], means["uniform_brier"]
    if brier.mean is None:
        return "no question was scored"
    return (
        f"overall Brier {brier.mean:.5f}{brier.span('.5f')}, {counted(brier.n, 'questions')} "
        f"(equal probabilities would get {uniform.mean:.5f})"
    )


def quiz_headline(means: Mapping[str, Estimate], no_letter: int) -> str:
    """Return the accuracy and skill of the written letters with their intervals as text."""
    accuracy, skill = means["accuracy"], means["skill"]
    if accuracy.mean is None:
        return "no question was answered"
    return (
        f"overall accuracy {accuracy.mean:.4f}{accuracy.span('.4f')}, "
        f"skill {skill.mean:.4f}{skill.span('.4f')}, "
        f"{counted(accuracy.n, 'questions')}, {counted(no_letter, 'responses')} without a letter"
    )


class Chronologic(System):
    """Compute a model's probabilities of the answers that a text of a given time would
    give (ChronoLogic).

    questions, one object per line:
      {"metadata_frame": "The following passage comes from a book of 1887.",
       "main_question": "Which city ...?", "question_category": "topic_sentence",
       "answer_strings": ["Vael", "Osk"], "answer_probabilities": [1.0, 0.0],
       "answer_types": ["ground_truth", "negation"]}
      In .csv and .tsv the three lists are JSON text.

    modes:
      (none)       score the answers of 5 questions drawn by --seed: Brier scores
      --full-eval  score the answers of every question
      --mcq        lettered options, the model writes a letter: accuracy, skill
                   scores, and the probability that it gives each letter

    context of an answer:
      {metadata_frame}\\nQUESTION: {main_question}\\nANSWER: {answer}

    MODEL and QUESTIONS.jsonl may be given by --model and --input. The order of a
    question's options follows from the seed and its own texts, whatever else is in
    the file. A question without a right answer is scored with a warning, and top
    accuracy leaves it out; with --mcq it fails. Flags without effect in a mode are
    named on stderr.

    output, in --output-dir (default: next to the questions); no file is replaced:
      eval_report_<model>_<time>.md     readable, the worst 50 questions
      eval_report_<model>_<time>.html   for a browser, with all questions
      eval_results_<model>_<time>.json  the same as JSON, with all questions
      <the report>.run.json             how the result was made
      --output NAME.json writes the questions as one JSON array, and NAME_report.md,
      .json and .html next to it; several files need --output FOLDER/ and a mode.
      The names begin eval_report_full_ and eval_report_mcq_ in those modes.
      With --audit-noise a question also holds `within_noise` and
      `correct_within_noise` (--mcq: `letter_correct_within_noise`): whether
      rounding could change which answer, or letter, is the most probable, and
      whether that one is correct. What the model writes with --mcq is not audited.

    exit code: 0 all evaluated, 1 some questions failed (they are listed),
               2 unusable input.
    """

    name = "chronologic"
    what = "questions"
    item, settings, record = Question, Settings, Record
    layout = Layout(is_ascii=False, repeats=False)

    def needs(self, settings: Settings | None) -> tuple[str, ...]:
        """See `System.needs`; in the mode "mcq" the model writes."""
        is_quiz = settings is not None and settings.mode == "mcq"
        return ("generates", "labels") if is_quiz else ("scores",)

    def read(
        self, source: Any, columns: Mapping[str, str] = NOTHING, lists: Sequence[str] = ()
    ) -> Iterator[Row]:
        """See `System.read`; messages also show a question's text."""
        return map(_labelled, super().read(source, columns, lists))

    def check(self, items: Items, settings: Settings) -> None:
        """Draw questions in the mode "sample".

        Raises:
            InputError: none is usable, or too few for a temperature.
        """
        super().check(items, settings)
        if settings.mode == "sample":
            items.draw(settings.samples, settings.seed)
        if settings.calibrate and len(items) < 2:
            raise InputError(
                f"calibrate: {len(items)} question to split in two parts, expected at least 2; "
                "take more, or leave calibrate out"
            )

    def score(
        self, lm: Any, items: Sequence[Question], settings: Settings
    ) -> Iterator[dict[str, Any]]:
        """Score the answers of questions, or let the model choose among them."""
        settings.check_model(lm.capabilities)
        n = 0 if settings.metadata else len(items)
        if n and not any(question.metadata_frame for question in items):
            lm.warnings[NO_FRAME] += n
        return (_choose if settings.mode == "mcq" else _score)(lm, items, settings)

    def summarize(self, records: Sequence[Mapping[str, Any]], settings: Settings) -> Summary:
        """Return Brier scores of answers, or accuracy and skill of letters."""
        is_quiz = settings.mode == "mcq"
        return (_summary_of_letters if is_quiz else _summary_of_answers)(records, settings)

    def report(self, run: Report) -> Document:
        """Return the report, worst questions first; see `chronologic.report`."""
        return report(run.source(items=run.records, strips=run.strips()))


SYSTEM = Chronologic()

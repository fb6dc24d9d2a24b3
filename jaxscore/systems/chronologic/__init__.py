"""ChronoLogic: which answer would a text of that time give?

Scores the answers of questions (`answer_scores`), or lets the model choose among lettered options
(`multiple_choice`).
"""

import dataclasses
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from jaxscore.analysis.bootstrap import Estimate, summarise
from jaxscore.analysis.forecasts import calibration
from jaxscore.analysis.margins import Decisions
from jaxscore.errors import InputError
from jaxscore.io.json_output import Lazy, where
from jaxscore.lm import LM, require_local
from jaxscore.systems.audits import PART_OF_ANSWERS, Answers
from jaxscore.systems.chronologic import answer_scores, multiple_choice
from jaxscore.systems.chronologic.answer_scores import AnswerRecord, Entries, Question, split
from jaxscore.systems.chronologic.multiple_choice import LetterMass, LetterRecord, Quiz
from jaxscore.systems.chronologic.report import report
from jaxscore.systems.entries import SHOWN, Entry, read_item, usable
from jaxscore.systems.evaluation import (
    Evaluation,
    Failure,
    failed_records,
    failures_of,
    flat,
    mark_noise,
)
from jaxscore.systems.prompt_settings import AnswerSettings, Example, Prompting
from jaxscore.systems.prompt_settings import remarks as remarks_on_examples
from jaxscore.systems.remarks import Remark
from jaxscore.systems.rounding_audit import Noise
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.systems.settings import IntervalSettings, setting
from jaxscore.systems.system import ArrayOutput, Compared, System
from jaxscore.text.encoder import Boundary
from jaxscore.types.requests import GenerationRequest, LabelRequest, Request, TextLabelRequest
from jaxscore.types.results import ScoredRequest, Strip

HELP = """\
How probable does a model find the answers that a text of that time would give?
(ChronoLogic)

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
the file. A question without a right answer is scored with a remark, and top
accuracy leaves it out; with --mcq it fails. Flags without effect in a mode are
named on stderr.

output, in --output-dir (default: beside the questions); no file is replaced:
  eval_report_<model>_<time>.md     readable, the worst 50 questions
  eval_report_<model>_<time>.html   for a browser, with all questions
  eval_results_<model>_<time>.json  the same as JSON, with all questions
  <the report>.run.json             what the result was made of and with
  --output NAME.json writes the questions as one JSON array, and NAME_report.md,
  .json and .html beside it; several files need --output FOLDER/ and a mode.
  The names begin eval_report_full_ and eval_report_mcq_ in those modes.
  With --audit-noise a question also holds `within_noise` and
  `correct_within_noise` (--mcq: `letter_correct_within_noise`): whether
  rounding could change which answer, or letter, is the most probable, and
  whether that one is correct. What the model writes with --mcq is not audited.

exit code: 0 all evaluated, 1 some questions failed (they are listed),
           2 unusable input.
"""
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
    "blank before it, as no text does; upstream drops its first token, and an answer of one token "
    "then scores 0, the best there is: take it to repeat published numbers alone"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(AnswerSettings, IntervalSettings):
    """Settings of `chronologic`."""

    boundaries = BOUNDARIES
    mode: Literal["sample", "full", "mcq"] = setting(
        "sample",
        help="sample: questions drawn by the seed; full: all; mcq: the model writes a letter",
        choice_flags={
            "full": ("full-eval", "score every question"),
            "mcq": ("mcq", "multiple choice on every question"),
        },
    )
    samples: int = setting(
        5,
        least=1,
        metavar="N",
        help="questions drawn if neither --full-eval nor --mcq is given (default 5)",
    )
    metadata: bool = setting(True, help="leave the metadata frame out of the prompts")
    include_negation: bool = setting(False, help="--mcq: keep the options of type negation")
    shuffle: bool = setting(True, help="--mcq: keep the options in the file's order", advanced=True)
    calibrate: bool = setting(
        False,
        help="fit a softmax temperature on half of the questions, drawn by the seed, and show "
        "what it does on the others",
    )
    boundary: Literal["joint", "separate", "upstream"] = setting(
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

    def unused(self) -> list[str]:
        """Remarks on settings that differ from their defaults and have no effect in the mode."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [
            f"setting {name}: of no effect in mode {self.mode}, only in {' and '.join(modes)}"
            for name, modes in EFFECTIVE.items()
            if self.mode not in modes and getattr(self, name) != defaults[name]
        ]

    def record(self) -> dict[str, Any]:
        """The settings that have an effect in the mode, as a report has them."""
        values = super().record()
        return {k: v for k, v in values.items() if self.mode in EFFECTIVE.get(k, MODES)}


def label(value: Any, where: str) -> str:
    """What messages call a question: `questions.jsonl:3 'Which city?'`."""
    place = re.sub("^item (?=[0-9]+$)", "question ", Path(where).name).replace(": item ", ":")
    text = value.get("main_question") if isinstance(value, dict) else None
    if not isinstance(text, str):
        return place
    return f"{place} {text[:SHOWN]!r}{'…' if len(text) > SHOWN else ''}"


def select(entries: Sequence[Entry[Question]], settings: Settings) -> list[Entry[Question]]:
    """Draw questions in the mode "sample"; unusable entries stay.

    Raises:
        InputError: too few for a temperature.
    """
    chosen = usable(entries)
    if settings.mode == "sample":
        n = min(settings.samples, len(chosen))
        places = random.Random(settings.seed).sample(range(len(chosen)), n)
        chosen = [chosen[place] for place in sorted(places)]
    if settings.calibrate and len(chosen) < 2:
        raise InputError(
            f"calibrate: {len(chosen)} question to split in two parts, expected at least 2; take "
            "more, or leave calibrate out"
        )
    lines = {entry.id for entry in chosen}
    return [entry for entry in entries if entry.item is None or entry.id in lines]


def read_example(value: Any, position: int, where: str) -> Question:
    """A question with a right answer, which prompts show with it.

    Raises:
        InputError: it is no usable question, or no answer has probability 1.
    """
    question: Question = read_item(SYSTEM, value, position, where)
    if not any(question.is_right):
        raise InputError(f"{where}: no answer has probability 1, so none can be shown as right")
    return question


def evaluate(lm: Any, entries: Entries, settings: Settings) -> Evaluation:
    """Score the answers of questions, or let the model choose among them.

    Args:
        lm: an `LM` that scores, or in the mode "mcq" generates and labels.

    Raises:
        InputError: settings that the model cannot do.
    """
    settings.check_model(lm.capabilities)
    remarks = [*settings.unused(), *answer_scores.repeated_answers(entries)]
    if not settings.metadata and not any(entry.value.metadata_frame for entry in entries):
        remarks.append(
            Remark(
                "setting metadata: of no effect, no question has a metadata_frame to leave out",
                if_all=True,
            )
        )
    return (_choose if settings.mode == "mcq" else _score)(lm, entries, settings, remarks)


def _score(lm: LM, entries: Entries, settings: Settings, remarks: list[str]) -> Evaluation:
    """Brier scores of the answers' probabilities."""
    prompting = settings.prompting(lm, _answer_examples(settings))
    n_left_out = _n_left_out(prompting, entries, settings)
    run = ScoringRun(
        lm,
        settings,
        policies=prompting.policies(BOUNDARIES),
        special_tokens=prompting.special_tokens,
        advice=ADVICE,
    )
    scored = run.score_answers(_answers(entries, settings, prompting))
    records = [
        answer_scores.record_of(entry, [result for _, result in pairs], settings.boundary)
        for entry, pairs in zip(entries, scored, strict=True)
    ]
    decisions = mark(records, run.noise, settings)
    found = _of_answers(records, settings)
    return dataclasses.replace(
        found,
        details={
            "summary": found.summary,
            "answer_blank": run.blank,
            "boundary_audit": run.boundaries.counts("answers"),
            **found.details,
        },
        failures=failures_of(entries, records),
        remarks=[
            *remarks,
            *answer_scores.without_right_answer(entries),
            *remarks_on_examples(n_left_out),
            *run.remarks,
        ],
        decisions=decisions,
        prompting=settings.facts(prompting, n_left_out),
        strips=[
            [
                Strip(answer, request.context, result)
                for answer, (request, result) in zip(entry.value.answer_strings, own, strict=True)
            ]
            for entry, own in zip(entries, scored, strict=True)
        ],
        **run.measured(),
    )


def _of_answers(records: Sequence[dict[str, Any]], settings: Settings) -> Evaluation:
    """What the records of the modes "sample" and "full" say together."""
    good = where(records, lambda record: "error" not in record)
    summary = summarise(
        records, answer_scores.COLUMNS, settings.n_bootstrap, settings.seed, "question_category"
    )
    details: dict[str, Any] = {
        "summary": summary,
        "calibration": calibration(
            (record["probabilities"] for record in good), (record["truth"] for record in good)
        ),
    }
    if settings.calibrate:
        from jaxscore.systems.chronologic import temperature  # here: importing it imports JAX

        details["temperature_scaling"] = temperature.rescale(records, settings.seed)
    return _found(records, summary, details, score_headline(summary["overall"]))


def _found(
    records: Sequence[dict[str, Any]],
    summary: Mapping[str, Any],
    details: Mapping[str, Any],
    headline: str,
) -> Evaluation:
    return Evaluation(
        summary=summary,
        items=records,
        n_items=len(records),
        rows=Lazy(range(len(records)), lambda place: flat(records[place])),
        details=details,
        long={"questions": records},
        headline=headline,
        failures=failed_records(records, lambda record: _name_of_record(record, 0)),
    )


def mark(
    records: Sequence[dict[str, Any]], noise: Noise | None, settings: Settings
) -> list[Decisions]:
    """Mark the answers or letters that rounding could change; see `System.mark`."""
    if settings.mode != "mcq":
        return mark_noise(records, AnswerRecord, noise, "mean_logprob", answer_scores.MARKS)
    # The logarithm of a letter's probability, a sum over its tokens, moves by no more than their
    # log-probabilities do. Generation is not audited.
    return mark_noise(
        multiple_choice.with_letters(records),
        LetterRecord,
        noise,
        "label_logprob",
        multiple_choice.MARKS,
        "label_logprob, as the letters' log-probability",
    )


def merge(records: Sequence[dict[str, Any]], settings: Settings) -> Evaluation:
    """Evaluate the questions of all records as one run would; see `System.merge`."""
    return (_of_letters if settings.mode == "mcq" else _of_answers)(records, settings)


def _answer_examples(settings: Settings) -> list[Example]:
    """Each few-shot question with its first right answer."""
    examples = []
    for question in settings.drawn():
        prompt = question.context(settings.metadata)
        answer = question.answer_strings[question.is_right.index(True)]
        examples.append(Example(*split(prompt, answer, settings.answer_separator), prompt))
    return examples


def _answers(
    entries: Entries, settings: Settings, prompting: Prompting
) -> Answers[Entry[Question]]:
    """The answers of each question.

    The published context ends in a blank, so "with a blank" is the answer together with it. If
    the boundary reads it so already, nothing changes.
    """

    def requests(entry: Entry[Question], _: str, separator: str | None) -> list[Request]:
        return answer_scores.requests(
            entry, metadata=settings.metadata, prompting=prompting, separator=separator
        )

    def measure(
        entry: Entry[Question], scored: Sequence[ScoredRequest], boundary: str
    ) -> dict[str, float | None]:
        record = answer_scores.record_of(entry, scored, boundary)
        return {"mean Brier score": record.get("brier")}

    why = settings.why_no_blanks()
    if not why and settings.boundary == "joint":
        why = PART_OF_ANSWERS
    return Answers(
        what="questions",
        units=entries,
        requests=requests,
        measure=measure,
        separator=settings.answer_separator,
        why_no_blanks=why,
        with_blank="With the blank before the answer as part of it",
    )


def _n_left_out(prompting: Prompting, entries: Entries, settings: Settings) -> int:
    """How many questions are one of the few-shot examples."""
    return prompting.n_left_out(entry.value.context(settings.metadata) for entry in entries)


def _choose(lm: LM, entries: Entries, settings: Settings, remarks: list[str]) -> Evaluation:
    """The letter that the model writes, and the probability that it gives each letter."""
    prompting = settings.prompting(lm, quiz_examples(settings))
    quizzes, failures = quizzes_of(entries, settings, prompting)
    asked = [entry for entry, _ in quizzes]
    n_left_out = _n_left_out(prompting, asked, settings)
    run = ScoringRun(lm, settings)
    started = time.perf_counter()
    written = lm.generate(
        [
            GenerationRequest(
                entry.id,
                quiz.prompt,
                multiple_choice.MAX_NEW_TOKENS,
                special_tokens=prompting.special_tokens,
            )
            for entry, quiz in quizzes
        ]
    )
    masses = _letter_masses(lm, quizzes, run, special_tokens=prompting.special_tokens)
    seconds = time.perf_counter() - started
    records = [
        multiple_choice.record_of(entry, quiz, text, mass)
        for (entry, quiz), text, mass in zip(quizzes, written, masses, strict=True)
    ]
    decisions = mark(records, run.noise, settings)
    return dataclasses.replace(
        _of_letters(records, settings),
        n_items=len(entries),
        failures=[*failures, *failures_of(asked, records)],
        remarks=[*remarks, *remarks_on_examples(n_left_out)],
        decisions=decisions,
        prompting=settings.facts(prompting, n_left_out),
        **run.measured() | {"seconds": seconds},
    )


def _of_letters(records: Sequence[dict[str, Any]], settings: Settings) -> Evaluation:
    """What the records of the mode "mcq" say together."""
    lettered = multiple_choice.with_letters(records)
    summary = summarise(
        records, multiple_choice.COLUMNS, settings.n_bootstrap, settings.seed, "question_category"
    )
    responses = multiple_choice.count_responses(records)
    details = {
        "summary": summary,
        "responses": responses,
        "calibration": calibration(
            (record["letter_probabilities"] for record in lettered),
            (record["truth"] for record in lettered),
        ),
    }
    headline = quiz_headline(summary["overall"], responses["no_letter"])
    return _found(records, summary, details, headline)


def _quiz_of(question: Question, settings: Settings) -> Quiz:
    return multiple_choice.quiz_of(
        question,
        seed=settings.seed,
        metadata=settings.metadata,
        include_negation=settings.include_negation,
        shuffle=settings.shuffle,
    )


def quizzes_of(
    entries: Entries, settings: Settings, prompting: Prompting
) -> tuple[list[tuple[Entry[Question], Quiz]], list[Failure]]:
    """The quizzes, with what stands before them, and the questions that make none."""
    quizzes, failures = [], []
    for entry in entries:
        try:
            quiz = _quiz_of(entry.value, settings)
        except InputError as problem:
            failures.append(Failure(entry.name, str(problem)))
            continue
        key = entry.value.context(settings.metadata)
        prompt = prompting.context_of(quiz.prompt, key)
        quizzes.append((entry, dataclasses.replace(quiz, prompt=prompt)))
    return quizzes, failures


def quiz_examples(settings: Settings) -> list[Example]:
    """Each few-shot question as in a prompt, with the first of its right letters after a blank."""
    examples = []
    for question in settings.drawn():
        quiz = _quiz_of(question, settings)
        key = question.context(settings.metadata)
        examples.append(Example(quiz.prompt, f" {quiz.correct[0]}", key))
    return examples


def _letter_masses(
    lm: LM,
    quizzes: Sequence[tuple[Entry[Question], Quiz]],
    run: ScoringRun,
    *,
    special_tokens: bool,
) -> list[LetterMass]:
    if not lm.capabilities.is_local:
        listed = lm.label(
            [
                TextLabelRequest(entry.id, quiz.prompt, multiple_choice.letter_texts(quiz))
                for entry, quiz in quizzes
            ]
        )
        return [multiple_choice.listed_letter_mass(scores) for scores in listed]
    encoder = require_local("chronologic", lm).encoder
    try:
        most = max((len(quiz.choices) for _, quiz in quizzes), default=0)
        ids = multiple_choice.letter_ids(encoder, most)
    except InputError as problem:  # the letters that are written can be read all the same
        return [multiple_choice.unknown_mass(str(problem)) for _ in quizzes]
    scores = run.label(
        LabelRequest(
            entry.id,
            quiz.prompt,
            tuple(id for letter in ids[: len(quiz.choices)] for id in letter),
            special_tokens=special_tokens,
        )
        for entry, quiz in quizzes
    )
    return [
        multiple_choice.letter_mass(quiz, result, ids)
        for (_, quiz), result in zip(quizzes, scores, strict=True)
    ]


def score_headline(means: Mapping[str, Estimate]) -> str:
    """The mean Brier score, with its interval."""
    brier, uniform = means["brier"], means["uniform_brier"]
    if brier.mean is None:
        return "no question was scored"
    return (
        f"overall Brier {brier.mean:.5f}{brier.span('.5f')}, {brier.n} questions "
        f"(equal probabilities would get {uniform.mean:.5f})"
    )


def quiz_headline(means: Mapping[str, Estimate], no_letter: int) -> str:
    """Accuracy and skill of the letters written, with their intervals."""
    accuracy, skill = means["accuracy"], means["skill"]
    if accuracy.mean is None:
        return "no question was answered"
    return (
        f"overall accuracy {accuracy.mean:.4f}{accuracy.span('.4f')}, "
        f"skill {skill.mean:.4f}{skill.span('.4f')}, "
        f"{accuracy.n} questions, {no_letter} responses without a letter"
    )


def _name_of_record(record: Mapping[str, Any], place: int) -> str:
    return f"line {record.get('line')}: {record['question']}"


def _question_and_options(record: Mapping[str, Any]) -> object:
    """Question and options, whatever their order."""
    options = zip(record["choices"], map(str, record["truth"]), strict=True)
    return record["question"], sorted(options)


SYSTEM = System(
    name="chronologic",
    what="questions",
    help=HELP,
    item=Question,
    settings=Settings,
    record=AnswerRecord,
    label=label,
    select=select,
    read_example=read_example,
    evaluate=evaluate,
    report=report,
    needs=("scores",),
    needs_of_mode={"mcq": ("generates", "labels")},
    array=ArrayOutput(is_ascii=False),
    merge=merge,
    merge_rereads=True,
    mark=mark,
    page_only="tokens",
    compared=(
        Compared(
            text=("question", "answers", "truth"),
            signature=("question", "answers"),
            list_in="questions",
            id=(),
            name=_name_of_record,
            n_tokens="n_tokens",
            order=("brier", "right_probability", "answer_logprob"),
            fixed=("boundary", "answer_separator"),
            file="eval_results_….json",
        ),
        Compared(
            record=LetterRecord,
            name_of_runs="chronologic --mcq",
            text=_question_and_options,
            signature=("question", "choices"),
            list_in="questions",
            id=(),
            name=_name_of_record,
            fixed=("include_negation",),
            file="eval_results_….json",
        ),
    ),
)

"""ChronoLogic as one call: questions and settings in, an `Evaluation` out."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate, summarise
from jaxscore.analysis.calibration import calibration
from jaxscore.errors import InputError
from jaxscore.lm import LM, LocalLM, require, require_local
from jaxscore.systems import prompt_settings
from jaxscore.systems.audits import PART_OF_ANSWERS, Answers
from jaxscore.systems.chronologic import (
    answer_scores,
    fewshot,
    multiple_choice,
)
from jaxscore.systems.chronologic.answer_scores import Question
from jaxscore.systems.chronologic.multiple_choice import LetterMass, Quiz
from jaxscore.systems.chronologic.settings import Settings
from jaxscore.systems.evaluation import Evaluation, Failure
from jaxscore.systems.prompting import Prompting
from jaxscore.systems.scoring_run import ScoringRun
from jaxscore.types.requests import Request
from jaxscore.types.results import ScoredRequest


def chosen(questions: Sequence[Question], settings: Settings) -> list[Question]:
    """The questions that are evaluated: a sample in the mode "sample", else all.

    Raises:
        InputError: too few for what the settings ask.
    """
    out = list(questions)
    if settings.mode == "sample":
        out = answer_scores.sample(out, settings.samples, settings.seed)
    if settings.calibrate and len(out) < 2:
        raise InputError(
            f"calibrate: {len(out)} question to split in two parts, expected at least 2; take "
            "more, or leave calibrate out"
        )
    return out


def evaluate(lm: Any, items: Iterable[Any], settings: Settings) -> Evaluation:
    """Score the answers of questions, or let the model choose among them.

    Args:
        lm: an `LM` that scores, or in the mode "mcq" generates and labels.
        items: `Question`s, or objects as the input file has them. One that is unusable fails
            alone. A `Failure` stands for what could not be read before.

    Raises:
        InputError: no usable question, or settings that the model cannot do.
    """
    mcq = settings.mode == "mcq"
    lm = require("chronologic", lm, *(("generates", "labels") if mcq else ("scores",)))
    settings.check_model(lm.capabilities)
    questions, failures = answer_scores.read(enumerate(items, start=1))
    questions = chosen(questions, settings)
    remarks = [*settings.unused(), *answer_scores.repeated(questions)]
    if not settings.metadata and answer_scores.without_frame(questions):
        remarks.append(
            "setting metadata: of no effect, no question has a metadata_frame to leave out"
        )
    if mcq:
        return _choose(lm, questions, settings, failures, remarks)
    remarks += answer_scores.without_truth(questions)
    return _score(lm, questions, settings, failures, remarks)


def _score(
    lm: LM,
    questions: Sequence[Question],
    settings: Settings,
    failures: list[Failure],
    remarks: list[str],
) -> Evaluation:
    """Brier scores of the answers' probabilities."""
    shots = settings.with_examples(fewshot.read).drawn()
    form: dict[str, Any] = {
        "metadata": settings.metadata,
        "separator": settings.answer_separator,
    }
    examples = fewshot.examples(shots, **form)
    prompting = settings.prompting(lm, examples)
    n_left_out = _n_left_out(prompting, questions, settings)
    run = ScoringRun(
        lm,
        settings,
        policies=prompting.policies(answer_scores.BOUNDARIES),
        advice=answer_scores.ADVICE,
    )
    pairs = [
        pair for own in run.score_answers(_answers(questions, settings, prompting)) for pair in own
    ]
    requests, scored = [request for request, _ in pairs], [result for _, result in pairs]
    results = answer_scores.evaluate(questions, scored, settings.boundary)
    decisions = [] if run.noise is None else answer_scores.mark(results, run.noise)
    good = [result for result in results if "error" not in result]
    summary = summarise(
        results, answer_scores.COLUMNS, settings.n_bootstrap, settings.seed, "question_category"
    )
    details: dict[str, Any] = {
        "summary": summary,
        "answer_blank": run.blank,
        "boundary_audit": run.boundaries.counts("answers"),
        "calibration": calibration(
            [result["probabilities"] for result in good], [result["truth"] for result in good]
        ),
    }
    if settings.calibrate:
        from jaxscore.systems.chronologic import temperature  # here: importing it imports JAX

        details["temperature_scaling"] = temperature.rescale(results, settings.seed)
    return Evaluation(
        summary=summary,
        items=results,
        n_items=len(questions) + len(failures),
        rows=_rows(results),
        details=details,
        long={"questions": results},
        headline=scored_headline(summary["overall"]),
        failures=[*failures, *answer_scores.failures(questions, results)],
        remarks=[*remarks, *prompt_settings.remarks(n_left_out), *run.remarks],
        decisions=decisions,
        prompting=settings.facts(prompting, n_left_out),
        strips=answer_scores.strips(questions, requests, scored),
        **run.measured(),
    )


def _answers(
    questions: Sequence[Question], settings: Settings, prompting: Prompting
) -> Answers[Question]:
    """The answers of each question.

    The published context ends in a blank, so "with a blank" is the answer together with it. Where
    the boundary reads it so already, nothing changes.
    """

    def requests(question: Question, _: str, separator: str | None) -> list[Request]:
        return answer_scores.requests(
            [question], metadata=settings.metadata, prompting=prompting, separator=separator
        )

    def measure(
        question: Question, scored: Sequence[ScoredRequest], boundary: str
    ) -> dict[str, float | None]:
        [result] = answer_scores.evaluate([question], scored, boundary)
        return {"mean Brier score": result.get("brier")}

    why = settings.why_no_blanks()
    if not why and settings.boundary == "joint":
        why = PART_OF_ANSWERS
    return Answers(
        what="questions",
        units=questions,
        requests=requests,
        measure=measure,
        separator=settings.answer_separator,
        why_no_blanks=why,
        with_blank="With the blank before the answer as part of it",
    )


def _n_left_out(prompting: Prompting, questions: Sequence[Question], settings: Settings) -> int:
    """How many questions are one of the few-shot examples."""
    return prompting.n_left_out(
        answer_scores.context(one, metadata=settings.metadata) for one in questions
    )


def _choose(
    lm: LM,
    questions: Sequence[Question],
    settings: Settings,
    failures: list[Failure],
    remarks: list[str],
) -> Evaluation:
    """The letter that the model writes, and the probability that it gives each letter."""
    shown: dict[str, Any] = {
        name: getattr(settings, name)
        for name in ("seed", "metadata", "include_negation", "shuffle")
    }
    shots = settings.with_examples(fewshot.read).drawn()
    prompting = settings.prompting(lm, fewshot.quiz_examples(shots, **shown))
    plain, unusable = multiple_choice.quizzes(questions, **shown)
    quizzes = [fewshot.prompted_quiz(quiz, prompting, settings.metadata) for quiz in plain]
    n_left_out = _n_left_out(prompting, [quiz.question for quiz in quizzes], settings)
    requests = multiple_choice.generation_requests(quizzes)
    run = ScoringRun(lm, settings)
    started = time.perf_counter()
    written = lm.generate(requests)
    if lm.capabilities.is_local:
        masses = _local_masses(require_local("chronologic", lm), quizzes, run)
    else:
        listed = lm.label(multiple_choice.text_label_requests(quizzes))
        masses = [
            multiple_choice.listed_letter_mass(quiz, one)
            for quiz, one in zip(quizzes, listed, strict=True)
        ]
    seconds = time.perf_counter() - started
    results = multiple_choice.evaluate(quizzes, written, masses)
    noise = run.noise
    decisions = [] if noise is None else multiple_choice.mark(results, noise)
    lettered = [result for result in results if result.get("letter_probabilities") is not None]
    summary = summarise(
        results, multiple_choice.COLUMNS, settings.n_bootstrap, settings.seed, "question_category"
    )
    responses = multiple_choice.responses(results)
    asked = [quiz.question for quiz in quizzes]
    return Evaluation(
        summary=summary,
        items=results,
        n_items=len(questions) + len(failures),
        rows=_rows(results),
        details={
            "summary": summary,
            "responses": responses,
            "calibration": calibration(
                [result["letter_probabilities"] for result in lettered],
                [result["truth"] for result in lettered],
            ),
        },
        long={"questions": results},
        headline=mcq_headline(summary["overall"], responses["no_letter"]),
        failures=[*failures, *unusable, *answer_scores.failures(asked, results)],
        remarks=[*remarks, *prompt_settings.remarks(n_left_out)],
        noise=noise,
        audited=settings.audit_noise > 0,
        decisions=decisions,
        seconds=seconds,
        prompting=settings.facts(prompting, n_left_out),
    )


def _local_masses(lm: LocalLM, quizzes: Sequence[Quiz], run: ScoringRun) -> list[LetterMass]:
    most = max((len(quiz.choices) for quiz in quizzes), default=0)
    try:
        ids = multiple_choice.letter_ids(lm.encoder, most)
    except InputError as problem:  # the letters that are written can be read all the same
        return [multiple_choice.unknown_mass(str(problem)) for _ in quizzes]
    scores = run.label(multiple_choice.label_requests(quizzes, ids))
    return [
        multiple_choice.letter_mass(quiz, one, ids)
        for quiz, one in zip(quizzes, scores, strict=True)
    ]


def _rows(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One flat record per question, without the lists of its answers."""
    return [
        {name: value for name, value in result.items() if not isinstance(value, list)}
        for result in results
    ]


def scored_headline(means: Mapping[str, Estimate]) -> str:
    """The mean Brier score, with its interval."""
    brier, uniform = means["brier"], means["uniform_brier"]
    if brier.mean is None:
        return "no question was scored"
    return (
        f"overall Brier {_shown(brier, 5)}, {brier.n} questions "
        f"(equal probabilities would get {uniform.mean:.5f})"
    )


def mcq_headline(means: Mapping[str, Estimate], no_letter: int) -> str:
    """Accuracy and skill of the letters written, with their intervals."""
    accuracy, skill = means["accuracy"], means["skill"]
    if accuracy.mean is None:
        return "no question was answered"
    return (
        f"overall accuracy {_shown(accuracy, 4)}, skill {_shown(skill, 4)}, {accuracy.n} "
        f"questions, {no_letter} responses without a letter"
    )


def _shown(one: Estimate, digits: int) -> str:
    span = ""
    if one.low is not None and one.high is not None:
        span = f", 95% interval {one.low:.{digits}f} to {one.high:.{digits}f}"
    return f"{one.mean:.{digits}f}{span}"

"""Document of `chronologic`: probabilities of answers, or letters."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.report import sections
from jaxscore.report.chronologic_report import (
    MCQ_INTRODUCTION,
    SCORED_INTRODUCTION,
    mcq_badness,
    responses,
    scored_badness,
    temperature,
)
from jaxscore.report.document import Card, Column, Document, Field, Items, Row, Rows, Source
from jaxscore.report.html.chart_parts import by_category, calibrated
from jaxscore.report.markdown import number
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    section,
    sentence,
    strips_of,
    three,
    verdict,
    with_failures,
    yes_no,
)

UNIFORM = ("uniform_brier", "are what equal probabilities would get")


def page(source: Source) -> Document:
    """The page of a run; the record is that of its report."""
    return _mcq(source) if source.record["settings"]["mode"] == "mcq" else _scored(source)


def _scored(source: Source) -> Document:
    record = source.record
    summary, settings = record["summary"], record["settings"]
    overall = summary["overall"]
    calibration, scaled = record["calibration"], record.get("temperature_scaling")
    charts = [
        *calibrated("Reliability of the answers' probabilities", calibration, "answers"),
        *by_category(summary, "brier", "Brier score by category", "questions", UNIFORM),
        *by_category(summary, "top_accuracy", "Top answer right, by category", "questions"),
    ]
    if scaled is not None:
        for part, told in (("before", "before"), ("after", "after")):
            title = f"Reliability {told} temperature scaling"
            charts += calibrated(title, scaled[part], "answers")
    return Document(
        system="chronologic",
        title=f"ChronoLogic, probabilities of answers: {model_of(record)}",
        verdict=verdict(source),
        cards=[
            estimate_card("Brier", overall["brier"], "questions"),
            estimate_card("Uniform", overall["uniform_brier"], "questions"),
            estimate_card("Top answer", overall["top_accuracy"], "questions with a correct one"),
            Card("Expected calibration error", three(calibration["ece"])),
        ],
        charts=charts,
        items=_scored_items(source),
        sections=[
            *(section(temperature(scaled)) if "temperature_scaling" in record else []),
            *closing(record, "questions"),
        ],
        about=[
            _one_line(SCORED_INTRODUCTION.format(n_bootstrap=settings["n_bootstrap"])),
            *sections.answer_blank(record),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "answers"),
        ],
    )


def _mcq(source: Source) -> Document:
    record = source.record
    overall, settings = record["summary"]["overall"], record["settings"]
    calibration = record["calibration"]
    return Document(
        system="chronologic",
        title=f"ChronoLogic, multiple choice: {model_of(record)}",
        verdict=sentence(source.headline),
        cards=[
            estimate_card("Accuracy", overall["accuracy"], "questions"),
            estimate_card("Skill score", overall["skill"], "questions"),
            estimate_card("Likeliest letter", overall["letter_accuracy"], "questions"),
            estimate_card("Letter Brier", overall["letter_brier"], "questions"),
        ],
        charts=[
            *calibrated("Reliability of the letters' probabilities", calibration, "letters"),
            *by_category(record["summary"], "accuracy", "Accuracy by category", "questions"),
            *by_category(record["summary"], "skill", "Skill score by category", "questions"),
        ],
        items=_mcq_items(source),
        sections=closing(record, "questions"),
        about=[
            _one_line(MCQ_INTRODUCTION.format(n_bootstrap=settings["n_bootstrap"])),
            *responses(record),
        ],
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _ordered(source: Source, badness: Any) -> tuple[list[Any], list[Any]]:
    """The questions that were evaluated, worst first as in the Markdown, and their strips."""
    every = source.record["questions"]
    strips = source.strips or [()] * len(every)
    good = [(one, own) for one, own in zip(every, strips, strict=True) if "error" not in one]
    good.sort(key=lambda pair: badness(pair[0]))
    return [one for one, _ in good], [own for _, own in good]


def _lead(values: Sequence[float] | None) -> str:
    """How far the most probable one is before the next."""
    if values is None or len(values) < 2:
        return number(None)
    second, first = sorted(values)[-2:]
    return number(first - second, 4)


def _scored_items(source: Source) -> Items:
    questions, strips = _ordered(source, scored_badness)
    source = dataclasses.replace(source, strips=strips)
    audited = "noise" in source.record
    leads = [_lead(one["probabilities"]) + sections.marked(one) for one in questions]
    items = Items(
        what="questions",
        order="worst first",
        n_all=source.n_items,
        columns=[
            Column("Question", "text", [one["question"] for one in questions]),
            Column("Line", "number", [str(one["line"]) for one in questions]),
            Column("Category", "category", [one["question_category"] for one in questions]),
            Column("Brier", "number", [number(one["brier"]) for one in questions]),
            Column("Top right?", "flag", [yes_no(one["top_correct"]) for one in questions]),
            Column(
                "Lead", "number", leads,
                "probability of the top answer less that of the next; ≈: rounding could change "
                "which is the top one",
            ),
        ],
        tables=[
            Rows(
                "Answers",
                ["Answer", "Type", "Truth", "Score, nats per token", "Probability", "Tokens"],
                "right",
                [_answers(one) for one in questions],
            )
        ],
        strips=strips_of(source),
        within_noise=[one.get("within_noise") for one in questions] if audited else [],
    )  # fmt: skip
    return with_failures(items, source.record["failures"])


def _answers(result: Mapping[str, Any]) -> list[Row]:
    types = result["answer_types"] or [""] * len(result["answers"])
    columns = (result[name] for name in ("answers", "truth", "scores", "probabilities", "n_tokens"))
    return [
        Row(
            [answer, kind, f"{truth:g}", number(score, 4), number(p, 4), str(n)],
            p,
            truth == 1.0,
        )
        for kind, (answer, truth, score, p, n) in zip(
            types, zip(*columns, strict=True), strict=True
        )
    ]


def _mcq_items(source: Source) -> Items:
    questions, _ = _ordered(source, mcq_badness)
    audited = "noise" in source.record
    leads = [_lead(one["letter_probabilities"]) + sections.marked(one) for one in questions]
    items = Items(
        what="questions",
        order="worst first",
        n_all=source.n_items,
        columns=[
            Column("Question", "text", [one["question"] for one in questions]),
            Column("Line", "number", [str(one["line"]) for one in questions]),
            Column("Category", "category", [one["question_category"] for one in questions]),
            Column("Chosen", "category", [one["chosen"] or "no letter" for one in questions]),
            Column("Right?", "flag", [yes_no(one["correct"]) for one in questions]),
            Column("Skill", "number", [number(one["skill"], 3) for one in questions]),
            Column("Letter Brier", "number", [number(one["letter_brier"]) for one in questions]),
            Column(
                "Lead", "number", leads,
                "probability of the likeliest letter less that of the next; ≈: rounding could "
                "change which is the likeliest",
            ),
        ],
        fields=[
            Field("Response", [one["response"].strip() for one in questions]),
            Field("Letters' probabilities", [one.get("letter_error", "") for one in questions]),
        ],
        tables=[
            Rows(
                "Choices",
                ["Choice", "Letter", "Probability"],
                "right",
                [_choices(one) for one in questions],
            )
        ],
        within_noise=[one.get("within_noise") for one in questions] if audited else [],
    )  # fmt: skip
    return with_failures(items, source.record["failures"])


def _choices(result: Mapping[str, Any]) -> list[Row]:
    n = len(result["choices"])
    probabilities = result["letter_probabilities"] or [None] * n
    return [
        Row(
            [result["choices"][k], chr(ord("A") + k), number(probabilities[k], 4)],
            probabilities[k],
            result["truth"][k] == 1.0,
        )
        for k in range(n)
    ]

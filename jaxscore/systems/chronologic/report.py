"""Report of `chronologic`: probabilities of answers, or letters."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.document import (
    Card,
    Column,
    Document,
    Field,
    Items,
    Row,
    Rows,
    Section,
    Source,
    n_listed,
)
from jaxscore.report.html.chart_parts import by_category, calibrated
from jaxscore.report.markdown import NO_TEXT, interval, number, table, text
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    section,
    strips_of,
    three,
    verdict,
    with_failures,
    within_noise,
    worst_first,
    yes_no,
)

Result = Mapping[str, Any]  # record of a question
INTERVALS = """\
The 95% interval of a share is Wilson's score interval; the others hold 95% of {n_bootstrap}
bootstrap means over the questions. A dash stands for fewer than two questions, or equal
values."""
ANSWERS = f"""\
Every answer is scored by its mean log-probability after the question; a softmax over a
question's answers makes probabilities of the scores. **Brier**: mean over the answers of
(probability - truth)², 0 is perfect, 1 is sure of everything wrong. **Uniform**: the Brier score
of one who finds all answers equally probable. **Top answer**: share of questions whose most
probable answer is correct, over the questions that have a correct one. {INTERVALS}"""
LETTERS = f"""\
The model was asked to write the letter of the correct answer. **Accuracy**: share of questions
whose first letter written is correct. **Skill score**: (observed - chance) / (1 - chance), 1 is
all right, 0 what guessing gets, below 0 worse. **Likeliest letter**: accuracy, had it written the
letter that it gives most probability. **Letter Brier**: Brier score of the letters'
probabilities, 0 is perfect. {INTERVALS}"""
UNIFORM = ("uniform_brier", "are what equal probabilities would get")


def report(source: Source) -> Document:
    """Return the report of a run."""
    return _letters(source) if source.record["settings"]["mode"] == "mcq" else _answers(source)


def _answers(source: Source) -> Document:
    record = source.record
    summary, settings = record["summary"], record["settings"]
    overall, calibration = summary["overall"], record["calibration"]
    scaled = record.get("temperature_scaling")
    charts = [
        *calibrated("Reliability of the answers' probabilities", calibration, "answers"),
        *by_category(summary, "brier", "Brier score by category", "questions", UNIFORM),
        *by_category(summary, "top_accuracy", "Top answer right, by category", "questions"),
    ]
    if scaled is not None:
        for stage in ("before", "after"):
            title = f"Reliability {stage} temperature scaling"
            charts += calibrated(title, scaled[stage], "answers")
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
        items=_answer_items(source),
        sections=[
            _means_by_category(
                summary,
                "Brier|95% interval|Uniform|Questions|Top answer|95% interval|With a correct one",
                lambda means: [
                    number(means["brier"].mean, 6),
                    _interval(means["brier"]),
                    number(means["uniform_brier"].mean),
                    str(means["brier"].n),
                    *_share(means["top_accuracy"]),
                    str(means["top_accuracy"].n),
                ],
            ),
            *section(sections.calibration(calibration, "answers")),
            *(section(_temperature(scaled)) if "temperature_scaling" in record else []),
            *closing(record, "questions"),
        ],
        about=[
            _one_line(ANSWERS.format(n_bootstrap=settings["n_bootstrap"])),
            *sections.answer_blank(record),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "answers"),
        ],
    )


def _letters(source: Source) -> Document:
    record = source.record
    summary, calibration = record["summary"], record["calibration"]
    overall = summary["overall"]
    return Document(
        system="chronologic",
        title=f"ChronoLogic, multiple choice: {model_of(record)}",
        verdict=verdict(source),
        cards=[
            estimate_card("Accuracy", overall["accuracy"], "questions"),
            estimate_card("Skill score", overall["skill"], "questions"),
            estimate_card("Likeliest letter", overall["letter_accuracy"], "questions"),
            estimate_card("Letter Brier", overall["letter_brier"], "questions"),
        ],
        charts=[
            *calibrated("Reliability of the letters' probabilities", calibration, "letters"),
            *by_category(summary, "accuracy", "Accuracy by category", "questions"),
            *by_category(summary, "skill", "Skill score by category", "questions"),
        ],
        items=_letter_items(source),
        sections=[
            _means_by_category(
                summary,
                "Accuracy|95% interval|Skill score|95% interval|Questions|Likeliest letter|"
                "95% interval|Letter Brier|95% interval|With letters",
                lambda means: [
                    *_share(means["accuracy"]),
                    *_share(means["skill"]),
                    str(means["accuracy"].n),
                    *_share(means["letter_accuracy"]),
                    number(means["letter_brier"].mean),
                    _interval(means["letter_brier"]),
                    str(means["letter_brier"].n),
                ],
            ),
            *section(sections.calibration(calibration, "letters")),
            *closing(record, "questions"),
        ],
        about=[
            _one_line(LETTERS.format(n_bootstrap=record["settings"]["n_bootstrap"])),
            _responses(record["responses"]),
        ],
    )


def _one_line(introduction: str) -> str:
    return " ".join(introduction.split())


def _interval(estimate: Estimate, digits: int = 4) -> str:
    return interval(estimate.low, estimate.high, digits)


def _share(estimate: Estimate) -> list[str]:
    return [number(estimate.mean, 3), _interval(estimate, 3)]


def _means_by_category(
    summary: Mapping[str, Any], header: str, cells: Callable[[Mapping[str, Estimate]], list[str]]
) -> Section:
    rows = [["Overall", *cells(summary["overall"])]]
    rows += [[text(name), *cells(means)] for name, means in summary["by_category"].items()]
    return Section("By category", [table(["Category", *header.split("|")], rows)])


def _temperature(scaling: Mapping[str, Any] | None) -> list[str]:
    """Return the effect of temperature scaling, the result of `temperature.rescale`."""
    if scaling is None:
        return [
            "## Temperature scaling",
            "Nothing was fitted: of the questions that could be scored, too few have a correct "
            "answer.",
        ]
    before, after = scaling["before"], scaling["after"]
    names = {"brier": "Brier", "cross_entropy": "Cross-entropy, nats", "ece": "ECE"}
    rows = [[names[key], number(before[key]), number(after[key])] for key in names]
    bound = ", a bound of the search: no optimum was reached" if scaling["at_bound"] else ""
    sure = "too sure" if scaling["temperature"] > 1 else "not sure enough"
    return [
        "## Temperature scaling",
        f"Scores divided by T = {scaling['temperature']:.4g}{bound} (the model was {sure}). T has "
        f"the least cross-entropy on {len(scaling['fitted_on'])} questions drawn by the seed; the "
        f"table is over the {len(scaling['evaluated_on'])} others.",
        table(["", "Before", "After"], rows),
        "Before:",
        sections.reliability_table(before["bins"], "answers"),
        "After:",
        sections.reliability_table(after["bins"], "answers"),
    ]


def _responses(counts: Mapping[str, Any]) -> str:
    """Describe the responses of a multiple choice."""
    n = counts["n"]
    if not n:
        return "No response was generated."
    lines = [
        f"Unparsable responses, which name no letter: {counts['no_letter']} of {n} "
        f"({100 * counts['no_letter'] / n:.1f}%). Letters without an option: "
        f"{counts['no_option']} of {n} ({100 * counts['no_option'] / n:.1f}%). Both count as wrong."
    ]
    if counts["all_correct"]:
        lines.append(
            f"In {counts['all_correct']} of {n} questions every displayed option is correct; their "
            "skill score is 1 whatever is written."
        )
    if counts["letter_outside"] is not None:
        lines.append(
            "Next-token probability that is on no option's letter: "
            f"{counts['letter_outside']:.4f} on average. "
            "Letters' probabilities are their share of the rest."
        )
    if counts["without_letters"]:
        lines.append(
            f"For {counts['without_letters']} questions the letters' probabilities are unknown; "
            "they are left out of the columns on letters."
        )
    return " ".join(lines)


def _answer_items(source: Source) -> Items:
    items = source.items
    order = worst_first(items, lambda row: (-row["brier"],))
    indices = order[: n_listed(len(order))]
    questions = [items[k] for k in indices]
    if source.strips:
        source = dataclasses.replace(source, strips=[source.strips[k] for k in indices])
    return _items(
        source,
        questions,
        n_beyond=len(order) - len(indices),
        columns=[
            Column("Brier", "number", [number(row["brier"]) for row in questions]),
            Column("Top right?", "flag", [yes_no(row["top_correct"]) for row in questions]),
            _lead(questions, "probabilities", "top answer"),
        ],
        right="correct",
        rows=Rows(
            "Answers",
            ["Answer", "Type", "Truth", "Score, nats per token", "Probability", "Tokens"],
            "right",
            [_answer_rows(row) for row in questions],
        ),
        strips=strips_of(source),
    )


def _letter_items(source: Source) -> Items:
    items = source.items
    order = worst_first(items, lambda row: (row["skill"], -(row["letter_brier"] or 0)))
    questions = [items[k] for k in order[: n_listed(len(order))]]
    return _items(
        source,
        questions,
        n_beyond=len(order) - len(questions),
        columns=[
            Column("Chosen", "category", [row["chosen"] or "no letter" for row in questions]),
            Column("Right?", "flag", [yes_no(row["correct"]) for row in questions]),
            Column("Skill", "number", [number(row["skill"], 3) for row in questions]),
            Column("Letter Brier", "number", [number(row["letter_brier"]) for row in questions]),
            _lead(questions, "letter_probabilities", "likeliest letter"),
        ],
        right="letter_correct",
        fields=[
            Field("Response", [row["response"].strip() or NO_TEXT for row in questions]),
            Field("Letters' probabilities", [row.get("letter_error", "") for row in questions]),
        ],
        rows=Rows(
            "Choices",
            ["Choice", "Letter", "Probability"],
            "right",
            [_choice_rows(row) for row in questions],
        ),
    )


def _items(
    source: Source,
    questions: Sequence[Result],
    *,
    columns: Sequence[Column],
    right: str,
    rows: Rows,
    fields: Sequence[Field] = (),
    **more: Any,
) -> Items:
    """Return the questions, the worst first.

    Args:
        right: the prefix of the field `..._within_noise` on the correctness of a question.
    """
    is_audited = "noise" in source.record
    marks = ["right or wrong" if row.get(f"{right}_within_noise") else "" for row in questions]
    items = Items(
        units="questions",
        order="worst first",
        n_all=source.n_items,
        columns=[
            Column("Question", "text", [question["question"] for question in questions]),
            Column("Line", "number", [str(question["line"]) for question in questions]),
            Column("Category", "category", [row["question_category"] for row in questions]),
            *columns,
        ],
        fields=[
            *([Field("Within the noise", marks)] if is_audited else []),
            *fields,
        ],
        tables=[rows],
        within_noise=within_noise(source.record, questions),
        **more,
    )
    return with_failures(items, source.record["failures"])


def _lead(questions: Sequence[Result], field: str, best: str) -> Column:
    """Return a column with the lead of the most probable answer or letter."""

    def lead(question: Result) -> str:
        values = sorted(question[field] or [])[-2:]
        ahead = number(values[1] - values[0], 4) if len(values) == 2 else number(None)
        return ahead + sections.marked(question)

    hint = f"probability of the {best} less that of the next; ≈: rounding could change which it is"
    return Column("Lead", "number", [lead(question) for question in questions], hint)


def _answer_rows(result: Result) -> list[Row]:
    types = result["answer_types"] or [""] * len(result["answers"])
    columns = ("answers", "truth", "scores", "probabilities", "n_tokens")
    values = zip(types, *(result[name] for name in columns), strict=True)
    return [
        Row(
            [answer, answer_type, f"{truth:g}", number(float(score), 4), number(p, 4), str(n)],
            p,
            truth == 1.0,
        )
        for answer_type, answer, truth, score, p, n in values
    ]


def _choice_rows(result: Result) -> list[Row]:
    probabilities = result["letter_probabilities"] or [None] * len(result["choices"])
    values = zip(result["choices"], probabilities, result["truth"], strict=True)
    return [
        Row([choice, chr(ord("A") + k), number(p, 4)], p, truth == 1.0)
        for k, (choice, p, truth) in enumerate(values)
    ]

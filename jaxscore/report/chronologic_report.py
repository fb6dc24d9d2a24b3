"""Reports of `chronologic` for people: what matters first, what made it last."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import calibration_section, sections
from jaxscore.report.markdown import interval, number, table, text

SCORED_INTRODUCTION = """\
Every answer is scored by its mean log-probability after the question; a softmax over a
question's answers makes probabilities of the scores. **Brier**: mean over the answers of
(probability - truth)², 0 is perfect, 1 is sure of everything wrong. **Uniform**: the Brier score
of one who finds all answers equally probable. **Top answer**: share of questions whose most
probable answer is correct, over the questions that have a correct one. The 95% interval of a share
is Wilson's score interval; the others hold 95% of {n_bootstrap} bootstrap means over the questions.
A dash stands where fewer than two questions, or equal values, cannot tell.
"""
MCQ_INTRODUCTION = """\
The model was asked to write the letter of the correct answer. **Accuracy**: share of questions
whose first letter written is correct. **Skill score**: (observed - chance) / (1 - chance), 1 is
all right, 0 what guessing gets, below 0 worse. **Likeliest letter**: accuracy, had it written the
letter that it gives most probability. **Letter Brier**: Brier score of the letters'
probabilities, 0 is perfect. The 95% interval of a share is Wilson's score interval; the others
hold 95% of {n_bootstrap} bootstrap means over the questions. A dash stands where fewer than two
questions, or equal values, cannot tell.
"""


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the JSON file holds."""
    return _mcq_report(record) if record["settings"]["mode"] == "mcq" else _scored_report(record)


def _scored_report(record: Mapping[str, Any]) -> str:
    rows = _category_rows(
        record["summary"],
        lambda means: [
            number(means["brier"].mean, 6),
            _interval(means["brier"]),
            number(means["uniform_brier"].mean),
            str(means["brier"].n),
            number(means["top_accuracy"].mean, 3),
            _interval(means["top_accuracy"], 3),
            str(means["top_accuracy"].n),
        ],
    )
    header = (
        "Category|Brier|95% interval|Uniform|Questions|Top answer|95% interval|With a correct one"
    ).split("|")
    parts = [
        f"# ChronoLogic, probabilities of answers: {text(record['settings']['model'])}",
        *sections.findings(record),
        table(header, rows),
        SCORED_INTRODUCTION.format(n_bootstrap=record["settings"]["n_bootstrap"]),
        *sections.answer_blank(record),
        *sections.boundary(record["settings"]["boundary"], record["boundary_audit"], "answers"),
        *sections.noise(record),
        *calibration_section.section(record["calibration"], "answers"),
        *(temperature(record["temperature_scaling"]) if "temperature_scaling" in record else []),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "questions"),
        *_worst(record, scored_badness, _scored_question),
        *sections.settings(record["settings"]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _mcq_report(record: Mapping[str, Any]) -> str:
    rows = _category_rows(
        record["summary"],
        lambda means: [
            number(means["accuracy"].mean, 3),
            _interval(means["accuracy"], 3),
            number(means["skill"].mean, 3),
            _interval(means["skill"], 3),
            str(means["accuracy"].n),
            number(means["letter_accuracy"].mean, 3),
            _interval(means["letter_accuracy"], 3),
            number(means["letter_brier"].mean),
            _interval(means["letter_brier"]),
            str(means["letter_brier"].n),
        ],
    )
    header = (
        "Category|Accuracy|95% interval|Skill score|95% interval|Questions|Likeliest letter|"
        "95% interval|Letter Brier|95% interval|With letters"
    ).split("|")
    parts = [
        f"# ChronoLogic, multiple choice: {text(record['settings']['model'])}",
        table(header, rows),
        MCQ_INTRODUCTION.format(n_bootstrap=record["settings"]["n_bootstrap"]),
        *responses(record),
        *sections.noise(record),
        *calibration_section.section(record["calibration"], "letters"),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "questions"),
        *_worst(record, mcq_badness, _mcq_question),
        *sections.settings(record["settings"]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def scored_badness(result: Mapping[str, Any]) -> float:
    """The worst question has the least."""
    brier: float = result["brier"]
    return -brier


def mcq_badness(result: Mapping[str, Any]) -> tuple[float, float]:
    """The worst question has the least."""
    return result["skill"], -(result["letter_brier"] or 0)


def _category_rows(
    summary: Mapping[str, Any], cells: Callable[[Mapping[str, Estimate]], list[str]]
) -> list[list[str]]:
    named = [("Overall", summary["overall"])]
    named += [(text(name), means) for name, means in summary["by_category"].items()]
    return [[name, *cells(means)] for name, means in named]


def _interval(estimate: Estimate, digits: int = 4) -> str:
    return interval(estimate.low, estimate.high, digits)


def temperature(scaling: Mapping[str, Any] | None) -> list[str]:
    """What one temperature makes of the probabilities; `scaling` is as `calibrate.rescale`."""
    if scaling is None:
        return [
            "## Temperature scaling",
            "Nothing was fitted: of the questions that could be scored, too few have a correct "
            "answer.",
        ]
    before, after = scaling["before"], scaling["after"]
    names = {"brier": "Brier", "cross_entropy": "Cross-entropy, nats", "ece": "ECE"}
    rows = [[names[key], number(before[key]), number(after[key])] for key in names]
    bound = ", a bound of the search: there is no best one" if scaling["at_bound"] else ""
    sure = "too sure" if scaling["temperature"] > 1 else "not sure enough"
    return [
        "## Temperature scaling",
        f"Scores divided by T = {scaling['temperature']:.4g}{bound} (the model was {sure}). T has "
        f"the least cross-entropy on {len(scaling['fitted_on'])} questions drawn by the seed; the "
        f"table is over the {len(scaling['evaluated_on'])} others.",
        table(["", "Before", "After"], rows),
        "Before:",
        calibration_section.bins(before["bins"], "answers"),
        "After:",
        calibration_section.bins(after["bins"], "answers"),
    ]


def responses(record: Mapping[str, Any]) -> list[str]:
    """What the responses of a multiple choice are like."""
    counts = record["responses"]
    n = counts["n"]
    if not n:
        return ["No response was generated."]
    lines = [
        f"Unparsable responses, which name no letter: {counts['no_letter']} of {n} "
        f"({100 * counts['no_letter'] / n:.1f}%). Letters that are no option: "
        f"{counts['no_option']} of {n} ({100 * counts['no_option'] / n:.1f}%). Both count as wrong."
    ]
    if counts["all_correct"]:
        lines.append(
            f"In {counts['all_correct']} of {n} questions every option shown is correct; their "
            "skill score is 1 whatever is written."
        )
    outside = counts["letter_outside"]
    if outside is not None:
        lines.append(
            f"Next-token probability that is on no option's letter: {outside:.4f} on average. "
            "Letters' probabilities are their share of the rest."
        )
    if counts["without_letters"]:
        lines.append(
            f"For {counts['without_letters']} questions the letters' probabilities are unknown; "
            "they are left out of the columns on letters."
        )
    return [" ".join(lines)]


def _worst(
    record: Mapping[str, Any],
    badness: Callable[[Mapping[str, Any]], Any],
    body: Callable[[Mapping[str, Any]], str],
) -> list[str]:
    good = [result for result in record["questions"] if "error" not in result]
    return sections.items(
        "Questions", sorted(good, key=badness), lambda result: result["question"], body
    )


def _scored_question(result: Mapping[str, Any]) -> str:
    types = result["answer_types"] or [""] * len(result["answers"])
    rows = [
        [text(answer), text(kind), f"{truth:g}", number(score, 4), number(p, 4), str(n)]
        for answer, kind, truth, score, p, n in zip(
            result["answers"],
            types,
            result["truth"],
            result["scores"],
            result["probabilities"],
            result["n_tokens"],
            strict=True,
        )
    ]
    header = ["Answer", "Type", "Truth", "Score, nats per token", "Probability", "Tokens"]
    score = f"Brier {number(result['brier'])}{_marks(result, 'top answer', 'correct')}"
    return _body(result, score, table(header, rows, left=2))


def _mcq_question(result: Mapping[str, Any]) -> str:
    n = len(result["choices"])
    probabilities = result["letter_probabilities"] or [None] * n
    rows = [
        [
            chr(ord("A") + k),
            text(result["choices"][k]),
            "correct" if result["truth"][k] == 1.0 else "",
            number(probabilities[k], 4),
        ]
        for k in range(n)
    ]
    chosen = result["chosen"] or "no letter"
    verdict = "right" if result["correct"] else "wrong"
    marks = _marks(result, "likeliest letter", "letter_correct")
    score = f"Skill {number(result['skill'], 3)}, chose {chosen}, {verdict}{marks}"
    written = f"Response: {text(result['response'])}" if result["response"].strip() else "No text."
    if result.get("letter_error"):
        written += f"\n\nLetters' probabilities: {text(result['letter_error'])}"
    header = ["Letter", "Choice", "Truth", "Probability"]
    return _body(result, score, f"{written}\n\n{table(header, rows, left=3)}")


def _marks(result: Mapping[str, Any], best: str, correct: str) -> str:
    """Which decisions on a question lie within the noise; a correct one is one of the best."""
    mark = sections.marked(result)
    right = sections.marked(result, f"{correct}_within_noise")
    return f"{mark} {best}{', right or wrong' if right else ''}" if mark else ""


def _body(result: Mapping[str, Any], score: str, rest: str) -> str:
    where = f"Line {result['line']}, {text(result['question_category'])}."
    return f"{score}. {where}{sections.whole(result['question'], 'Question')}\n\n{rest}"

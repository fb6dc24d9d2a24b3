"""Report of `probsem` for people."""

from collections.abc import Mapping
from typing import Any

from jaxscore.report import sections
from jaxscore.report.markdown import interval, number, table, text

VERDICTS = {None: "No verdict, expected is -1", True: "Passed", False: "Failed"}


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the JSON file holds."""
    settings = record["settings"]
    good = [result for result in record["contexts"] if "error" not in result]
    named = [text(settings[name]) for name in ("prompt", "test") if name in settings]
    title = f"{', '.join(named)}: {text(settings['model'])}".removeprefix(": ")
    parts = [
        f"# ProbSem, {title}",
        *sections.findings(record),
        *_accuracy(record["accuracy"], len(good), record["n_without_answer"]),
        *sections.answer_blank(record),
        *sections.boundary(settings["boundary"], record["boundary_audit"], "queries"),
        *sections.noise(record),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "contexts"),
        *sections.items(
            "Contexts", sorted(good, key=surety), lambda result: result["context_text"], _body
        ),
        *sections.settings(settings),
    ]
    return "\n\n".join(parts) + "\n"


def _accuracy(accuracy: Any, n_scored: int, n_without_answer: int) -> list[str]:
    if accuracy is None:
        return [f"{n_scored} contexts. Accuracy is disabled, since every context expects -1."]
    cells = [number(accuracy.mean, 4), interval(accuracy.low, accuracy.high), str(accuracy.n)]
    left_out = (
        f" {n_without_answer} contexts expect -1 and are left out." if n_without_answer else ""
    )
    return [
        table(["", "Accuracy", "95% interval", "Contexts"], [["Suite", *cells]]),
        "Accuracy: share of contexts whose expected query has the highest score, with Wilson's "
        "score interval; a dash stands where fewer than two contexts cannot tell." + left_out,
    ]


def surety(result: Mapping[str, Any]) -> tuple[bool, float]:
    """Failed first, then by the score of the expected query, or of the highest without one."""
    k = result["expected"]
    score = max(result["scores"]) if result["passed"] is None else result["scores"][k]
    return bool(result["passed"]), score


def _body(result: Mapping[str, Any]) -> str:
    columns = (result[name] for name in ("queries", "logp", "scores", "n_tokens"))
    rows = [
        [
            text(query),
            "expected" if k == result["expected"] else "",
            number(logp, 4),
            number(score, 4),
            str(n),
        ]
        for k, (query, logp, score, n) in enumerate(zip(*columns, strict=True))
    ]
    verdict = f"{VERDICTS[result['passed']]}{sections.marked(result)}."
    shown = f"{verdict} Context {result['context']}: {text(result['text'])}"
    body = table(["Query", "", "logp", "Score", "Tokens"], rows, left=2)
    return f"{shown}\n\n{body}"

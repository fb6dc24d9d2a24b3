"""Report of `probsem` for people."""

from collections.abc import Mapping
from typing import Any

from jaxscore.reports import sections
from jaxscore.reports.markdown import interval, number, table, text


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a run; `record` is what the JSON file holds."""
    settings, accuracy = record["settings"], record["accuracy"]
    good = [result for result in record["contexts"] if "error" not in result]
    title = f"{text(settings['prompt'])}, {text(settings['test'])}: {text(settings['model'])}"
    if accuracy is None:
        summary = [f"{len(good)} contexts. Accuracy: none, since a context expects -1."]
    else:
        cells = [number(accuracy.mean, 4), interval(accuracy.low, accuracy.high), str(accuracy.n)]
        summary = [
            table(["", "Accuracy", "95% interval", "Contexts"], [["Suite", *cells]]),
            "Accuracy: share of contexts whose expected query has the highest score. The interval "
            f"holds 95% of {settings['n_bootstrap']} bootstrap means over the contexts.",
        ]
    audit = record["boundary_audit"]
    worst = sorted(good, key=_surety)
    parts = [
        f"# ProbSem, {title}",
        *summary,
        sections.boundary(settings["boundary"], audit["n_queries"], "queries", audit["changed"]),
        *sections.noise(record),
        *sections.remarks(record["remarks"]),
        *sections.failures(record["failures"], "contexts"),
        *(["## Contexts, worst first"] if worst else []),
        *map(_context, worst),
        *sections.settings(settings),
    ]
    return "\n\n".join(parts) + "\n"


def _surety(result: Mapping[str, Any]) -> tuple[bool, float]:
    """Failed first, then by the score of the right query; of the highest where none is right."""
    k = result["expected"]
    score = max(result["scores"]) if result["passed"] is None else result["scores"][k]
    return bool(result["passed"]), score


def _context(result: Mapping[str, Any]) -> str:
    verdict = {None: "no query is right", True: "passed", False: "failed"}[result["passed"]]
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
    body = table(["Query", "", "logp", "Score", "Tokens"], rows, left=2)
    title = f"### Context {result['context']}, {verdict}{sections.marked(result)}"
    return f"{title}\n\nText: {text(result['text'])}\n\n{body}"

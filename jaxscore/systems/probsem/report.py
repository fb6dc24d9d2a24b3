"""Report of `probsem`."""

import dataclasses
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.report import sections
from jaxscore.report.document import (
    Card,
    Chart,
    Column,
    Document,
    Field,
    Items,
    Row,
    Rows,
    Source,
    n_listed,
)
from jaxscore.report.html.histogram import counts, histogram
from jaxscore.report.html.intervals import Group, intervals
from jaxscore.report.markdown import number
from jaxscore.report.sections import (
    closing,
    estimate_card,
    model_of,
    strips_of,
    verdict,
    with_failures,
    worst_first,
    yes_no,
)

DISABLED = "accuracy is disabled, since every context expects -1"


def report(source: Source) -> Document:
    """Return the report of a run."""
    record = source.record
    settings, contexts = record["settings"], source.items
    places = worst_first(contexts, _surety)
    names = ", ".join(str(settings[name]) for name in ("prompt", "test") if name in settings)
    accuracy = record["accuracy"]
    left_out = record["n_without_answer"]
    return Document(
        system="probsem",
        title=f"ProbSem{f', {names}' if names else ''}: {model_of(record)}",
        verdict=verdict(source),
        cards=[
            *([] if accuracy is None else [estimate_card("Accuracy", accuracy, "contexts")]),
            Card("Contexts", f"{len(places):,}", "scored"),
        ],
        charts=_charts(contexts),
        items=_items(source, places),
        sections=closing(record, "contexts"),
        about=[
            "Accuracy is the share of contexts whose expected query has the highest score, with "
            "Wilson's score interval; a dash stands for fewer than two contexts. "
            "Contexts that expect -1 have no verdict and are left out"
            + (f": {left_out} of them." if left_out else "."),
            *sections.answer_blank(record),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "queries"),
        ],
    )


def _charts(contexts: Sequence[Mapping[str, Any]]) -> list[Chart]:
    charts = []
    expected, best = array("d"), Counter[str]()
    for context in contexts:
        if "error" not in context:
            best[context["queries"][context["scores"].index(max(context["scores"]))]] += 1
            if (score := _expected_score(context)) is not None:
                expected.append(score)
    if score_counts := counts(expected, edges=[k / 20 for k in range(21)]):
        label = "score of the expected query"
        mean = sum(expected) / len(expected)
        svg = histogram(score_counts, title=label, units="contexts", label=label, mean=mean)
        charts.append(Chart("Score of the expected query", svg))
    groups = [Group(query, n, None, None, str(n), n) for query, n in best.most_common()]
    if svg_ := intervals(groups, title="Highest queries", label="contexts", units="contexts"):
        charts.append(Chart("How often each query has the highest score", svg_))
    return charts


def _surety(context: Mapping[str, Any]) -> tuple[bool, float]:
    """Return a key that sorts failures first, then by the expected or else the highest score."""
    score = _expected_score(context)
    return bool(context["passed"]), max(context["scores"]) if score is None else score


def _expected_score(context: Mapping[str, Any]) -> float | None:
    return None if context["passed"] is None else context["scores"][context["expected"]]


def _items(source: Source, indices: Sequence[int] | np.ndarray) -> Items:
    """Return the contexts at these indices."""
    n_beyond = len(indices) - n_listed(len(indices))
    indices = indices[: n_listed(len(indices))]
    worst = [source.items[k] for k in indices]
    expected = [
        number(None) if context["passed"] is None else context["queries"][context["expected"]]
        for context in worst
    ]
    if source.strips:
        source = dataclasses.replace(source, strips=[source.strips[k] for k in indices])
    scores = [number(_expected_score(context), 4) + sections.marked(context) for context in worst]
    items = Items(
        units="contexts",
        order="worst first",
        n_all=source.n_items,
        n_beyond=n_beyond,
        columns=[
            Column("Context", "text", [context["context_text"] for context in worst]),
            Column("Number", "number", [str(context["context"]) for context in worst]),
            Column("Expected", "category", expected),
            Column("Its score", "number", scores, "≈: rounding could change the verdict"),
            Column("Passed", "flag", [yes_no(context["passed"]) for context in worst]),
        ],
        fields=[Field("Text", [context["text"] for context in worst])],
        tables=[
            Rows(
                "Queries",
                ["Query", "logp", "Score", "Tokens"],
                "expected",
                [_queries(context) for context in worst],
            )
        ],
        strips=strips_of(source),
        within_noise=sections.within_noise(source.record, worst),
    )
    return with_failures(items, source.record["failures"])


def _queries(context: Mapping[str, Any]) -> list[Row]:
    columns = (context[name] for name in ("queries", "logp", "scores", "n_tokens"))
    return [
        Row(
            [query, number(float(logp), 4), number(score, 4), str(n)],
            score,
            k == context["expected"],
        )
        for k, (query, logp, score, n) in enumerate(zip(*columns, strict=True))
    ]

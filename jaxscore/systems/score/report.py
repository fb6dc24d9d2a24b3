"""Report of `score`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxscore.report import sections
from jaxscore.report.document import Card, Chart, Column, Document, Items, Source
from jaxscore.report.html.charts.histogram import Counts, Labels, Logs, histogram, scatter
from jaxscore.report.html.strips import LARGEST, MISSING, PER_NAT, Strips
from jaxscore.report.markdown import NOTHING, number, significant
from jaxscore.report.sections import closing, model_of, sentence, three, with_failures
from jaxscore.systems.score.worst_requests import LONGEST, Held, WorstRequests

MEANS = {"mean_entropy": "Entropy", "mean_self_certainty": "Self-certainty"}


def report(source: Source) -> Document:
    """The report of a run; its items are a `WorstRequests` that took each record."""
    record = source.record
    requests = WorstRequests() if source.items is None else source.items
    summary, settings = record["summary"], record["settings"]
    mean = summary["mean_logprob"]
    return Document(
        system="score",
        title=f"Scores: {model_of(record)}",
        verdict=sentence(source.headline),
        cards=[
            Card("Mean log-probability", three(mean), "nats per token, over all tokens"),
            Card("Perplexity", significant(_perplexity(mean)), "exp of its negative"),
            Card("Tokens", f"{summary['n_scored']:,}", "scored"),
            Card("Requests", f"{summary['n_requests']:,}", _failed(record)),
        ],
        charts=_charts(requests),
        items=_items(source, requests),
        sections=closing(record, "requests"),
        about=[
            "Numbers are nats. Mean log-probability, entropy and self-certainty of a request are "
            "over its scored tokens, and perplexity is exp(-mean log-probability). Numbers of a "
            f"token are rounded to {1 / PER_NAT:g} nats.",
            *sections.boundary(settings["boundary"], record["boundary_audit"], "requests"),
        ],
    )


def _perplexity(mean: float | None) -> float | None:
    with np.errstate(over="ignore"):
        return None if mean is None else float(np.exp(-mean))


def _failed(record: Mapping[str, Any]) -> str:
    return f"{len(record['failures']):,} failed" if record["failures"] else "none failed"


def _charts(requests: WorstRequests) -> list[Chart]:
    out = []
    for found, title, label in (
        (
            requests.surprisal(),
            "Mean surprisal of a request",
            "-mean log-probability, nats per token",
        ),
        (requests.entropy(), "Mean entropy of a request", "entropy, nats per token"),
    ):
        if found is not None:
            out.append(Chart(title, _histogram(found, title, label)))
    labels = Labels("scored tokens", "perplexity", "requests")
    if svg := scatter(requests.lengths(), title="Length", labels=labels, logs=Logs(True, True)):
        reported = "Each point is the middle of a cell of requests."
        out.append(Chart("Perplexity against length", svg, reported))
    return out


def _histogram(found: Counts, title: str, label: str) -> Any:
    open_ended = found.edges[-1] > LONGEST
    return histogram(found, title=title, what="requests", label=label, last_open=open_ended)


def _items(source: Source, requests: WorstRequests) -> Items:
    held = requests.held()
    strips = _strips(held, requests, source.vocabulary)
    worst, least = _worst_tokens(strips)
    items = Items(
        what="requests",
        order="lowest mean log-probability first",
        n_all=requests.n_all,
        columns=[
            Column("Id", "text", held.ids),
            Column("Sum", "number", _shown(held.sums["sum_logprob"])),
            Column("Mean", "number", _shown(held.sums["mean_logprob"]), "nats per token"),
            Column(
                "Perplexity", "number",
                [significant(_none(v)) for v in held.sums["perplexity"].tolist()],
            ),
            *(
                Column(title, "number", _shown(held.sums[name]))
                for name, title in MEANS.items()
                if not np.isnan(held.sums[name]).all()  # a server does not tell them
            ),
            *(
                Column(name, "number", [significant(_none(v)) for v in held.sums[name].tolist()])
                for name in requests.measures
            ),
            Column("Tokens", "number", list(map(str, held.n_tokens.tolist()))),
            Column("Worst token", "token", worst, "the token with the least log-probability"),
            Column("Its nats", "number", least),
        ],
        strips=strips,
        text_column="Text",
    )  # fmt: skip
    if strips is None:  # --summary-only
        items = _without_tokens(items)
    return with_failures(items, source.record["failures"])


def _without_tokens(items: Items) -> Items:
    return Items(items.what, items.order, items.n_all, items.columns[:-2])


def _none(value: float) -> float | None:
    return None if value != value else value


def _shown(values: np.ndarray) -> list[str]:
    return [number(_none(value), 4) for value in values.tolist()]


def _strips(held: Held, requests: WorstRequests, vocabulary: int | None) -> Strips | None:
    if not len(held.tokens.ids):
        return None
    return Strips(
        first=np.arange(len(held.ids) + 1),
        titles=[""] * len(held.ids),
        contexts=held.contexts,
        tokens=held.tokens,
        names=requests.names,
        vocabulary=vocabulary,
    )


def _worst_tokens(strips: Strips | None) -> tuple[list[str], list[str]]:
    """The least probable token of each text, the first of equal ones, and its nats."""
    if strips is None:
        return [], []
    place, _, texts = strips.table
    logprob = strips.tokens.numbers["logprob"].astype(np.int32)
    logprob[logprob == MISSING] = LARGEST + 1
    length = strips.tokens.length
    with_tokens = np.flatnonzero(length)
    start = (np.cumsum(length) - length)[with_tokens]
    lowest = np.minimum.reduceat(logprob, start)
    same = np.flatnonzero(logprob == np.repeat(lowest, length[with_tokens]))
    first = same[np.searchsorted(same, start)]
    worst, least = [NOTHING] * len(length), [NOTHING] * len(length)
    for item, at, value in zip(
        with_tokens.tolist(), place[first].tolist(), lowest.tolist(), strict=True
    ):
        if value <= LARGEST:
            worst[item], least[item] = texts[at], number(value / PER_NAT, 3)
    return worst, least

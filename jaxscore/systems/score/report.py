"""Report of `score`."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxscore.analysis.text_measures import perplexity
from jaxscore.report import sections
from jaxscore.report.document import EMBEDDED, Card, Chart, Column, Document, Items, Source
from jaxscore.report.html import packed as limits
from jaxscore.report.html.histogram import Counts, Labels, Logs, histogram, merged, scatter
from jaxscore.report.html.strips import (
    LARGEST,
    MISSING,
    NUMBERS,
    PER_NAT,
    Strips,
    Tokens,
    TokenText,
    join,
    tokens,
)
from jaxscore.report.markdown import NOTHING, number, significant
from jaxscore.report.sections import closing, context_end, model_of, sentence, three, with_failures

HELD = EMBEDDED  # requests of the lowest mean log-probability
HELD_TOKENS = limits.TOKENS  # of these requests, the worst first
HELD_CONTEXTS = 2_000_000  # characters of their contexts, likewise
TOGETHER, TOKENS_TOGETHER = 4_096, 200_000  # records that become arrays together, and their tokens
WIDTH = 0.02  # nats of the bins in which all requests are counted
LONGEST = 60.0  # nats; what is larger is counted in the last bin
PER_OCTAVE = 4  # lengths in tokens are counted in quarters of an octave
NATS_OF_CELL = 0.25  # and mean surprisals of a length in bins of this width
SUMS = (
    "sum_logprob", "mean_logprob", "perplexity", "mean_entropy", "mean_self_certainty",
)  # fmt: skip
MEASURES = ("min_k", "min_k_pp", "fast_detect")  # one number per text, of --measures


class Retained(NamedTuple):
    """Some requests, the fields aligned.

    Attributes:
        ids, contexts: texts.
        n_tokens, n_scored: int64.
        sums: name -> float64; NaN where no token was scored, or the number is not known.
        tokens: empty of a request whose tokens are left out.
    """

    ids: list[str]
    contexts: list[str]
    n_tokens: np.ndarray
    n_scored: np.ndarray
    sums: dict[str, np.ndarray]
    tokens: Tokens


class WorstRequests:
    """Takes each record of `score`, with what stands before its text.

    Attributes:
        n_all: records that were taken, failed ones included.
        names: of tokens by their id.
        measures: those of `MEASURES` that the records have.
    """

    def __init__(self, measures: Collection[str] = ()) -> None:
        """`measures` are the names of --measures, further ones included."""
        self.n_all = 0
        self.measures = tuple(name for name in MEASURES if name in measures)
        self._ranked = "rank" in measures  # else a field of this name is the user's own
        self.names: dict[int, str] = {}
        self._waiting: list[tuple[Mapping[str, Any], str]] = []
        self._n_waiting = 0
        self._retained: list[Retained] = []
        self._bound = np.inf  # requests of this mean and above are shown without tokens
        n_bins = round(LONGEST / WIDTH) + 1
        self._surprisal, self._entropy = np.zeros((2, n_bins), np.int64)
        self._cells: Counter[tuple[int, int]] = Counter()

    def add(self, record: Mapping[str, Any], context: str) -> None:
        """One record, its arrays as NumPy has them or as lists; one that failed is counted."""
        self.n_all += 1
        if "error" in record:
            return
        self._waiting.append((record, context))
        self._n_waiting += record["n_tokens"]
        if len(self._waiting) >= TOGETHER or self._n_waiting >= TOKENS_TOGETHER:
            self._take()

    def retained(self) -> Retained:
        """The worst requests, worst first."""
        self._take()
        return _worst(_join(self._retained or [self._arrays()]))[0]

    def surprisal(self) -> Counts | None:
        """Histogram of the mean surprisal (-mean log-probability) over all requests."""
        self._take()
        return merged(self._surprisal, WIDTH)

    def entropy(self) -> Counts | None:
        """Histogram of the mean entropy over all requests."""
        self._take()
        return merged(self._entropy, WIDTH)

    def lengths(self) -> dict[tuple[float, float], int]:
        """(tokens, perplexity) of the middle of each cell -> how many of all requests lie there."""
        self._take()
        return {
            (2.0 ** ((x + 0.5) / PER_OCTAVE), float(np.exp((y + 0.5) * NATS_OF_CELL))): n
            for (x, y), n in sorted(self._cells.items())
        }

    def _take(self) -> None:
        if not self._waiting:
            return
        one = self._arrays()
        self._count(one)
        self._retained.append(one)
        self._waiting, self._n_waiting = [], 0
        n_retained = sum(len(part.ids) for part in self._retained)
        n_tokens = sum(len(part.tokens.ids) for part in self._retained)
        if n_retained > 2 * HELD or n_tokens > 2 * HELD_TOKENS:
            worst, bound = _worst(_join(self._retained))
            self._retained, self._bound = [worst], min(bound, self._bound)

    def _arrays(self) -> Retained:
        records = [record for record, _ in self._waiting]
        return Retained(
            [str(record["id"]) for record in records],
            [context_end(context) for _, context in self._waiting],
            np.array([record["n_tokens"] for record in records], np.int64),
            np.array([record["n_scored"] for record in records], np.int64),
            {
                name: np.array([record[name] for record in records], np.float64)
                for name in (*SUMS, *self.measures)
            },
            self._tokens(records),
        )

    def _tokens(self, records: Sequence[Mapping[str, Any]]) -> Tokens:
        """Drop the tokens of requests after the first request without tokens."""
        given = [_tokens(record, self._ranked) for record in records]
        if self._bound == np.inf:
            return tokens(given, self.names)
        mean = np.array([record["mean_logprob"] for record in records], np.float64)
        shown = mean < self._bound  # False of NaN: such requests come last
        some = [one if own else None for one, own in zip(given, shown.tolist(), strict=True)]
        found = tokens(some, self.names)
        size = np.array([0 if one is None else len(one.tokens) for one in given], np.int64)
        return dataclasses.replace(found, left_out=np.where(shown, found.left_out, size))

    def _count(self, one: Retained) -> None:
        surprisal, entropy = -one.sums["mean_logprob"], one.sums["mean_entropy"]
        known = np.isfinite(surprisal)
        for values, into in ((surprisal, self._surprisal), (entropy, self._entropy)):
            bins = np.clip(values[np.isfinite(values)], 0.0, LONGEST) / WIDTH
            into += np.bincount(bins.astype(np.int64), minlength=len(into))
        x = np.floor(np.log2(one.n_scored[known]) * PER_OCTAVE).astype(int)
        y = np.floor(np.clip(surprisal[known], 0.0, LONGEST) / NATS_OF_CELL).astype(int)
        self._cells.update(zip(x.tolist(), y.tolist(), strict=True))


def _tokens(record: Mapping[str, Any], ranked: bool) -> TokenText | None:
    """None if the record has no arrays; of an endpoint's, ids are -1 and numbers NaN if it
    returns none."""
    if "logprob" not in record:
        return None
    n, ids = len(record["tokens"]), record["token_ids"]
    logprob, entropy, certainty = (
        np.full(n, np.nan) if record[name] is None else record[name] for name in NUMBERS
    )
    return TokenText(
        np.full(n, -1, np.int32) if ids is None else ids,
        record["tokens"],
        logprob,
        entropy,
        certainty,
        record["greedy"],
        record["rank"] if ranked else None,
    )


def _join(parts: Sequence[Retained]) -> Retained:
    return Retained(
        [id for part in parts for id in part.ids],
        [context for part in parts for context in part.contexts],
        np.concatenate([part.n_tokens for part in parts]),
        np.concatenate([part.n_scored for part in parts]),
        {name: np.concatenate([part.sums[name] for part in parts]) for name in parts[0].sums},
        join([part.tokens for part in parts]),
    )


def _worst(given: Retained) -> tuple[Retained, float]:
    """The first `HELD` by their mean, without the tokens and the contexts that are too many.

    Requests that come later only push others back, so what is left out here is never needed.

    Returns:
        The requests, and the mean of the first one without tokens, infinity where all have them:
        a later request of this mean or above comes after it.
    """
    mean = np.where(np.isnan(given.sums["mean_logprob"]), np.inf, given.sums["mean_logprob"])
    order = np.argsort(mean, kind="stable")[:HELD]
    found = given.tokens.take(order)
    with_tokens = int(np.searchsorted(np.cumsum(found.length), HELD_TOKENS, "right"))
    places = order.tolist()
    contexts, n_characters = [], 0
    for place in places:
        n_characters += len(given.contexts[place])
        contexts.append(given.contexts[place] if n_characters <= HELD_CONTEXTS else "")
    worst = Retained(
        [given.ids[place] for place in places],
        contexts,
        given.n_tokens[order],
        given.n_scored[order],
        {name: values[order] for name, values in given.sums.items()},
        found.first(with_tokens),
    )
    return worst, float(mean[order[with_tokens]]) if with_tokens < len(order) else np.inf


MEANS = {"mean_entropy": "Entropy", "mean_self_certainty": "Self-certainty"}


def report(source: Source) -> Document:
    """The report of a run; its items are a `WorstRequests` that took each record."""
    record = source.record
    requests = WorstRequests() if source.items is None else source.items
    summary, settings = record["summary"], record["settings"]
    mean = summary["mean_logprob"]
    n_failed = f"{len(record['failures']):,}" if record["failures"] else "none"
    return Document(
        system="score",
        title=f"Scores: {model_of(record)}",
        verdict=sentence(source.headline),
        cards=[
            Card("Mean log-probability", three(mean), "nats per token, over all tokens"),
            Card("Perplexity", significant(perplexity(mean)), "exp of its negative"),
            Card("Tokens", f"{summary['n_scored']:,}", "scored"),
            Card("Requests", f"{summary['n_requests']:,}", f"{n_failed} failed"),
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
            is_cut = found.edges[-1] > LONGEST
            bars = histogram(found, title=title, what="requests", label=label, last_open=is_cut)
            out.append(Chart(title, bars))
    labels = Labels("scored tokens", "perplexity", "requests")
    if svg := scatter(requests.lengths(), title="Length", labels=labels, logs=Logs(True, True)):
        reported = "Each point is the middle of a cell of requests."
        out.append(Chart("Perplexity against length", svg, reported))
    return out


def _items(source: Source, requests: WorstRequests) -> Items:
    retained = requests.retained()
    sums, four = retained.sums, functools.partial(number, digits=4)
    strips = None
    if len(retained.tokens.ids):
        strips = Strips(
            first=np.arange(len(retained.ids) + 1),
            titles=[""] * len(retained.ids),
            contexts=retained.contexts,
            tokens=retained.tokens,
            names=requests.names,
            vocabulary=source.vocabulary,
        )
    worst, least = _worst_tokens(strips)
    items = Items(
        what="requests",
        order="lowest mean log-probability first",
        n_all=requests.n_all,
        columns=[
            Column("Id", "text", retained.ids),
            Column("Sum", "number", _shown(sums["sum_logprob"], four)),
            Column("Mean", "number", _shown(sums["mean_logprob"], four), "nats per token"),
            Column("Perplexity", "number", _shown(sums["perplexity"], significant)),
            *(
                Column(title, "number", _shown(sums[name], four))
                for name, title in MEANS.items()
                if not np.isnan(sums[name]).all()  # a server returns none
            ),
            *(
                Column(name, "number", _shown(sums[name], significant))
                for name in requests.measures
            ),
            Column("Tokens", "number", list(map(str, retained.n_tokens.tolist()))),
            Column("Worst token", "token", worst, "the token with the least log-probability"),
            Column("Its nats", "number", least),
        ],
        strips=strips,
        text_column="Text",
    )  # fmt: skip
    if strips is None:  # --summary-only
        items = Items(items.what, items.order, items.n_all, items.columns[:-2])
    return with_failures(items, source.record["failures"])


def _shown(values: np.ndarray, write: Callable[[float | None], str]) -> list[str]:
    """Numbers as text, NaN as one that is not known."""
    return [write(None if value != value else value) for value in values.tolist()]


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

"""Report of `divergence`."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.document import Chart, Column, Document, Items, Section, Source
from jaxscore.report.html.chart_parts import means
from jaxscore.report.html.intervals import Group, intervals
from jaxscore.report.html.strips import TokenMetric, TokenText
from jaxscore.report.markdown import NOTHING, SHOWN, significant, table, text
from jaxscore.report.sections import (
    closing,
    estimate_card,
    sides,
    strips_of,
    verdict,
    with_failures,
)
from jaxscore.types.results import Strip

METRICS = (
    TokenMetric("kl", "KL(p ‖ q)", "nats", scaled=True),
    TokenMetric("difference", "ln p - ln q", "nats", 0, scaled=True),
)
CARDS = {
    "kl": "KL(p ‖ q)",
    "reverse_kl": "KL(q ‖ p)",
    "js": "Jensen-Shannon",
    "same_argmax": "Same most probable token",
    "perplexity": "Perplexity of the model",
    "reference_perplexity": "Perplexity of the reference",
}
PER_TOKEN = {
    "kl": "KL divergence from the model to the reference, KL(p ‖ q)",
    "reverse_kl": "KL divergence from the reference to the model, KL(q ‖ p)",
    "js": "Jensen-Shannon divergence (at most 0.693)",
    "cross_entropy": "cross-entropy of the reference under the model, -Σ p ln q",
    "entropy": "entropy of the model",
    "reference_entropy": "entropy of the reference",
    "logprob": "log-probability under the model, ln p",
    "reference_logprob": "log-probability under the reference, ln q",
    "logprob_difference": "ln p - ln q",
    "same_argmax": "share of tokens at which both have the same most probable token",
    "perplexity": "perplexity under the model",
    "reference_perplexity": "perplexity under the reference",
}
PER_TEXT = {
    "binoculars": "Binoculars: log-perplexity under the model / cross-entropy",
    "binoculars_upstream": "the same with the log-perplexity under the reference, as the authors' "
    "program has it",
}
PERCENTILES = {"p50": "50 %", "p90": "90 %", "p99": "99 %", "p99_9": "99.9 %", "max": "largest"}
TOKEN_COLUMNS = {
    "kl": "KL(p ‖ q)",
    "reverse_kl": "KL(q ‖ p)",
    "js": "JS",
    "logprob": "ln p",
    "reference_logprob": "ln q",
}
TEXT_COLUMNS = {
    "mean_kl": "KL(p ‖ q)",
    "mean_js": "JS",
    "same_argmax_share": "Same argmax",
    "perplexity": "Perplexity, p",
    "reference_perplexity": "Perplexity, q",
    "binoculars": "Binoculars",
}


def report(source: Source) -> Document:
    """The report of a run."""
    record = source.record
    settings, summary = record["settings"], record["summary"]
    return Document(
        system="divergence",
        title=f"Divergence: {' against '.join(_sides(settings))}",
        verdict=verdict(source),
        cards=[
            *(estimate_card(title, summary[name], "tokens") for name, title in CARDS.items()),
            estimate_card("Binoculars", summary["binoculars"], "texts"),
        ],
        charts=_charts(summary),
        items=_items(source),
        sections=[
            *_worst_tokens(record["worst_tokens"]),
            Section(
                "All means", [_means("Per token", PER_TOKEN, summary, "Tokens"),
                              _means("Per text", PER_TEXT, summary, "Texts")],
            ),
            *_percentiles(summary["kl_percentiles"]),
            *closing(record, "texts"),
        ],
        about=[
            "p is the model's distribution over the next token, and q the reference's. Numbers are "
            f"nats. Intervals hold 95% of {settings['n_bootstrap']} bootstrap means that resample "
            "texts, since tokens of one text are not independent; - stands for one text or equal "
            "values.",
            *sections.conversations(settings),
            *sections.boundary(settings["boundary"], record["boundary_audit"], "requests"),
        ],
    )  # fmt: skip


def _sides(settings: Mapping[str, Any]) -> tuple[str, str]:
    """Names of both models by their difference."""
    names = {"quantized": "quantization", "dtype": "dtype", "lora": "LoRA", "revision": "revision",
             "implementation": "implementation"}  # fmt: skip
    loaded = [
        (shown, settings.get(name), settings.get(f"reference_{name}"))
        for name, shown in names.items()
    ]
    absent = "no model"
    return sides(settings.get("model", absent), settings.get("reference", absent), loaded)


def _means(title: str, names: Mapping[str, str], summary: Mapping[str, Estimate], over: str) -> str:
    """A table of means with their intervals and counts."""
    rows = []
    for name, meaning in names.items():
        mean = summary[name]
        low, high = significant(mean.low), significant(mean.high)
        span = NOTHING if mean.low is None else f"{low} to {high}"
        rows.append([meaning, significant(mean.mean), span, str(mean.n)])
    return table([title, "Mean", "95% interval", over], rows)


def _percentiles(percentiles: Mapping[str, Any]) -> list[Section]:
    if percentiles["max"] is None:
        return []
    rows = [[title, significant(percentiles[name])] for name, title in PERCENTILES.items()]
    n = f"Of {percentiles['n']} tokens; - where fewer than one of them would lie above."
    title = "KL divergence of the tokens"
    return [Section(title, [table(["Percentile", "KL(p ‖ q)"], rows), n])]


def _worst_tokens(tokens: Sequence[Mapping[str, Any]]) -> list[Section]:
    if not tokens:
        return []
    rows = [
        [
            text(str(token["id"])),
            text(token["before"]),
            text(re.sub("^ ", "·", token["token"])),
            *(significant(token[name]) for name in TOKEN_COLUMNS),
            "yes" if token["same_argmax"] else "no",
        ]
        for token in tokens
    ]
    header = ["Id", "Before", "Token", *TOKEN_COLUMNS.values(), "Same argmax"]
    title = f"Tokens, largest KL divergence first (at most {SHOWN})"
    return [Section(title, [table(header, rows, left=3)], opened=True)]


def _charts(summary: Mapping[str, Any]) -> list[Chart]:
    title, label = "Mean divergence per token", "nats per token"
    named = [(CARDS[name], summary[name], None) for name in ("kl", "reverse_kl", "js")]
    charts = means(title, named, "tokens", label=label)
    percentiles = summary["kl_percentiles"]
    groups = [
        Group(name, percentiles[key], None, None, significant(percentiles[key]), percentiles["n"])
        for key, name in PERCENTILES.items()
        if percentiles[key] is not None
    ]
    title = "KL(p ‖ q) of the tokens"
    svg = intervals(groups, title=title, label="nats", units="tokens")
    caption = "Each bar: so many of the tokens have a smaller one."
    return charts if svg is None else [*charts, Chart(f"Percentiles of {title}", svg, caption)]


def _items(source: Source) -> Items:
    texts = source.record["worst_texts"]
    items = Items(
        units="texts",
        order="largest mean KL divergence first",
        n_all=source.n_items,
        columns=[
            Column("Id", "text", [str(result["id"]) for result in texts]),
            *(
                Column(title, "number", [significant(result[name]) for result in texts])
                for name, title in TEXT_COLUMNS.items()
            ),
            Column("Tokens", "number", [str(result["n_scored"]) for result in texts]),
        ],
        strips=strips_of(source, _tokens, metrics=METRICS),
        text_column="Text" if source.strips else "",
    )
    return with_failures(items, source.record["failures"])


def _tokens(strip: Strip) -> TokenText:
    measures = strip.scored.measures
    difference = strip.scored.logprob - measures["reference_logprob"]
    more = {"kl": measures["kl"], "difference": difference}
    return sections.token_text(strip)._replace(more=more)

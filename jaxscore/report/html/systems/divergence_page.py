"""Document of `divergence`."""

from collections.abc import Mapping
from typing import Any

from jaxscore.report import sections
from jaxscore.report.divergence_report import PERCENTILES, percentiles, worst_tokens
from jaxscore.report.document import Chart, Column, Document, Items
from jaxscore.report.html.chart_parts import means
from jaxscore.report.html.charts.intervals import Group, intervals
from jaxscore.report.html.parts import (
    closing,
    estimate_card,
    model_of,
    section,
    sentence,
    strips_of,
    with_failures,
)
from jaxscore.report.html.shows import Show
from jaxscore.report.html.source import Source
from jaxscore.report.html.strips import TokenText
from jaxscore.report.markdown import significant
from jaxscore.types.results import Strip

SHOWS = (
    Show("kl", "KL(p ‖ q)", "nats", scaled=True),
    Show("difference", "ln p - ln q", "nats", 0, scaled=True),
)
CARDS = {
    "kl": "KL(p ‖ q)",
    "reverse_kl": "KL(q ‖ p)",
    "js": "Jensen-Shannon",
    "same_argmax": "Same most probable token",
    "perplexity": "Perplexity of the model",
    "reference_perplexity": "Perplexity of the reference",
}
COLUMNS = {
    "mean_kl": "KL(p ‖ q)",
    "mean_js": "JS",
    "same_argmax_share": "Same argmax",
    "perplexity": "Perplexity, p",
    "reference_perplexity": "Perplexity, q",
    "binoculars": "Binoculars",
}


def page(source: Source) -> Document:
    """The page of a run; the record is that of its report."""
    record = source.record
    settings, summary = record["settings"], record["summary"]
    return Document(
        system="divergence",
        title=f"Divergence: {model_of(record)} against {settings.get('reference', 'no model')}",
        verdict=sentence(source.headline),
        cards=[
            *(estimate_card(title, summary[name], "tokens")
              for name, title in CARDS.items()),
            estimate_card("Binoculars", summary["binoculars"], "texts"),
        ],
        charts=_charts(summary),
        items=_items(source),
        sections=[
            *section(worst_tokens(record["worst_tokens"]), opened=True),
            *section(percentiles(summary["kl_percentiles"])),
            *closing(record, "texts"),
        ],
        about=[
            "p is the model's distribution over the next token, and q the reference's. Numbers are "
            f"nats. Intervals hold 95% of {settings['n_bootstrap']} bootstrap means that resample "
            "texts, since tokens of one text are not independent.",
            *sections.boundary(settings["boundary"], record["boundary_audit"], "requests"),
        ],
    )  # fmt: skip


def _charts(summary: Mapping[str, Any]) -> list[Chart]:
    title, label = "Mean divergence per token", "nats per token"
    named = [(CARDS[name], summary[name], None) for name in ("kl", "reverse_kl", "js")]
    out = means(title, named, "tokens", label=label)
    found = summary["kl_percentiles"]
    groups = [
        Group(name, found[key], None, None, significant(found[key]), found["n"])
        for key, name in PERCENTILES.items()
        if found[key] is not None
    ]
    title = "KL(p ‖ q) of the tokens"
    svg = intervals(groups, title=title, label="nats", what="tokens")
    told = "Each bar: so many of the tokens have a smaller one."
    return out if svg is None else [*out, Chart(f"Percentiles of {title}", svg, told)]


def _items(source: Source) -> Items:
    texts = source.record["worst_texts"]
    items = Items(
        what="texts",
        order="largest mean KL divergence first",
        n_all=source.n_items,
        columns=[
            Column("Id", "text", [str(one["id"]) for one in texts]),
            *(
                Column(title, "number", [significant(one[name]) for one in texts])
                for name, title in COLUMNS.items()
            ),
            Column("Tokens", "number", [str(one["n_scored"]) for one in texts]),
        ],
        strips=strips_of(source, _tokens, shows=SHOWS),
        text_column="Text" if source.strips else "",
    )
    return with_failures(items, source.record["failures"])


def _tokens(strip: Strip) -> TokenText:
    one = strip.scored
    return TokenText(
        one.token_ids,
        one.tokens,
        one.logprob,
        one.entropy,
        one.self_certainty,
        one.greedy,
        more={
            "kl": one.measures["kl"],
            "difference": one.logprob - one.measures["reference_logprob"],
        },
    )

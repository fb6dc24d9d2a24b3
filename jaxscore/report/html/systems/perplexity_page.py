"""Document of `perplexity`."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from jaxscore.report.document import Card, Chart, Column, Document, Items
from jaxscore.report.html.charts.histogram import counts, histogram
from jaxscore.report.html.charts.scatter import Labels, Logs, scatter
from jaxscore.report.html.parts import closing, estimate_card, model_of, sentence, with_failures
from jaxscore.report.html.source import Source
from jaxscore.report.markdown import number, significant
from jaxscore.report.perplexity_report import UNITS, explained, worst_first


def page(source: Source) -> Document:
    """The page of a run; the record is that of its report."""
    record = source.record
    return Document(
        system="perplexity",
        title=f"Perplexity: {model_of(record)}",
        verdict=sentence(source.headline),
        cards=_cards(record["summary"]),
        charts=_charts(record),
        items=_items(source),
        sections=closing(record, "documents"),
        about=explained(record),
    )


def _six(value: float | None) -> str:
    return significant(value, 6)


def _cards(summary: Mapping[str, Any]) -> list[Card]:
    out = []
    for title, per, exponent, count in UNITS.values():
        unit, n = title.lower(), f"{summary[count]:,}"
        bits = estimate_card(f"Bits per {unit}", summary[per], "documents")
        out.append(Card(bits.title, bits.value, f"{bits.note}, {n} {unit}s"))
        out.append(estimate_card(f"Perplexity per {unit}", summary[exponent], "documents"))
    return out


def _charts(record: Mapping[str, Any]) -> list[Chart]:
    documents = worst_first(record)
    bits = [one["bits_per_byte"] for one in documents]
    out = []
    if (found := counts(bits)) is not None:
        svg = histogram(found, title="Bits per byte", what="documents", label="bits per byte")
        out.append(Chart("Bits per byte of a document", svg))
    points = Counter((float(one["n_scored"]), one["bits_per_byte"]) for one in documents)
    labels = Labels("scored tokens", "bits per byte", "documents")
    if svg_ := scatter(points, title="Length", labels=labels, logs=Logs(True, False)):
        out.append(Chart("Bits per byte against length", svg_))
    return out


def _items(source: Source) -> Items:
    documents = worst_first(source.record)
    numbers = ("n_bytes", "n_words", "n_scored", "n_windows")
    heads = ("Bytes", "Words", "Tokens", "Windows")
    items = Items(
        what="documents",
        order="most bits per byte first",
        n_all=source.n_items,
        columns=[
            Column("Id", "text", [str(one["id"]) for one in documents]),
            Column("Begins", "text", [one["begin"] for one in documents]),
            Column(
                "Bits per byte", "number", [number(one["bits_per_byte"], 4) for one in documents]
            ),
            Column(
                "Bits per word",
                "number",
                [significant(one["bits_per_word"], 5) for one in documents],
            ),
            Column(
                "Perplexity", "number", [significant(one["perplexity"], 5) for one in documents]
            ),
            *(
                Column(head, "number", [str(one[name]) for one in documents])
                for head, name in zip(heads, numbers, strict=True)
            ),
        ],
    )
    return with_failures(items, source.record["failures"])

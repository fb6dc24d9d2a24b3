"""Report of `perplexity`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import numbers_of
from jaxscore.io.json_output import Lazy
from jaxscore.report.counts import counted
from jaxscore.report.document import Card, Chart, Column, Document, Items, Source, n_listed
from jaxscore.report.html.histogram import (
    Labels,
    Logs,
    count_points,
    counts,
    histogram,
    scatter,
)
from jaxscore.report.markdown import NOTHING, number, significant
from jaxscore.report.sections import (
    closing,
    conversations,
    estimate_card,
    model_of,
    sentence,
    verdict,
    with_failures,
    worst_first,
)
from jaxscore.text.whole_words import lacks_spaces

UNITS = {
    "byte": ("bits_per_byte", "byte_perplexity", "n_bytes"),
    "word": ("bits_per_word", "word_perplexity", "n_words"),
    "token": ("bits_per_token", "perplexity", "n_scored"),
}


def without_spaces(summary: Mapping[str, Any]) -> list[str]:
    """Return why numbers per word are left out, or nothing if they are not."""
    if not (n := summary.get("n_without_spaces")):
        return []
    return [
        f"{n} of {counted(summary['n_documents'], 'documents')} "
        f"{'is' if n == 1 else 'are'} written without spaces between words: numbers per word are "
        "left out"
    ]


def report(source: Source) -> Document:
    """The report of a run."""
    record = source.record
    documents = source.items
    order = worst_first(documents, lambda document: (-document["bits_per_byte"],))
    listed = [documents[index] for index in order[: n_listed(len(order))]]
    items = _items(listed, source.n_items, len(order) - len(listed))
    return Document(
        system="perplexity",
        title=f"Perplexity: {model_of(record)}",
        verdict=verdict(source),
        cards=_cards(record["summary"]),
        charts=_charts(Lazy(order.tolist(), documents.element)),
        items=with_failures(items, record["failures"]),
        sections=closing(record, "documents"),
        about=_explanation(record),
    )


def _explanation(record: Mapping[str, Any]) -> list[str]:
    settings, summary = record["settings"], record["summary"]
    return [
        f"{counted(summary['n_documents'], 'documents')}. The means are over all bytes, words or "
        "tokens together, so that a long document weighs more. Words are separated by spaces. The "
        f"interval holds 95% of {settings['n_bootstrap']} bootstrap means that resample documents; "
        "- stands for one document or equal values.",
        f"Windows read up to {settings['max_length']} tokens, and each after a document's first "
        f"{_scored(settings)}. Not scored: {counted(summary['n_left_out'], 'tokens')}.",
        *conversations(settings),
    ]


def _scored(settings: Mapping[str, Any]) -> str:
    if settings["score_from"] == "half":
        return "scores its second half, as the first one does"
    return f"scores up to {settings['stride']} new ones"


def _cards(summary: Mapping[str, Any]) -> list[Card]:
    cards = []
    for unit, (per, exponent, count) in UNITS.items():
        if unit == "word" and (why := without_spaces(summary)):
            cards.append(Card("Bits and perplexity per word", NOTHING, sentence(why[0])))
            continue
        over = f"documents, {counted(summary[count], f'{unit}s')}"
        cards.append(estimate_card(f"Bits per {unit}", summary[per], over))
        cards.append(estimate_card(f"Perplexity per {unit}", summary[exponent], "documents"))
    return cards


def _charts(documents: Sequence[Mapping[str, Any]]) -> list[Chart]:
    charts = []
    numbers = numbers_of(documents, ("n_scored", "bits_per_byte"))
    if (counted := counts(numbers["bits_per_byte"])) is not None:
        svg = histogram(counted, title="Bits per byte", units="documents", label="bits per byte")
        charts.append(Chart("Bits per byte of a document", svg))
    points = count_points(numbers["n_scored"], numbers["bits_per_byte"])
    labels = Labels("scored tokens", "bits per byte", "documents")
    if svg_ := scatter(points, title="Length", labels=labels, logs=Logs(True, False)):
        charts.append(Chart("Bits per byte against length", svg_))
    return charts


def _items(documents: Sequence[Mapping[str, Any]], n_all: int, n_beyond: int) -> Items:
    columns = {
        "Bytes": "n_bytes", "Words": "n_words", "Tokens": "n_scored", "Windows": "n_windows"
    }  # fmt: skip
    per_byte = [number(each["bits_per_byte"], 4) for each in documents]
    has_words = [
        not lacks_spaces(each["begin"], each["n_bytes"], each["n_words"]) for each in documents
    ]
    per_word = [
        significant(each["bits_per_word"], 5) if has else NOTHING
        for each, has in zip(documents, has_words, strict=True)
    ]
    perplexity = [significant(each["perplexity"], 5) for each in documents]
    return Items(
        units="documents",
        order="most bits per byte first",
        n_all=n_all,
        n_beyond=n_beyond,
        columns=[
            Column("Id", "text", [str(each["id"]) for each in documents]),
            Column("Begins", "text", [each["begin"] for each in documents]),
            Column("Bits per byte", "number", per_byte),
            Column("Bits per word", "number", per_word, "-: written without spaces between words"),
            Column("Perplexity", "number", perplexity),
            *(
                Column(
                    title,
                    "number",
                    [
                        str(each[name]) if has or name != "n_words" else NOTHING
                        for each, has in zip(documents, has_words, strict=True)
                    ],
                )
                for title, name in columns.items()
            ),
        ],
    )

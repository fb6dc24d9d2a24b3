"""Document of `compare`."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxscore.report import compare_report, sections
from jaxscore.report.document import Card, Chart, Column, Document, Items, Source
from jaxscore.report.html.chart_parts import means
from jaxscore.report.html.charts.histogram import counts, histogram
from jaxscore.report.html.charts.scatter import Labels, Logs, scatter
from jaxscore.report.markdown import significant, text
from jaxscore.report.sections import closing, estimate_card, section, sentence

NUMBERS = 3  # that have charts
PAIRS = 100_000  # of a chart; the others are left out


def page(source: Source) -> Document:
    """The page of a comparison; the record is that of its report."""
    record = source.record
    return Document(
        system="compare",
        title=f"Comparison of two runs: {record['system']}",
        verdict=sentence(source.headline),
        cards=_cards(record),
        charts=[*_shares(record), *_numbers(source)],
        items=_flips(record) if record["decisions"] else _changed(record),
        sections=[
            *section(["## Results", *compare_report.results(record)], opened=True),
            *section(_agreements(record), opened=True),
            *section(compare_report.differences(record["differences"])),
            *(_largest(record) if record["decisions"] else []),
            *itertools.chain.from_iterable(map(section, compare_report.not_compared(record))),
            *closing(record, record["what"]),
        ],
        about=[
            compare_report.runs(record),
            compare_report.matched(record),
            *(" ".join(part.split()) for part in compare_report.explained(record).split("\n\n")),
        ],
    )


def _cards(record: Mapping[str, Any]) -> list[Card]:
    out = [Card("Pairs", f"{record['pairs']['compared']:,}", record["what"])]
    for one in record["results"]:
        if one["difference"] is None or one["difference"].mean is None:
            continue
        values = "values" if one["n_groups"] is None else f"values in {one['n_groups']} groups"
        card = estimate_card(f"{one['title']}: B - A", one["difference"], values)
        holm = f", p {significant(one['p_holm'], 2)} (Holm)"
        out.append(Card(card.title, card.value, card.note + holm))
    return out


def _shares(record: Mapping[str, Any]) -> list[Chart]:
    """Right decisions, which have one scale."""
    groups = [
        (one["name"], one["difference"], None)
        for one in record["results"]
        if one["cells"] is not None and one["difference"] is not None
    ]
    title = "Difference of shares, B - A"
    return means(title, groups, "pairs", label="B - A")


def _numbers(source: Source) -> Iterator[Chart]:
    """Each number of A against that of B, and how the pairs differ."""
    record = source.record
    found = [one for one in record["results"] if one["cells"] is None]
    total = len(source.results)
    pairs = source.results[:PAIRS]
    left = f" The first {PAIRS:,} of {total:,} pairs." if total > PAIRS else ""
    for one in found[:NUMBERS]:
        points = [*_points(pairs, one["name"])]
        title, labels = one["title"], Labels("A", "B", "values")
        svg = scatter(
            Counter(points), title=title, labels=labels, logs=Logs(False, False), diagonal=True
        )
        if svg is not None:
            told = f"On the diagonal both runs are equal; above it B is higher.{left}"
            yield Chart(f"{title}: A against B", svg, told)
        if (apart := counts([b - a for a, b in points])) is not None and any(
            a != b for a, b in points
        ):
            svg = histogram(
                apart,
                title=title,
                what="values",
                label="B - A",
                mean=None if left or one["difference"] is None else one["difference"].mean,
                signed=True,
            )
            yield Chart(f"{title}: B - A", svg, f"Below 0 B is lower.{left}")


def _points(pairs: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[float, float]]:
    """The finite values of both runs; of an item with several, each."""
    for pair in pairs:
        a, b = (_listed(pair.get(f"{name}_{run}")) for run in "ab")
        if len(a) != len(b):
            continue
        for one, other in zip(a, b, strict=True):
            if all(value is not None and math.isfinite(value) for value in (one, other)):
                yield float(one), float(other)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _flips(record: Mapping[str, Any]) -> Items:
    """All decisions that differ, those of the largest margins first."""
    known = [
        (decision, flip)
        for decision in record["decisions"]
        for flip in record["flips"][decision["name"]]
    ]
    audited = any(decision["audited"] is not None for decision in record["decisions"])

    def margins(name: str) -> list[str]:
        return [significant(flip[name]) for _, flip in known]

    return Items(
        what="flips",
        order="largest margins first",
        n_all=len(known),
        columns=[
            Column("Item", "text", [flip["name"] + sections.marked(flip) for _, flip in known]),
            Column("Decision", "category", [decision["title"] for decision, _ in known]),
            Column("A", "text", [compare_report.decided(flip["a"]) for _, flip in known]),
            Column("B", "text", [compare_report.decided(flip["b"]) for _, flip in known]),
            Column("Margin in A", "number", margins("margin_a")),
            Column("Margin in B", "number", margins("margin_b")),
            Column("Together", "number", margins("moved"), "the sum of both margins"),
        ],
        within_noise=[flip["within_noise"] for _, flip in known] if audited else [],
    )


def _changed(record: Mapping[str, Any]) -> Items:
    """The values that differ most, of each number."""
    titles = {one["name"]: one["title"] for one in record["results"]}
    known = [
        (titles[name], one) for name, values in record["most_changed"].items() for one in values
    ]

    def column(name: str) -> list[str]:
        return [significant(one[name]) for _, one in known]

    return Items(
        what="largest differences",
        order="of each number the largest first",
        n_all=len(known),
        columns=[
            Column("Item", "text", [one["name"] for _, one in known]),
            Column("Number", "category", [title for title, _ in known]),
            Column("A", "number", column("a")),
            Column("B", "number", column("b")),
            Column("B - A", "number", column("difference")),
        ],
    )


def _agreements(record: Mapping[str, Any]) -> list[str]:
    """How often the runs decide alike; the flips themselves are in the table."""
    lines = [
        f"- **{text(one['title'])}**: "
        f"{compare_report.agreement(one, len(record['flips'][one['name']]))}"
        for one in record["decisions"]
    ]
    return ["## Agreement", "\n".join(lines)] if lines else []


def _largest(record: Mapping[str, Any]) -> list[Any]:
    blocks = compare_report.changed(record)
    return section(["## Largest differences of numbers", *blocks]) if blocks else []

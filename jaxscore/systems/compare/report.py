"""Report of `compare`: what differs, what flipped, and which items have no partner."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.counts import counted
from jaxscore.report.document import Card, Chart, Column, Document, Items, Section, Source
from jaxscore.report.html.chart_parts import means
from jaxscore.report.html.histogram import Labels, Logs, counts, histogram, scatter
from jaxscore.report.markdown import NOTHING, significant, table, text
from jaxscore.report.sections import closing, estimate_card, sentence, sides
from jaxscore.systems.compare.bytes_report import INTRODUCTION as BYTES
from jaxscore.systems.compare.bytes_report import (
    class_charts,
    class_section,
    slice_sections,
    span_items,
)

LONGEST_SETTING = 40  # characters of a setting in the title
LISTED = 50  # names of a section; all are in the JSON file
LARGEST = 10  # values of a number that differ most; 50 are in the JSON file
CHARTED = 3  # numbers that have charts
PLOTTED = 100_000  # pairs of a chart; the others are left out
INTRODUCTION = """\
B - A is the mean difference of the pairs. The interval of a mean holds 95% of {n_bootstrap}
bootstrap means, which resample pairs, or whole groups where several values belong to one item. The
interval of a share is that of Newcombe (1998, method 10); with groups it is a bootstrap interval
too. A dash stands for fewer than two pairs or groups, or equal differences.

The sign-flip test assumes that without a difference between the runs each pair's difference has
either sign with the same probability; the differences of a group change signs together. McNemar's
test assumes the same of the pairs in which one run alone is right. Each p is two-sided, and
corrected by Holm's method for the {n_tests} tests of this page. Up to 16 signs are enumerated; of
more, {n_resamples} patterns are drawn, so that no p is below {smallest:.2g}. A difference that is
not shown may still exist."""
MATCHED = {
    "text": "Items are matched by id and by their text.",
    "input": "Both runs read the same input file, so items are matched by id.",
    "tokens": "Items are matched by id and scored tokens: the texts of a run are not known.",
    "id": "Items are matched by id alone (`--by-id`), whatever their texts.",
}
AUDITED = {
    None: "How many of these lie within the noise floor is not known: the runs were not audited "
    "(`--audit-noise N`).",
    "both": "Both runs were audited.",
    "A": "A alone was audited, so B's noise floor is not in this.",
    "B": "B alone was audited, so A's noise floor is not in this.",
}


def report(source: Source) -> Document:
    """Return the report of a comparison."""
    record = source.record
    settings = record["settings"]
    introduction = (f"{BYTES}\n\n" if settings["bytes"] else "") + INTRODUCTION.format(
        n_bootstrap=settings["n_bootstrap"],
        n_resamples=settings["n_resamples"],
        n_tests=sum(result["p"] is not None for result in record["results"]),
        smallest=1 / (settings["n_resamples"] + 1),
    )
    return Document(
        system="compare",
        title=f"Comparison of {record['system']}: {' against '.join(_sides(record))}",
        verdict=sentence(source.headline),
        cards=_cards(record),
        charts=[*class_charts(record.get("by_class", ())), *_shares(record), *_numbers(source)],
        items=_items(record),
        sections=[
            _results(record["results"]),
            *([class_section(record["by_class"])] if record.get("by_class") else []),
            *slice_sections(record.get("by", {})),
            *_agreements(record),
            _settings_that_differ(record["differences"]),
            *(_largest_differences(record) if record["decisions"] or record.get("spans") else []),
            *_without_partner(record),
            *closing(record, record["what"]),
        ],
        about=[
            _runs(record["runs"]),
            _matched(record["pairs"], record["what"]),
            *(" ".join(paragraph.split()) for paragraph in introduction.split("\n\n")),
        ],
    )


def _items(record: Mapping[str, Any]) -> Items:
    """Return spans of texts if there are some, else flips, else the largest differences."""
    if record.get("spans"):
        return span_items(record["spans"])
    return _flips(record) if record["decisions"] else _most_changed(record)


def _sides(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of both runs: their models, a setting that differs, or their files."""
    runs = record["runs"].values()
    a, b = (run.get("model") for run in runs)
    differences = [
        (difference["setting"], difference["a"], difference["b"])
        for difference in record["differences"]
        if difference["setting"] not in ("weights", "input", "input_sha256")
        and all(len(str(difference[side])) <= LONGEST_SETTING for side in "ab")
    ]
    if a is None or b is None or (a == b and not differences):
        a, b = (run["path"] for run in runs)
    return sides(a, b, differences)


def _cards(record: Mapping[str, Any]) -> list[Card]:
    cards = [Card("Pairs", f"{record['pairs']['compared']:,}", record["what"])]
    for result in record["results"]:
        if result["difference"] is None or result["difference"].mean is None:
            continue
        n_groups = result["n_groups"]
        values = "values" if n_groups is None else f"values in {counted(n_groups, 'groups')}"
        a, b = (sections.three(result[name]) for name in ("mean_a", "mean_b"))
        over = f"{values}, A {a}, B {b}, p {significant(result['p_holm'], 2)} (Holm)"
        if (n_groups or result["n"]) < 2:
            over = f"{values}: too few pairs for an interval or a test"
        cards.append(estimate_card(f"{result['title']}: B - A", result["difference"], over))
    return cards


def _shares(record: Mapping[str, Any]) -> list[Chart]:
    """Return a chart of the shares of right decisions, which have the same scale."""
    shares = [
        (result["name"], result["difference"], None)
        for result in record["results"]
        if result["cells"] is not None and result["difference"] is not None
    ]
    return means("Difference of shares, B - A", shares, "pairs", label="B - A")


def _numbers(source: Source) -> Iterator[Chart]:
    """Yield charts of each number of A against that of B, and of the pairs' differences."""
    total, pairs = len(source.results), source.results[:PLOTTED]
    left_out = f" The first {PLOTTED:,} of {total:,} pairs." if total > PLOTTED else ""
    numbers = [result for result in source.record["results"] if result["cells"] is None]
    for result in numbers[:CHARTED]:
        title, points = result["title"], [*_points(pairs, result["name"])]
        labels = Labels("A", "B", "values")
        svg = scatter(
            Counter(points), title=title, labels=labels, logs=Logs(False, False), diagonal=True
        )
        if svg is not None:
            caption = f"On the diagonal both runs are equal; above it B is higher.{left_out}"
            yield Chart(f"{title}: A against B", svg, caption)
        differences = [b - a for a, b in points]
        if (binned := counts(differences)) is not None and any(differences):
            has_mean = not left_out and result["difference"] is not None
            svg = histogram(
                binned,
                title=title,
                units="values",
                label="B - A",
                mean=result["difference"].mean if has_mean else None,
                signed=True,
            )
            yield Chart(f"{title}: B - A", svg, f"Below 0 B is lower.{left_out}")


def _points(pairs: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[float, float]]:
    """Yield the finite values of both runs; of an item with several, each."""
    for pair in pairs:
        a, b = (
            value if isinstance(value, list) else [value]
            for value in (pair.get(f"{name}_a"), pair.get(f"{name}_b"))
        )
        if len(a) == len(b):
            for values in zip(a, b, strict=True):
                if all(value is not None and math.isfinite(value) for value in values):
                    yield float(values[0]), float(values[1])


def _flips(record: Mapping[str, Any]) -> Items:
    """Return all decisions that differ, the largest margins first."""
    flips = [
        {"title": each["title"], **flip}
        for each in record["decisions"]
        for flip in record["flips"][each["name"]]
    ]
    is_audited = any(each["audited"] is not None for each in record["decisions"])
    return Items(
        units="flips",
        order="largest margins first",
        n_all=len(flips),
        columns=[
            Column("Item", "text", [flip["name"] + sections.marked(flip) for flip in flips]),
            Column("Decision", "category", [flip["title"] for flip in flips]),
            Column("A", "text", [_decided(flip["a"]) for flip in flips]),
            Column("B", "text", [_decided(flip["b"]) for flip in flips]),
            _number("Margin in A", flips, "margin_a"),
            _number("Margin in B", flips, "margin_b"),
            _number("Together", flips, "moved", "the sum of both margins"),
        ],
        within_noise=[flip["within_noise"] for flip in flips] if is_audited else [],
    )


def _number(title: str, rows: Sequence[Mapping[str, Any]], name: str, hint: str = "") -> Column:
    return Column(title, "number", [significant(row[name]) for row in rows], hint)


def _decided(value: Any) -> str:
    """Return a decision: right or wrong as yes or no, otherwise what was chosen."""
    return sections.yes_no(value) if isinstance(value, bool) else str(value)


def _most_changed(record: Mapping[str, Any]) -> Items:
    """Return the values of each number that differ most."""
    titles = {result["name"]: result["title"] for result in record["results"]}
    rows = [
        {"title": titles[name], **row}
        for name, values in record["most_changed"].items()
        for row in values
    ]
    return Items(
        units="largest differences",
        order="of each number the largest first",
        n_all=len(rows),
        columns=[
            Column("Item", "text", [row["name"] for row in rows]),
            Column("Number", "category", [row["title"] for row in rows]),
            _number("A", rows, "a"),
            _number("B", rows, "b"),
            _number("B - A", rows, "difference"),
        ],
    )


def _results(results: Sequence[Mapping[str, Any]]) -> Section:
    """Return the verdicts, then the table they come from."""
    if not results:
        return Section("Results", ["No number and no right decision is in both runs."], True)
    header = ["", "A", "B", "B - A", "95% interval", "p", "p, Holm", "Values", "Groups", "Left out"]
    blocks = [
        "\n".join(f"- {text(result['verdict'])}" for result in results),
        table(header, map(_row, results)),
    ]
    decisions = [result for result in results if result["cells"] is not None]
    if decisions:
        header = ["Pairs", "Both", "A alone", "B alone", "Neither", "Test"]
        blocks.append(table(header, map(_cells, decisions)))
    return Section("Results", blocks, True)


def _row(result: Mapping[str, Any]) -> list[str]:
    difference = result["difference"]
    return [
        text(result["title"]),
        significant(result["mean_a"]),
        significant(result["mean_b"]),
        significant(None if difference is None else difference.mean),
        NOTHING if difference is None else _interval(difference),
        significant(result["p"], 2),
        significant(result["p_holm"], 2),
        str(result["n"]),
        NOTHING if result["n_groups"] is None else str(result["n_groups"]),
        str(result["n_left_out"]),
    ]


def _cells(result: Mapping[str, Any]) -> list[str]:
    cells, test = result["cells"], NOTHING
    if result["test"] is not None:
        is_exact = ", exact" if result["exact"] else ""
        test = f"{result['test']}{is_exact}; interval: {result['interval_by']}"
    counts = (cells.both, cells.only_a, cells.only_b, cells.neither)
    return [text(result["title"]), *map(str, counts), text(test)]


def _interval(estimate: Estimate) -> str:
    low, high = significant(estimate.low), significant(estimate.high)
    return NOTHING if estimate.low is None else f"{low} to {high}"


def _agreements(record: Mapping[str, Any]) -> list[Section]:
    """Return the shares of equal decisions; the flips themselves are items."""
    lines = [
        f"- **{text(each['title'])}**: {_agreement(each, len(record['flips'][each['name']]))}"
        for each in record["decisions"]
    ]
    return [Section("Agreement", ["\n".join(lines)], True)] if lines else []


def _agreement(decision: Mapping[str, Any], n_flips: int) -> str:
    """Return sentences on equal decisions, and on the noise and the margins of flips."""
    n, share = decision["n"], decision["agree"]
    if n < 2:
        sentences = [f"{counted(n, 'pairs')} decided in both runs."]
    else:
        sentences = [
            f"{n_flips} of {n} pairs are decided otherwise. The share with equal decisions is "
            f"{significant(share.mean)} (95% interval {_interval(share)})."
        ]
        if decision["n_left_out"]:
            sentences.append(f"{decision['n_left_out']} others are not decided in both.")
    if n_flips:
        if decision["audited"] is not None:
            sentences.append(
                f"{decision['n_within']} of the flips lie within the noise floor "
                f"({sections.MARK}): rounding could turn a decision of that pair."
            )
        sentences.append(AUDITED[decision["audited"]])
        if decision["statistic"] is not None:
            sentences.append(f"Margins are differences of: {text(decision['statistic'])}.")
    return " ".join(sentences)


def _settings_that_differ(differences: Sequence[Mapping[str, Any]]) -> Section:
    rows = [[text(str(row[name])) for name in ("setting", "a", "b")] for row in differences]
    settings = table(["Setting", "A", "B"], rows, left=3)
    block = settings if rows else "No setting that both runs record."
    return Section("What differs between the runs", [block])


def _largest_differences(record: Mapping[str, Any]) -> list[Section]:
    """Return the values of each number that differ most, for a report with a table of flips."""
    titles = {result["name"]: result["title"] for result in record["results"]}
    blocks: list[str] = []
    for name, values in record["most_changed"].items():
        rows = [
            [text(value["name"]), *(significant(value[run]) for run in ("a", "b", "difference"))]
            for value in values[:LARGEST]
        ]
        blocks += [
            f"### Largest differences: {text(titles[name])}",
            table(["Item", "A", "B", "B - A"], rows),
        ]
    return [Section("Largest differences of numbers", blocks)] if blocks else []


def _without_partner(record: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the names of items without a partner."""
    for title, names in (
        ("A alone has", record["without_partner"]["a"]),
        ("B alone has", record["without_partner"]["b"]),
        ("The runs have other texts of", record["other_text"]),
    ):
        if names:
            limit = f" (the first {LISTED})" if len(names) > LISTED else ""
            lines = "\n".join(f"- {text(name)}" for name in names[:LISTED])
            yield Section(f"{title} {len(names)} {record['what']}{limit}", [lines])


def _runs(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the file and model of A and B, as a table."""
    rows = [
        [name.upper(), *(text(str(run.get(field) or NOTHING)) for field in ("path", "model"))]
        for name, run in runs.items()
    ]
    return table(["Run", "File", "Model"], rows, left=3)


def _matched(counts: Mapping[str, Any], title: str) -> str:
    """Describe how items were matched, and count the omissions."""
    return (
        f"{MATCHED[counts['matched_by']]} Compared: {counted(counts['compared'], 'pairs')}, of "
        f"{counts['units_a']} {title} in A and {counts['units_b']} in B. Left out: "
        f"{counted(counts['failed_pairs'], 'pairs')} that failed in a run, "
        f"{counted(counts['only_a'], title)} that only A has, {counts['only_b']} that only B has, "
        f"{counts['other_text']} with another text."
    )

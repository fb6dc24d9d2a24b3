"""Report of `compare` for people: what differs, what flipped, what had no partner."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxscore.analysis.bootstrap import Estimate
from jaxscore.report import sections
from jaxscore.report.markdown import NOTHING, significant, table, text

SHOWN = 50  # flips, changes and names of a section; all flips and names are in the JSON file
INTRODUCTION = """\
B - A is the mean difference of the pairs. The interval of a mean holds 95% of {n_bootstrap}
bootstrap means, which resample pairs, or whole groups where several values belong to one item. The
interval of a share is that of Newcombe (1998, method 10); with groups it is a bootstrap interval
too. A dash stands where fewer than two pairs or groups, or equal differences, cannot tell.

The sign-flip test assumes that without a difference between the runs each pair's difference has
either sign with the same probability; the differences of a group change signs together. McNemar's
test assumes the same of the pairs in which one run alone is right. Each p is two-sided, and
corrected by Holm's method for the {n_tests} tests of this page. Up to 16 signs are enumerated; of
more, {n_resamples} patterns are drawn, so that no p is below {smallest:.2g}. A difference that is
not shown may still exist.
"""
MATCHED = {
    "text": "Items are matched by id and by their text.",
    "input": "Both runs read the same input file, so items are matched by id.",
    "id": "Items are matched by id alone: the texts of a run are not known.",
}
AUDITED = {
    "both": "Both runs were audited.",
    "A": "A alone was audited, so B's noise floor is not in this.",
    "B": "B alone was audited, so A's noise floor is not in this.",
}
NOT_AUDITED = (
    "How many of these lie within the noise floor is not known: the runs were not audited "
    "(`--audit-noise N`)."
)


def report(record: Mapping[str, Any]) -> str:
    """Markdown of a comparison; `record` is what the report's JSON holds."""
    settings = record["settings"]
    parts = [
        f"# Comparison of two runs: {text(record['system'])}",
        runs(record),
        *results(record),
        explained(record),
        matched(record),
        *differences(record["differences"]),
        *sections.remarks(record["remarks"]),
        *_decisions(record),
        *changed(record),
        *itertools.chain.from_iterable(not_compared(record)),
        *sections.failures(record["failures"], record["what"]),
        *sections.settings(settings),
    ]
    return "\n\n".join(parts) + "\n"


def explained(record: Mapping[str, Any]) -> str:
    """What intervals and tests are, and what they assume."""
    settings = record["settings"]
    return INTRODUCTION.format(
        n_bootstrap=settings["n_bootstrap"],
        n_resamples=settings["n_resamples"],
        n_tests=sum(one["p"] is not None for one in record["results"]),
        smallest=1 / (settings["n_resamples"] + 1),
    ).strip()


def runs(record: Mapping[str, Any]) -> str:
    """File and model of A and B, as a table."""
    rows = [
        [name.upper(), *(text(str(one.get(field) or NOTHING)) for field in ("path", "model"))]
        for name, one in record["runs"].items()
    ]
    return table(["Run", "File", "Model"], rows, left=3)


def results(record: Mapping[str, Any]) -> list[str]:
    """The verdicts, then the table they come from."""
    found = record["results"]
    if not found:
        return ["No number and no right decision is in both runs."]
    header = ["", "A", "B", "B - A", "95% interval", "p", "p, Holm", "Values", "Groups", "Left out"]
    lines = "\n".join(f"- {text(one['verdict'])}" for one in found)
    out = [lines, table(header, [_row(one) for one in found])]
    decided = [one for one in found if one["cells"] is not None]
    if decided:
        rows = [
            [text(one["title"]), *(str(getattr(one["cells"], name)) for name in
             ("both", "only_a", "only_b", "neither")), text(_test(one))]
            for one in decided
        ]  # fmt: skip
        header = ["Pairs", "Both", "A alone", "B alone", "Neither", "Test"]
        out.append(table(header, rows))
    return out


def _row(one: Mapping[str, Any]) -> list[str]:
    found = one["difference"]
    return [
        text(one["title"]),
        significant(one["mean_a"]),
        significant(one["mean_b"]),
        significant(None if found is None else found.mean),
        NOTHING if found is None else _interval(found),
        significant(one["p"], 2),
        significant(one["p_holm"], 2),
        str(one["n"]),
        NOTHING if one["n_groups"] is None else str(one["n_groups"]),
        str(one["n_left_out"]),
    ]


def _interval(one: Estimate) -> str:
    return NOTHING if one.low is None else f"{significant(one.low)} to {significant(one.high)}"


def _test(one: Mapping[str, Any]) -> str:
    if one["test"] is None:
        return NOTHING
    return f"{one['test']}{', exact' if one['exact'] else ''}; interval: {one['interval_by']}"


def matched(record: Mapping[str, Any]) -> str:
    """How items were matched, and what was left out."""
    counts, what = record["pairs"], record["what"]
    return (
        f"{MATCHED[counts['matched_by']]} {counts['compared']} pairs are compared, of "
        f"{counts['units_a']} {what} in A and {counts['units_b']} in B. Left out: "
        f"{counts['failed_pairs']} pairs that failed in a run, {counts['only_a']} {what} that A "
        f"alone has, {counts['only_b']} that B alone has, {counts['other_text']} with another text."
    )


def differences(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings in which the runs differ, as Markdown blocks."""
    rows = [[text(str(one[name])) for name in ("setting", "a", "b")] for one in found]
    title = "## What differs between the runs"
    if not rows:
        return [title, "No setting that both runs tell."]
    return [title, table(["Setting", "A", "B"], rows, left=3)]


def _decisions(record: Mapping[str, Any]) -> list[str]:
    """How often the runs decide alike, and what flipped, largest margins first."""
    parts: list[str] = []
    for one in record["decisions"]:
        flips = record["flips"][one["name"]]
        some = f" The first {SHOWN} of {len(flips)}." if len(flips) > SHOWN else ""
        parts += [f"## Flips: {text(one['title'])}", f"{agreement(one, len(flips))}{some}"]
        if flips:
            parts.append(_flips(flips))
    return parts


def agreement(one: Mapping[str, Any], n_flips: int) -> str:
    """How often the runs decide alike, and of flips what is known of their noise and margins."""
    alike = _agreement(one, n_flips)
    return f"{alike} {_noise(one)}{_margins(one)}" if n_flips else alike


def _agreement(one: Mapping[str, Any], n_flips: int) -> str:
    if one["n"] < 2:
        return f"{one['n']} pairs are decided in both runs."
    share = one["agree"]
    left = f" {one['n_left_out']} others are not decided in both." if one["n_left_out"] else ""
    return (
        f"{n_flips} of {one['n']} pairs are decided otherwise. The share that is decided alike is "
        f"{significant(share.mean)} (95% interval {_interval(share)}).{left}"
    )


def _noise(one: Mapping[str, Any]) -> str:
    if one["audited"] is None:
        return NOT_AUDITED
    return (
        f"{one['n_within']} of the flips lie within the noise floor ({sections.MARK}): rounding "
        f"could turn a decision of that pair. {AUDITED[one['audited']]}"
    )


def _margins(one: Mapping[str, Any]) -> str:
    if one["statistic"] is None:
        return ""
    return f" Margins are differences of: {text(one['statistic'])}."


def _flips(flips: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            text(one["name"]) + sections.marked(one),
            text(decided(one["a"])),
            text(decided(one["b"])),
            significant(one["margin_a"]),
            significant(one["margin_b"]),
            significant(one["moved"]),
        ]
        for one in flips[:SHOWN]
    ]
    return table(["Item", "A", "B", "Margin in A", "Margin in B", "Together"], rows, left=3)


def decided(value: Any) -> str:
    """A decision: right or wrong as yes or no, else what was chosen."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def changed(record: Mapping[str, Any]) -> list[str]:
    """The values of each number that differ most, as Markdown blocks."""
    titles = {one["name"]: one["title"] for one in record["results"]}
    parts: list[str] = []
    for name, found in record["most_changed"].items():
        rows = [
            [text(one["name"]), *(significant(one[field]) for field in ("a", "b", "difference"))]
            for one in found[:10]
        ]
        parts += [
            f"## Largest differences: {text(titles[name])}",
            table(["Item", "A", "B", "B - A"], rows),
        ]
    return parts


def not_compared(record: Mapping[str, Any]) -> list[list[str]]:
    """Names of items without a partner, a list of Markdown blocks for each kind."""
    what, alone = record["what"], record["without_partner"]
    return [
        _names("A alone has", alone["a"], what),
        _names("B alone has", alone["b"], what),
        _names("The runs have other texts of", record["other_text"], what),
    ]


def _names(title: str, names: Sequence[str], what: str) -> list[str]:
    if not names:
        return []
    some = f" (the first {SHOWN})" if len(names) > SHOWN else ""
    lines = "\n".join(f"- {text(one)}" for one in names[:SHOWN])
    return [f"## {title} {len(names)} {what}{some}", lines]

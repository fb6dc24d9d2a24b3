"""Three and more finished runs of one system: each of them against the first, in one table."""

import dataclasses
import functools
import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxscore.engine import provenance
from jaxscore.errors import InputError, one_line
from jaxscore.report import markdown
from jaxscore.report.counts import counted
from jaxscore.report.document import Card, Chart, Document, Section
from jaxscore.report.html.chart_parts import means
from jaxscore.report.markdown import NOTHING, significant, text
from jaxscore.report.sections import closing, sentence
from jaxscore.shell.rendered import Rendered
from jaxscore.systems.compare import ComparedRuns, Settings, compare, differences
from jaxscore.systems.compare.differences import Difference
from jaxscore.systems.compare.open_run import OpenRun

LABELS = string.ascii_uppercase
CHARTED = 6  # numbers that have a chart
HEADER = ("Run", "Pairs", "A's mean", "Its mean", "Difference", "95% interval", "p", "p, Holm")
INTRODUCTION = """\
Each run is compared with A over the pairs that the two share, so that A's mean may differ between
rows. Intervals and tests are those of a comparison of two runs; p is corrected by Holm's method for
all {n_tests} tests of this page. Flips and single items are in the comparison of two runs."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ComparedTable(Rendered):
    """The differences of several runs from the first.

    Attributes:
        results: label of a run -> its differences from A, with p corrected over all runs.
        names: label -> short name of each run, A's first.
        details: label -> `ComparedRuns.details` of that run and A.
        remarks: valid but suspicious facts.
        failures: the (label and name, reason) of items that failed in a run.
        settings: the settings of the comparison, with versions and date.
    """

    results: Mapping[str, Sequence[Difference]]
    names: Mapping[str, str]
    details: Mapping[str, Mapping[str, Any]]
    remarks: Sequence[str]
    failures: Sequence[tuple[str, str]]
    settings: Mapping[str, Any]

    @property
    def system(self) -> str:
        """The command."""
        return "compare"

    @property
    def n_tests(self) -> int:
        """Number of tests over which p is corrected."""
        return sum(each.p is not None for results in self.results.values() for each in results)

    @property
    def headline(self) -> str:
        """The first number of each run in one line."""
        firsts = {label: results[0] for label, results in self.results.items() if results}
        if not firsts:
            return "no number and no decision is in all runs"
        first = next(iter(firsts.values()))
        values = [
            f"{label} {significant(each.mean_b)} (p {significant(each.p_holm, 2)})"
            for label, each in firsts.items()
            if each.name == first.name
        ]
        return f"{first.title}: A {significant(first.mean_a)}, {', '.join(values)}"

    @property
    def tables(self) -> Iterator[tuple[str, list[list[str]]]]:
        """Yield the title of each number, and its rows of cells: one per run."""
        titles = {each.name: each.title for results in self.results.values() for each in results}
        for name, title in titles.items():
            yield (
                title,
                [
                    [f"{label} {self.names[label]}", *_cells(each)]
                    for label, results in self.results.items()
                    for each in results
                    if each.name == name
                ],
            )

    @property
    def differing(self) -> list[list[str]]:
        """Rows of the settings that differ: name, then the value of each run."""
        values: dict[str, dict[str, str]] = {}
        for label, details in self.details.items():
            for row in details["differences"]:
                of_setting = values.setdefault(row["setting"], {"A": str(row["a"])})
                of_setting[label] = str(row["b"])
        return [
            [name, *(of_setting.get(label, of_setting["A"]) for label in self.names)]
            for name, of_setting in values.items()
        ]

    def data(self) -> dict[str, Any]:
        """See `Rendered.data`."""
        first = next(iter(self.details.values()))
        return {
            "system": first["system"],
            "what": first["what"],
            "runs": {"a": first["runs"]["a"]}
            | {label.lower(): compared["runs"]["b"] for label, compared in self.details.items()},
            "comparisons": {
                label.lower(): {
                    "differences": self.details[label]["differences"],
                    "pairs": self.details[label]["pairs"],
                    "results": [
                        {**vars(each), "verdict": each.verdict(self.n_tests, label)}
                        for each in results
                    ],
                    "decisions": self.details[label]["decisions"],
                }
                for label, results in self.results.items()
            },
            "n_tests": self.n_tests,
            "remarks": self.remarks,
            "failures": [{"name": name, "error": why} for name, why in self.failures],
            "settings": self.settings,
        }

    @functools.cached_property
    def document(self) -> Document:
        """One table per number, and the settings that differ."""
        record = self.data()
        n_pairs = {details["pairs"]["compared"] for details in self.details.values()}
        pairs = f"{min(n_pairs):,}" if len(n_pairs) == 1 else "see the tables"
        runs = [
            [label, *(text(str(run.get(name) or NOTHING)) for name in ("path", "model"))]
            for label, run in zip(self.names, record["runs"].values(), strict=True)
        ]
        return Document(
            system=self.system,
            title=f"Comparison of {record['system']}: {counted(len(runs), 'runs')}",
            verdict=sentence(self.headline),
            cards=[Card("Runs", str(len(runs))), Card("Pairs", pairs, record["what"])],
            charts=[*self._charts()],
            items=None,
            sections=[
                Section("Results", [*self._blocks()], True),
                Section("What differs between the runs", [self._settings_table()]),
                *closing(record, record["what"]),
            ],
            about=[
                markdown.table(["Run", "File", "Model"], runs, left=3),
                " ".join(INTRODUCTION.format(n_tests=self.n_tests).split()),
            ],
        )

    def _blocks(self) -> Iterator[str]:
        for title, rows in self.tables:
            yield f"### {text(title)}"
            yield markdown.table(HEADER, [[text(cell) for cell in row] for row in rows])

    def _settings_table(self) -> str:
        rows = [[text(cell) for cell in row] for row in self.differing]
        if not rows:
            return "No setting that the runs record."
        return markdown.table(["Setting", *self.names], rows, left=1 + len(self.names))

    def _charts(self) -> Iterator[Chart]:
        titles = {each.name: each.title for results in self.results.values() for each in results}
        for name, title in [*titles.items()][:CHARTED]:
            named = [
                (f"{label} {self.names[label]}", each.difference, None)
                for label, results in self.results.items()
                for each in results
                if each.name == name and each.difference is not None
            ]
            yield from means(f"{title}: difference from A", named, "pairs", label="run - A")

    def __repr__(self) -> str:
        return f"<Report compare: {len(self.names)} runs; {self.headline}>"


def compare_all(
    opened: Sequence[OpenRun], settings: Settings, about: Mapping[str, Any] | None = None
) -> ComparedRuns | ComparedTable:
    """Compare each run with the first.

    Args:
        about: further settings of the result.

    Returns:
        The whole comparison of two runs; a table of more.

    Raises:
        InputError: see `compare`.
    """
    if len(opened) > len(LABELS):
        raise InputError(f"found {len(opened)} runs, expected at most {len(LABELS)} at once")
    runs = [
        dataclasses.replace(run, label=label) for run, label in zip(opened, LABELS, strict=False)
    ]
    if len(runs) == 2:
        return compare(runs[0], runs[1], settings, about)
    results: dict[str, list[Difference]] = {}
    details: dict[str, Mapping[str, Any]] = {}
    remarks: list[str] = []
    failures: list[tuple[str, str]] = []
    for run in runs[1:]:  # the records of one run at a time, beside A's
        compared = compare(runs[0], run, settings)
        results[run.label] = [
            each for each in compared.summary.values() if isinstance(each, Difference)
        ]
        details[run.label] = compared.details
        remarks += compared.remarks
        failures += compared.failures
    corrected = iter(differences.corrected([*itertools.chain(*results.values())]))
    return ComparedTable(
        results={label: [next(corrected) for _ in of_run] for label, of_run in results.items()},
        names=dict(zip((run.label for run in runs), _names(runs), strict=True)),
        details=details,
        remarks=[*dict.fromkeys(remarks)],
        failures=[*dict.fromkeys(failures)],
        settings=provenance.of_run({**settings.record(), **(about or {})}),
    )


def _names(runs: Sequence[OpenRun]) -> list[str]:
    """Return short names that differ: of the models, else of the files, else none."""
    models = [Path(str(run.facts.get("model") or "")).name for run in runs]
    files = ["" if run.path is None else run.path.stem for run in runs]
    for names in (models, files):
        if len(set(names)) == len(names):
            return [one_line(name, 40) for name in names]
    return [""] * len(runs)


def _cells(result: Difference) -> list[str]:
    difference = result.difference
    mean = None if difference is None else difference.mean
    interval = NOTHING
    if difference is not None and difference.low is not None:
        interval = f"{significant(difference.low)} to {significant(difference.high)}"
    return [
        f"{result.n:,}",
        *(significant(value) for value in (result.mean_a, result.mean_b, mean)),
        interval,
        *(significant(p, 2) for p in (result.p, result.p_holm)),
    ]

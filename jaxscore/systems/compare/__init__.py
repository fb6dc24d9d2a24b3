"""Two finished runs of one system: paired differences with intervals and tests, and flips."""

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.engine import provenance
from jaxscore.errors import InputError, one_line
from jaxscore.report.document import Document, Source
from jaxscore.shell import settings as base
from jaxscore.shell.flags import flag
from jaxscore.shell.rendered import Rendered
from jaxscore.systems.compare import differences, open_run
from jaxscore.systems.compare.columns import UNKNOWN, Matched, PairRecords, Run, match
from jaxscore.systems.compare.differences import Agreement, Difference, Draws, Places, Values
from jaxscore.systems.compare.open_run import OpenRun
from jaxscore.systems.compare.report import report
from jaxscore.systems.compare.units import Comparison
from jaxscore.types.results import data_frame

HELP = """\
Compare two finished runs of one system on the same items: paired differences
with intervals and tests, and what flipped. No model runs.

  python -m jaxscore compare a.jsonl b.jsonl

input, two files that these commands wrote; OUT.run.json next to a file
describes how it was made:
  score           OUT.jsonl, OUT.parquet    paths         OUT.json
  chronologic     eval_results_….json       probsem       …_results.json
  judge           eval_…_judge_….json       metrics       eval_…_out.json
  self-certainty  …-confidence-list.json    choose, perplexity  like score
  select, vote, usc-select, livecode-select: their output; two of these four
  are compared with each other too.
  Items are matched by id and by their text; without the text by id alone, and
  the report says so.

output, for each number n, the means of A and B, B - A with a 95% interval, and
p, corrected by Holm's method for the number of tests:
  numbers    bootstrap of pairs; exact sign-flip test, of more than 16 pairs by
             draws. Parts of an item (paths, answers, outputs) are drawn and
             flipped together.
  decisions  right or wrong: McNemar's exact test, Newcombe's interval; which
             flipped, by how much, and how many flips lie within the noise
             floor, if the runs were made with --audit-noise
  OUT.report.md is the report, OUT.report.html the page for a browser,
  OUT.report.json their data, OUT.run.json how they were made; if OUT ends in
  .json they are OUT_report.md, OUT_report.html, OUT_report.json and
  OUT.json.run.json. OUT itself is not written. The default is A's name, -vs-
  and B's name, next to A.

exit code: 0 compared, also if items have no partner (they are listed);
           1 some items failed in a run (they are left out), 2 unusable input,
           two systems, settings that count otherwise, or no pair.
"""
MOST_CHANGED = 50  # pairs of each number that the report lists
NAMED = 5  # names of items in a remark


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(base.Settings):
    """Settings of `compare`."""

    limit: int | None = flag(None, least=1, is_flag=False)
    """Only the first so many pairs are compared; the flag is that of every command."""
    force: bool = flag(
        False,
        help="compare runs that differ in a setting which decides what is counted, such as "
        "--boundary",
    )
    seed: int = flag(0, help="of the intervals and of drawn tests (default 0)")
    n_bootstrap: int = flag(
        1000,
        least=1,
        metavar="N",
        help="draws for the 95% intervals (default 1000)",
        is_advanced=True,
    )
    n_resamples: int = flag(
        9999,
        least=1,
        metavar="N",
        help="patterns of signs that a test draws where they are too many to enumerate; no p is "
        "below 1 / (N + 1) then (default 9999)",
        is_advanced=True,
    )

    def record(self) -> dict[str, Any]:
        """The settings as a report has them."""
        order = ("n_bootstrap", "n_resamples", "seed", "limit", "force")
        return {name: getattr(self, name) for name in order}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ComparedRuns(Rendered):
    """What differs between two finished runs.

    Attributes:
        summary: name of a number or decision -> its `Difference`; `n_pairs` and `n_tests`.
        pairs: one record per pair: its name, and each number and decision of both runs, as
            `brier_a` and `brier_b`.
        headline: the first difference in one line.
        failures: (name, why) of items that failed in a run.
        remarks: what a reader of the numbers should know.
        settings: of the comparison, with versions and date.
        details, listed: fields of the JSON file before these and after them.
    """

    summary: Mapping[str, Any]
    pairs: PairRecords
    headline: str
    failures: Sequence[tuple[str, str]]
    remarks: Sequence[str]
    settings: Mapping[str, Any]
    details: Mapping[str, Any]
    listed: Mapping[str, Any]

    @property
    def system(self) -> str:
        """The command."""
        return "compare"

    @property
    def items(self) -> list[dict[str, Any]]:
        """All records."""
        return [*self.pairs]

    def data(self) -> dict[str, Any]:
        """See `Rendered.data`."""
        return {
            **self.details,
            "remarks": self.remarks,
            "failures": [{"name": name, "error": why} for name, why in self.failures],
            "settings": self.settings,
            **self.listed,
        }

    @functools.cached_property
    def document(self) -> Document:
        """Results, charts, and what flipped; see `compare.report`."""
        n = len(self.pairs)
        return report(Source(self.system, self.data(), self.headline, n, results=self.pairs))

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per pair.

        Raises:
            InputError: pandas is not installed.
        """
        return data_frame(self.items)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Report {self.system}: {len(self.pairs)} items{failed}; {self.headline}>"


@dataclasses.dataclass(frozen=True)
class _Pairing:
    """Two loaded runs and their pairs.

    Attributes:
        opened: A and B.
        matched_by: "text", "input" or "id".
    """

    opened: tuple[OpenRun, OpenRun]
    a: Run
    b: Run
    matched: Matched
    matched_by: str

    @property
    def what(self) -> str:
        return self.comparison.what

    @property
    def comparison(self) -> Comparison:
        return self.opened[0].comparison

    @property
    def places(self) -> Places:
        groups = None if self.a.groups is None else self.a.groups[self.matched.a]
        return Places(self.matched.a, self.matched.b, groups)


def compare(
    opened_a: OpenRun, opened_b: OpenRun, settings: Settings, about: Mapping[str, Any] | None = None
) -> ComparedRuns:
    """Compare two finished runs of one system on the same items.

    Args:
        about: what to add to the settings of the result.

    Raises:
        InputError: they are of two systems or differ in what they count, or no item of one is in
            the other.
    """
    names = [opened.comparison.name for opened in (opened_a, opened_b)]
    if names[0] != names[1]:
        raise InputError(f"A is of {names[0]} and B of {names[1]}; expected two runs of one system")
    differing = open_run.differences(opened_a.facts, opened_b.facts)
    forced = _counted_differently(opened_a.comparison.compared.fixed, differing)
    if forced is not None and not settings.force:
        raise InputError(
            f"{forced}; run one again with the setting of the other, or compare them with --force"
        )
    pairing = _pair(opened_a, opened_b, settings.limit)
    a, b, matched = pairing.a, pairing.b, pairing.matched
    draws = Draws(settings.n_bootstrap, settings.n_resamples, settings.seed)
    columns = _paired_columns(pairing)
    results = differences.corrected(
        [
            (differences.difference_of_shares if is_right else differences.difference_of_means)(
                name, title, values, draws
            )
            for name, (title, is_right, values) in columns.items()
        ]
    )
    n_tests = sum(result.p is not None for result in results)
    verdicts = [result.verdict(n_tests) for result in results]
    agreements = _agreements(pairing, draws)
    pairs = PairRecords(a, b, matched)
    return ComparedRuns(
        summary={
            **{result.name: result for result in results},
            "n_pairs": len(pairs),
            "n_tests": n_tests,
        },
        pairs=pairs,
        headline=verdicts[0] if verdicts else "no number and no decision is in both runs",
        failures=[*_failures("A", opened_a, a), *_failures("B", opened_b, b)],
        remarks=[
            *([f"{forced}; they are compared by --force"] if forced is not None else []),
            *_remarks(pairing),
        ],
        settings=provenance.of_run({**settings.record(), **(about or {})}),
        details=_details(pairing, differing, results, verdicts, agreements),
        listed={
            "flips": {found.name: found.flips for found in agreements},
            "most_changed": _most_changed(columns, matched, a),
            "without_partner": {"a": matched.only_a, "b": matched.only_b},
            "other_text": matched.other_text,
        },
    )


def _counted_differently(
    fixed: Collection[str], differing: Sequence[Mapping[str, Any]]
) -> str | None:
    """The settings that decide what is counted and differ between the runs; None without any."""
    found = [
        f"{one['setting']} ({one['a']} and {one['b']})"
        for one in differing
        if one["setting"] in fixed
    ]
    if not found:
        return None
    return f"the runs differ in {', '.join(found)}, so their numbers do not count the same"


def _pair(opened_a: OpenRun, opened_b: OpenRun, limit: int | None) -> _Pairing:
    """Read all records and pair them.

    Raises:
        InputError: there is no pair.
    """
    same_input = open_run.have_same_input(opened_a, opened_b)
    a, b = (opened.load(with_texts=not same_input) for opened in (opened_a, opened_b))
    matched = match(a, b)
    if not len(matched.a):
        n_other = len(matched.other_text)
        why = f"{n_other} have the same id and another text; " if n_other else ""
        first = ", ".join(repr(run.names[0]) for run in (a, b) if run.n)
        raise InputError(
            f"no pair of {opened_a.comparison.what}: of {a.n} in A and {b.n} in B none is in both "
            f"without a failure; {why}the first are {first}; expected two runs on the same items"
        )
    matched = dataclasses.replace(matched, a=matched.a[:limit], b=matched.b[:limit])
    matched_by = "text" if matched.by_text else "input" if same_input else "id"
    return _Pairing((opened_a, opened_b), a, b, matched, matched_by)


def _paired_columns(pairing: _Pairing) -> dict[str, tuple[str, bool, Values]]:
    """Name -> title, whether it is right or wrong, and the values, in the order of the report."""
    a, b, comparison = pairing.a, pairing.b, pairing.comparison
    columns: dict[str, tuple[str, bool, Values]] = {}
    for name, (_, decision) in comparison.decisions.items():
        if decision.is_right and name in a.choices and name in b.choices:
            right_a, right_b = (differences.right_column(run.choices[name]) for run in (a, b))
            values = differences.paired_values(right_a, right_b, pairing.places)
            columns[name] = (decision.title, True, values)
    for name in dict.fromkeys((*comparison.metrics, *a.numbers)):
        if name in a.numbers and name in b.numbers:
            values = differences.paired_values(a.numbers[name], b.numbers[name], pairing.places)
            columns[name] = (comparison.title(name), False, values)
    return columns


def _agreements(pairing: _Pairing, draws: Draws) -> list[Agreement]:
    a, b = pairing.a, pairing.b
    return [
        differences.agreement(
            name, decision, (a.choices[name], b.choices[name]), pairing.places, a.names, draws
        )
        for name, (_, decision) in pairing.comparison.decisions.items()
        if name in a.choices and name in b.choices
    ]


def _details(
    pairing: _Pairing,
    differing: Sequence[Mapping[str, Any]],
    results: Sequence[Difference],
    verdicts: Sequence[str],
    agreements: Sequence[Agreement],
) -> dict[str, Any]:
    """Fields of the report's file that come before its failures and settings."""
    matched, (opened_a, opened_b) = pairing.matched, pairing.opened
    return {
        "system": pairing.comparison.name,
        "what": pairing.what,
        "runs": {"a": _about(opened_a), "b": _about(opened_b)},
        "differences": differing,
        "pairs": {
            "compared": len(matched.a),
            "units_a": pairing.a.n,
            "units_b": pairing.b.n,
            "failed_pairs": matched.n_failed_pairs,
            "only_a": len(matched.only_a),
            "only_b": len(matched.only_b),
            "other_text": len(matched.other_text),
            "repeated": matched.n_repeated,
            "matched_by": pairing.matched_by,
        },
        "results": [
            {**vars(result), "verdict": verdict}
            for result, verdict in zip(results, verdicts, strict=True)
        ],
        "decisions": [
            {name: value for name, value in vars(found).items() if name != "flips"}
            for found in agreements
        ],
    }


def _about(opened: OpenRun) -> dict[str, Any]:
    """What the report says of a run at its top; the differences have the rest."""
    names = ("command", "model", "dtype", "boundary")
    return {
        "path": None if opened.path is None else one_line(str(opened.path)),
        "has_manifest": opened.has_manifest,
        **{name: opened.facts[name] for name in names if opened.facts.get(name) is not None},
    }


def _failures(label: str, opened: OpenRun, run: Run) -> list[tuple[str, str]]:
    """A run's failures: as its report lists them, and what cannot be read."""
    found = [(run.names[place], error) for place, error in run.errors.items()]
    if opened.failures is not None:
        unread = ((run.names[place], run.errors[place]) for place in sorted(run.unread))
        found = [*opened.failures, *unread]
    return [(f"{label}: {item}", error) for item, error in found]


def _most_changed(
    columns: Mapping[str, tuple[str, bool, Values]], matched: Matched, a: Run
) -> dict[str, list[dict[str, Any]]]:
    """The values of each number that differ most, with the names of their items."""
    out = {}
    for name, (_, is_right, values) in columns.items():
        moved = np.abs(values.b - values.a)
        if is_right or not moved.any():
            continue
        largest = np.argsort(-moved, kind="stable")[:MOST_CHANGED]
        out[name] = [
            {
                "name": a.names[int(matched.a[values.pair[k]])],
                "a": float(values.a[k]),
                "b": float(values.b[k]),
                "difference": float(values.b[k] - values.a[k]),
            }
            for k in largest.tolist()
            if moved[k] > 0
        ]
    return out


def _remarks(pairing: _Pairing) -> list[str]:
    """What is legal between two runs and still worth knowing."""
    a, b, matched, what = pairing.a, pairing.b, pairing.matched, pairing.what
    remarks = [
        f"no manifest lies beside {name}, so its settings are not known"
        for name, opened in zip("AB", pairing.opened, strict=True)
        if not opened.facts
    ]
    if pairing.matched_by == "id":
        remarks.append(
            f"the {what} are matched by id alone: their texts are neither in the results "
            "nor in input files that the manifests name and that are unchanged"
        )
    remarks += [
        f"{which} {_counted_names(names, what)}; they are left out"
        for which, names in (
            ("A alone has", matched.only_a),
            ("B alone has", matched.only_b),
            ("the runs have the same ids and other texts of", matched.other_text),
        )
        if names
    ]
    if matched.n_repeated:
        remarks.append(
            f"{matched.n_repeated} {what} of A have the id and text of an earlier one; "
            "these are paired in order"
        )
    n = len(matched.a)
    n_a, n_b = a.n_tokens[matched.a], b.n_tokens[matched.b]
    if n_differ := int(((n_a != n_b) & (n_a != UNKNOWN) & (n_b != UNKNOWN)).sum()):
        remarks.append(
            f"the runs score different numbers of tokens in {n_differ} of {n} pairs, as with two "
            "tokenizers: their means per token are not over the same tokens"
        )
    pairs = zip(matched.a.tolist(), matched.b.tolist(), strict=True)
    if n_differ := sum(a.answers[i] != b.answers[j] for i, j in pairs):
        remarks.append(f"the responses differ in {n_differ} of {n} pairs")
    for name, run, other in (("A", a, b), ("B", b, a)):
        shared = {*other.numbers, *other.choices}
        alone = [one_line(one) for one in (*run.numbers, *run.choices) if one not in shared]
        if alone:
            remarks.append(f"{name} alone has the numbers or decisions {', '.join(alone)}")
    return remarks


def _counted_names(names: Sequence[str], what: str) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{len(names)} {what}: {', '.join(names[:NAMED])}{more}"
